package top

import (
	"context"
	"time"

	tea "charm.land/bubbletea/v2"

	"hinit/client"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/top/feed"
	"hinit/internal/top/model"
	"hinit/internal/usage"
)

const (
	tickEvery   = time.Second            // ages and silences
	restTime    = 150 * time.Millisecond // the cursor has to stay so long until a log or a process is looked at
	insideEvery = 2 * time.Second
	eventBatch  = 200 * time.Millisecond
	eventPast   = 200 // events that the pane begins with
	mostAtOnce  = 8   // orders under way
)

// app brings together the terminal library, the model and the feed.
type app struct {
	ctx     context.Context //nolint:containedctx // that of the screen: the library calls without one
	feed    *feed.Feed
	model   *model.Model
	mouse   bool
	send    func(tea.Msg)
	wants   model.Wants
	log     context.CancelFunc // ends what follows the log
	inside  context.CancelFunc
	places  chan struct{} // of orders under way
	events  bool          // they are followed
	content string        // the last frame
	drawn   time.Time
}

type (
	changeMsg client.StatusChange
	lostMsg   struct{ err error }
	usageMsg  map[string]usage.Usage
	eventsMsg []client.Event
	logMsg    struct {
		name  string
		lines []model.LogLine
	}
	insideMsg model.Inside
	endedMsg  model.Result
	tickMsg   time.Time
)

// Init starts what is always followed.
func (a *app) Init() tea.Cmd {
	a.places = make(chan struct{}, mostAtOnce)
	a.model.Tick(time.Now())
	a.draw()
	guard.Go("following the status", func() {
		a.feed.Status(a.ctx, func(c client.StatusChange) { a.send(changeMsg(c)) }, func(err error) { a.send(lostMsg{err}) })
	})
	guard.Go("measuring", func() {
		a.feed.Usage(a.ctx, func(u map[string]usage.Usage) { a.send(usageMsg(u)) })
	})
	return tick()
}

func tick() tea.Cmd { return tea.Tick(tickEvery, func(t time.Time) tea.Msg { return tickMsg(t) }) }

// Update takes a message.
func (a *app) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	now := time.Now()
	var next tea.Cmd
	switch msg := msg.(type) {
	case tickMsg:
		a.model.Tick(now)
		next = tick()
		if now.Sub(a.drawn) < tickEvery*3/4 { // the status has just been drawn
			return a, next
		}
	case changeMsg:
		a.model.Change(client.StatusChange(msg), now)
	case lostMsg:
		a.model.Lost(msg.err.Error(), now)
	case usageMsg: // drawn with the next tick
		used := make(map[string]model.Usage, len(msg))
		for name, u := range msg {
			used[name] = model.Usage(u)
		}
		a.model.Used(used, now)
		return a, nil
	case eventsMsg:
		for _, e := range msg {
			a.model.Event(e)
		}
	case logMsg:
		if msg.name != a.wants.Log {
			return a, nil // the cursor has gone on
		}
		a.model.Log(msg.name, msg.lines)
	case insideMsg:
		a.model.Inside(model.Inside(msg))
	case endedMsg:
		a.do(a.model.Ended(model.Result(msg)))
	case tea.WindowSizeMsg:
		a.model.Resize(msg.Width, msg.Height)
	default:
		if !a.pressed(msg, now) {
			return a, nil
		}
	}
	if a.model.Over() {
		return a, tea.Quit
	}
	a.follow()
	a.draw()
	return a, next
}

// pressed takes keys and the mouse.
func (a *app) pressed(msg tea.Msg, now time.Time) bool {
	switch msg := msg.(type) {
	case tea.KeyPressMsg:
		a.model.Tick(now)
		key := msg.String()
		if msg.Text != "" && msg.Text != " " {
			key = msg.Text
		}
		a.do(a.model.Key(key))
	case tea.PasteMsg:
		for _, r := range msg.Content {
			a.model.Paste(r)
		}
	case tea.MouseClickMsg:
		if msg.Button != tea.MouseLeft {
			return false
		}
		a.model.Click(msg.X, msg.Y)
	case tea.MouseWheelMsg:
		by, is := map[tea.MouseButton]int{tea.MouseWheelUp: -1, tea.MouseWheelDown: 1}[msg.Button]
		if !is {
			return false
		}
		a.model.Wheel(msg.Y, by)
	default:
		return false
	}
	return true
}

// draw makes the frame. View is asked for it after each message, most of which change nothing.
func (a *app) draw() {
	a.drawn = time.Now()
	a.content = a.model.Frame().ANSI(a.model.Theme())
}

// View returns the last frame.
func (a *app) View() tea.View {
	v := tea.NewView(a.content)
	v.AltScreen = true
	if a.mouse {
		v.MouseMode = tea.MouseModeCellMotion
	}
	return v
}

// do carries out orders, a few at a time.
func (a *app) do(orders []model.Order) {
	for _, o := range orders {
		guard.Go("giving an order", func() {
			select {
			case a.places <- struct{}{}:
			case <-a.ctx.Done():
				return
			}
			defer func() { <-a.places }()
			a.send(endedMsg{Order: o, Err: a.feed.Do(a.ctx, o.Verb, o.Name)})
		})
	}
}

// follow starts and ends what only some panes show.
func (a *app) follow() {
	now := a.model.Wants()
	was := a.wants
	a.wants = now
	if now.Log != was.Log || now.LogDir != was.LogDir {
		stop(a.log)
		a.log = a.during(now.Log != "" && now.LogDir != "", "following a log", func(ctx context.Context) {
			a.feed.Log(ctx, now.LogDir, func(lines []model.LogLine) { a.send(logMsg{now.Log, lines}) })
		})
	}
	if now.Inside != was.Inside || now.PID != was.PID {
		stop(a.inside)
		a.inside = a.during(now.Inside != "", "looking at processes", func(ctx context.Context) {
			for ctx.Err() == nil {
				a.send(insideMsg(a.feed.Inside(now.Inside, now.PID)))
				pause.For(ctx, insideEvery)
			}
		})
	}
	if now.Events && !a.events { // from then on, so that nothing is missing when the pane comes back
		a.events = true
		guard.Go("following the events", a.followEvents)
	}
}

// during runs something until what it returns is called, once the cursor has come to rest.
func (a *app) during(wanted bool, doing string, run func(ctx context.Context)) context.CancelFunc {
	if !wanted {
		return nil
	}
	ctx, cancel := context.WithCancel(a.ctx)
	guard.Go(doing, func() {
		if pause.For(ctx, restTime) {
			run(ctx)
		}
	})
	return cancel
}

// followEvents hands events on in batches: each message makes a frame.
func (a *app) followEvents() {
	fresh := make(chan client.Event, 256)
	guard.Go("reading the events", func() {
		a.feed.Events(a.ctx, eventPast, func(e client.Event) {
			select {
			case fresh <- e:
			case <-a.ctx.Done():
			}
		})
	})
	for {
		var batch eventsMsg
		select {
		case e := <-fresh:
			batch = append(batch, e)
		case <-a.ctx.Done():
			return
		}
		pause.For(a.ctx, eventBatch)
		for more := true; more; {
			select {
			case e := <-fresh:
				batch = append(batch, e)
			default:
				more = false
			}
		}
		a.send(batch)
	}
}

func stop(cancel context.CancelFunc) {
	if cancel != nil {
		cancel()
	}
}
