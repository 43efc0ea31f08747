package failover

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// gatewayWatch samples the gateway processes of all pairs every 10 ms.
type gatewayWatch struct {
	samples atomic.Int64
	stop    chan struct{}
	done    sync.WaitGroup

	mu         sync.Mutex
	alive      map[string]int // Number of gateway processes, by mark.
	duplicates map[string]int // Number of samples in which both pods of a pair had a gateway, by the mark without its last digit.
}

func newWatch() *gatewayWatch {
	w := &gatewayWatch{stop: make(chan struct{}), duplicates: map[string]int{}}
	w.done.Go(func() {
		tick := time.NewTicker(sampleInterval)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
				w.takeSample()
			}
		}
	})
	return w
}

func (w *gatewayWatch) takeSample() {
	alive, pairs, two := map[string]int{}, map[string]bool{}, map[string]bool{}
	for pid, command := range commands() {
		words := strings.Split(strings.TrimSuffix(command, "\x00"), "\x00")
		mark := words[len(words)-1]
		if len(words) != 3 || words[1] != "sleep" || alive[mark] != 0 {
			continue
		}
		alive[mark] = pid
		if pair := mark[:len(mark)-1]; pairs[pair] {
			two[pair] = true
		} else {
			pairs[pair] = true
		}
	}
	w.samples.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alive = alive
	for pair := range two {
		w.duplicates[pair]++
	}
}

func (w *gatewayWatch) isRunning(p *pod) bool { return w.gateway(p) != 0 }

// gateway returns the pid of a pod's gateway, or 0.
func (w *gatewayWatch) gateway(p *pod) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.alive[p.mark()]
}

// countDuplicates returns in how many samples both gateways of the pair were running.
func (w *gatewayWatch) countDuplicates(p *pod) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.duplicates[p.mark()[:len(p.mark())-1]]
}

func (w *gatewayWatch) await(two []*pod, not *pod) (*pod, time.Time, error) {
	for end := time.Now().Add(waitTimeout); time.Now().Before(end); <-time.After(sampleInterval / 2) {
		for _, p := range two {
			if p != not && w.isRunning(p) {
				return p, time.Now(), nil
			}
		}
	}
	return nil, time.Time{}, errors.New("it has taken longer than " + waitTimeout.String())
}

func (w *gatewayWatch) end() {
	close(w.stop)
	w.done.Wait()
}
