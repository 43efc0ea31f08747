package prepare

import (
	"context"
	"slices"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/guard"
	"hinit/internal/pause"
)

// examineTimeout is the time limit of an examination.
const examineTimeout = 8 * time.Second

// VolumeExaminer makes the boot program examine the data volume for hinit doctor: its free space, its profiles, and whether the
// agent can write. One examination runs at a time, so a hung volume blocks only one process and one goroutine, however many
// clients ask. The VolumeExaminer owns that goroutine. Any goroutine may call its methods.
type VolumeExaminer struct {
	runExamination func(ctx context.Context, take func(boot.Message)) error // makes the boot program examine the volume

	mu           sync.Mutex
	ended        chan struct{}   // closed at the end of the present examination; nil if none is running
	findings     client.Findings // findings so far of the last examination
	currentCheck boot.Examining  // the check that is running now
}

// Examine examines the volume, or waits for a running examination. It returns the findings when the examination is done, when
// ctx ends, or after examineTimeout. In the last two cases, the findings name the check that has not answered.
func (e *VolumeExaminer) Examine(ctx context.Context) client.Findings {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	e.mu.Lock()
	if e.ended == nil {
		e.ended, e.findings, e.currentCheck = make(chan struct{}), nil, boot.Examining{Check: "volume", Silent: "it is not examined yet"}
		guard.Go("examining the data volume", e.run)
	}
	ended := e.ended
	e.mu.Unlock()
	pause.Until(ctx, ended)
	e.mu.Lock()
	defer e.mu.Unlock()
	found := slices.Clone(e.findings)
	if e.ended != nil {
		found.Failed(e.currentCheck.Check, "%s", e.currentCheck.Silent)
	}
	return found
}

func (e *VolumeExaminer) run() {
	err := e.runExamination(context.Background(), func(m boot.Message) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if m.Examining != nil {
			e.currentCheck = *m.Examining
		}
		e.findings = append(e.findings, m.Findings...)
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.findings.Failed("volume", "%v", err)
	}
	close(e.ended)
	e.ended = nil
}

// examine sends the boot program the job to examine the data volume.
func (s *Preparer) examine(ctx context.Context, take func(boot.Message)) error {
	cfg := s.Config()
	job := s.NewJob(cfg)
	job.Examine, job.ProfileMarker, job.MaxProfiles = true, cfg.Profiles.Marker, cfg.Profiles.Max
	return s.runJob(ctx, "hinit/examine", job, take)
}
