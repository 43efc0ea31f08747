package control

import (
	"context"
	"hash/maphash"
	"slices"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// followGap is the minimum time between two lines of a status stream.
const followGap = time.Second

// sweepGap is the minimum time between two searches for ends that the supervisor was not notified of, for one status stream. A
// search reads a file for each service, so it costs more than everything else that an idle stream does.
const sweepGap = 10 * time.Second

var problemSeed = maphash.MakeSeed()

// follower is a client that follows the status. It keeps the services as they were last sent, but no unsent lines for a
// slow reader.
type follower struct {
	server      *Server
	who         peer
	sent        []*supervisor.Service
	swept       time.Time
	problemSums []uint64 // checksums of the long problem texts in sent; a problem can change while its service stays the same
}

// next returns the changes of the status since the last call. The first call, and each call after a service was added or removed,
// returns all services.
func (f *follower) next(ctx context.Context) (change client.StatusChange, any bool) {
	if now := f.server.now(); now.Sub(f.swept) >= sweepGap {
		f.server.sweep(ctx)
		f.swept = now
	}
	snap, added := f.server.snapshotWith(ctx, nil)
	services := slices.DeleteFunc(slices.Clone(sortGateways(snap.Services)), func(v *supervisor.Service) bool { return !inStatus(v) })
	same := f.sent != nil && slices.EqualFunc(services, f.sent, func(a, b *supervisor.Service) bool { return a.Name == b.Name })
	problems := make([]uint64, len(services))
	change = client.StatusChange{Whole: !same, Init: f.server.initView(snap), Services: []client.Service{}}
	for i, v := range services {
		problems[i] = maphash.String(problemSeed, f.server.problem(v, f.server.policy.classOf(f.who) != otherClass))
		if same && v == f.sent[i] && problems[i] == f.problemSums[i] {
			continue
		}
		view := f.server.view(v, f.who)
		view.Expected = added[v]
		change.Services = append(change.Services, view)
	}
	if change.Whole {
		change.Init.OOMFirst = oomFirst(snap.Services, change.Services)
	}
	shortenTails(change.Services)
	f.sent, f.problemSums = services, problems
	return change, change.Whole || len(change.Services) > 0
}

// getFollow streams the status: first all services, then their changes.
func getFollow(s *Server, r *request) (reply, error) {
	return s.stream(r, true, func(out *lines) { s.followStatus(out, r) })
}

// followStatus writes the status and then its changes, until the client stops reading or the server ends. It takes the next
// snapshot only when the last line is written and followGap is over. So the cost of a reader does not depend on the number of
// changes.
func (s *Server) followStatus(out *lines, r *request) {
	f := &follower{server: s, who: r.who}
	beat := time.NewTimer(0)
	defer beat.Stop()
	for due := true; ; {
		news := s.core.News()
		line, err := s.inTurn(r, func() (reply, error) {
			if change, changed := f.next(r.Context()); changed || due {
				return answer(change)
			}
			return reply{}, nil
		})
		if line.sent != nil {
			out.write(line.body)
			out.end()
			line.sent()
			beat.Reset(client.WatchInterval)
		}
		if err != nil || out.err != nil {
			return
		}
		select {
		case <-time.After(followGap):
		case <-r.Context().Done():
			return
		}
		due = false
		select {
		case <-news:
		case <-beat.C:
			due = true
		case <-r.Context().Done():
			return
		}
	}
}
