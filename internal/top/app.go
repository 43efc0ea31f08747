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
	tickEvery   = time.Second            // to update ages, and to notice a silent hinit
	restTime    = 150 * time.Millisecond // how long the cursor has to rest before a log or a process is read
	insideEvery = 2 * time.Second
	eventBatch  = 200 * time.Millisecond
	eventPast   = 200 // number of past events at the start of the pane
	mostAtOnce  = 8   // orders in progress at the same time
)

// app connects the terminal library, the model and the feeds.
type app struct {
	ctx     context.Context //nolint:containedctx // context of the screen: the library calls methods without one
	feeds   []*feed.Feed    // one for each host, in the order of the model
	local   bool            // the only host is the init of this container
	model   *model.Model
	mouse   bool
	send    func(tea.Msg)
	wants   model.Wants
	log     context.CancelFunc // ends the goroutine that follows the log
	inside  context.CancelFunc
	places  chan struct{} // limits the orders in progress
	events  bool          // a goroutine follows the events
	content string        // text of the last frame
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

// Init starts to follow the status and the usage.
func (a *app) Init() tea.Cmd {
	a.places, a.log, a.inside = make(chan struct{}, mostAtOnce), func() {}, func() {}
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

// Update handles a message.
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
	case usageMsg: // the next tick draws it
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
			return a, nil // the cursor has moved on
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

// pressed handles keys and the mouse. is reports whether the message was one of them.
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

// draw makes the frame. The library calls View after each message, and most messages change nothing.
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

// do carries out orders, a few at a time. A shell takes over the terminal.
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

// follow starts and stops the sources that only some panes show.
func (a *app) follow() {
	now := a.model.Wants()
	was := a.wants
	a.wants = now
	if now.Log != was.Log {
		a.log()
		a.log = a.during(now.Log.File != "", "following a log", func(ctx context.Context) {
			a.feeds[now.Log.Host].Log(ctx, now.Log, func(lines []model.LogLine) { a.send(logMsg{now.Log, lines}) })
		})
	}
	if now.Inside != was.Inside || now.PID != was.PID {
		a.inside()
		a.inside = a.during(now.Inside.Name != "", "looking at processes", func(ctx context.Context) {
			for ctx.Err() == nil {
				a.send(insideMsg(a.feeds[now.Inside.Host].Inside(now.Inside, now.PID)))
				pause.For(ctx, insideEvery)
			}
		})
	}
	if now.Events && !a.events { // never stopped again, so that no event is missing when the pane opens again
		a.events = true
		guard.Go("following the events", a.followEvents)
	}
}

// during calls run after the cursor has rested for a moment. The result ends it. If wanted is false, it does nothing.
func (a *app) during(wanted bool, doing string, run func(ctx context.Context)) context.CancelFunc {
	ctx, cancel := context.WithCancel(a.ctx)
	if !wanted {
		return cancel
	}
	guard.Go(doing, func() {
		if pause.For(ctx, restTime) {
			run(ctx)
		}
	})
	return cancel
}

// followEvents sends events to the screen in batches, because each message draws a frame.
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
		for range len(fresh) { // no other goroutine receives
			batch = append(batch, <-fresh)
		}
		a.send(batch)
	}
}
