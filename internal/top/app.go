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
	feeds   []*feed.Feed    // of the hosts, in the order of the model
	local   bool            // the only host is the init of this container
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
	changeMsg struct {
		host   int
		change client.StatusChange
	}
	lostMsg struct {
		host int
		err  error
	}
	usageMsg struct {
		host int
		used map[string]usage.Usage
	}
	eventsMsg []event
	event     struct {
		client.Event
		host int
	}
	logMsg struct {
		of    model.Log
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
	for i, f := range a.feeds {
		guard.Go("following the status", func() {
			f.Status(a.ctx, func(c client.StatusChange) { a.send(changeMsg{i, c}) }, func(err error) { a.send(lostMsg{i, err}) })
		})
		guard.Go("measuring", func() {
			f.Usage(a.ctx, func(u map[string]usage.Usage) { a.send(usageMsg{i, u}) })
		})
	}
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
		a.model.Change(msg.host, msg.change, now)
	case lostMsg:
		a.model.Lost(msg.host, msg.err.Error(), now)
	case usageMsg: // drawn with the next tick
		used := make(map[string]model.Usage, len(msg.used))
		for name, u := range msg.used {
			used[name] = model.Usage(u)
		}
		a.model.Used(msg.host, used, now)
		return a, nil
	case eventsMsg:
		for _, e := range msg {
			a.model.Event(e.host, e.Event)
		}
	case logMsg:
		if msg.of != a.wants.Log {
			return a, nil // the cursor has gone on
		}
		a.model.Log(msg.of, msg.lines)
	case insideMsg:
		a.model.Inside(model.Inside(msg))
	case endedMsg:
		next = a.do(a.model.Ended(model.Result(msg)))
	case tea.WindowSizeMsg:
		a.model.Resize(msg.Width, msg.Height)
	default:
		is := false
		if next, is = a.pressed(msg, now); !is {
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

// pressed takes keys and the mouse. It reports whether the message was one of them.
func (a *app) pressed(msg tea.Msg, now time.Time) (next tea.Cmd, is bool) {
	switch msg := msg.(type) {
	case tea.KeyPressMsg:
		a.model.Tick(now)
		key := msg.String()
		if msg.Text != "" && msg.Text != " " {
			key = msg.Text
		}
		next = a.do(a.model.Key(key))
	case tea.PasteMsg:
		for _, r := range msg.Content {
			a.model.Paste(r)
		}
	case tea.MouseClickMsg:
		if msg.Button != tea.MouseLeft {
			return nil, false
		}
		a.model.Click(msg.X, msg.Y)
	case tea.MouseWheelMsg:
		by, is := map[tea.MouseButton]int{tea.MouseWheelUp: -1, tea.MouseWheelDown: 1}[msg.Button]
		if !is {
			return nil, false
		}
		a.model.Wheel(msg.Y, by)
	default:
		return nil, false
	}
	return next, true
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

// do carries out orders, a few at a time. A shell gets the terminal.
func (a *app) do(orders []model.Order) (next tea.Cmd) {
	for _, o := range orders {
		from := a.feeds[o.Host]
		var act func() error
		switch o.Verb {
		case client.VerbStart, client.VerbStop, client.VerbRestart, client.VerbRunOnce:
			act = func() error { return from.Do(a.ctx, o.Verb, o.Name) }
		case model.VerbSignal:
			act = func() error { return from.Signal(a.ctx, o.Name, o.Word) }
		case model.VerbSave:
			text := a.model.LogText()
			act = func() error { return feed.Save(o.Word, text) }
		case model.VerbShell:
			if a.local {
				return tea.Exec(shell{o.Name}, func(err error) tea.Msg { return endedMsg{Order: o, Err: err} })
			}
			act = func() error { return errElsewhere }
		}
		guard.Go("giving an order", func() {
			select {
			case a.places <- struct{}{}:
			case <-a.ctx.Done():
				return
			}
			defer func() { <-a.places }()
			a.send(endedMsg{Order: o, Err: act()})
		})
	}
	return nil
}

// follow starts and ends what only some panes show.
func (a *app) follow() {
	now := a.model.Wants()
	was := a.wants
	a.wants = now
	if now.Log != was.Log {
		stop(a.log)
		a.log = a.during(now.Log.File != "", "following a log", func(ctx context.Context) {
			a.feeds[now.Log.Host].Log(ctx, now.Log, func(lines []model.LogLine) { a.send(logMsg{now.Log, lines}) })
		})
	}
	if now.Inside != was.Inside || now.PID != was.PID {
		stop(a.inside)
		a.inside = a.during(now.Inside.Name != "", "looking at processes", func(ctx context.Context) {
			for ctx.Err() == nil {
				a.send(insideMsg(a.feeds[now.Inside.Host].Inside(now.Inside, now.PID)))
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
	fresh := make(chan event, 256)
	for i, f := range a.feeds {
		guard.Go("reading the events", func() {
			f.Events(a.ctx, eventPast, func(e client.Event) {
				select {
				case fresh <- event{e, i}:
				case <-a.ctx.Done():
				}
			})
		})
	}
	for {
		var batch eventsMsg
		select {
		case e := <-fresh:
			batch = append(batch, e)
		case <-a.ctx.Done():
			return
		}
		pause.For(a.ctx, eventBatch)
		for range len(fresh) { // only this goroutine receives
			batch = append(batch, <-fresh)
		}
		a.send(batch)
	}
}

func stop(cancel context.CancelFunc) {
	if cancel != nil {
		cancel()
	}
}
