package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"hinit/internal/boot"

	"hinit/internal/blocking"
	"hinit/internal/boot/kept"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/pause"
)

// StepRecord records the inputs of successful boot steps. A step with the same inputs as at the last boot is skipped. Only
// steps that have inputs and run as the agent are recorded. The agent can forge the record, but that only skips its own steps.
//
// Several goroutines may call the methods, which block on the data volume for a short time. Inputs that can't be read in time
// count as changed.
type StepRecord struct {
	options         Options
	version         string
	filledFromImage bool                     // this boot has filled the data directory, so the record is the image's
	recordableSteps map[string]*recordedStep // steps whose success can be recorded, by key

	mu      sync.Mutex
	env     []string // environment of the steps, without ignoredVariables
	steps   map[string]kept.StepHashes
	changed bool // steps differs from the record on the volume
}

// recordedStep is a boot step that can be skipped after it has succeeded.
type recordedStep struct {
	hook                                 boot.Hook
	volumeInputs, varInputs, imageInputs []string        // inputs of the step: files in the data directory, variables, other files
	hashesReady                          <-chan struct{} // closed when imageBuild and stepHashes are set
	imageBuild                           string          // build number of the image, see Options.sealNumber; "" if the image has changed
	stepHashes                           kept.StepHashes // hashes of the inputs that can't change while this container runs; empty if unknown
}

// NewStepRecord returns a record for all hooks with inputs. It starts to read the inputs outside of the data directory, in a
// goroutine for each hook. version is the version of hinit: after an update, all steps run. Call Load next.
func NewStepRecord(o Options, version string, hooks []boot.Hook) *StepRecord {
	m := &StepRecord{options: o.withDefaults(), version: version, recordableSteps: make(map[string]*recordedStep), steps: make(map[string]kept.StepHashes)}
	for _, h := range hooks {
		if len(h.Inputs) == 0 || h.IfExists != "" && !exists(h.IfExists) || m.recordableSteps[stepKey(h)] != nil {
			continue
		}
		s := &recordedStep{hook: h}
		s.volumeInputs, s.varInputs, s.imageInputs = splitInputs(m.options.Home, h.Inputs)
		m.recordableSteps[stepKey(h)] = s
		s.hashesReady = guard.GoWithDone("reading what a boot step depends on", func() { m.readProgram(s) })
	}
	return m
}

// stepKey returns the key of a hook in the record. It depends on the hook's name, command and inputs.
func stepKey(h boot.Hook) string {
	return h.Name + " " + hashOf(slices.Concat(h.Command, []string{"inputs"}, h.Inputs)...)[:16]
}

func hashOf(words ...string) string {
	r := &inputHasher{sum: sha256.New()}
	r.addWords(words...)
	return hex.EncodeToString(r.sum.Sum(nil))
}

// readProgram hashes the inputs that can't change while this container runs: the program, and files of the image.
func (m *StepRecord) readProgram(s *recordedStep) {
	ctx, cancel := context.WithTimeout(context.Background(), hashInputsTimeout)
	defer cancel()
	var program, here, install, installHere string
	err := blocking.Within(ctx, blocking.Foreign, "reading what a boot step depends on", func() error {
		outside := func(path string) bool { return !isWithin(path, m.options.Image.Install) }
		inside := slices.DeleteFunc(slices.Clone(s.imageInputs), outside)
		image := slices.Concat(commandFiles(s.hook, m.options.Env), slices.DeleteFunc(slices.Clone(s.imageInputs), func(path string) bool { return !outside(path) }))
		return m.options.Agent.Do(func() (err error) {
			program, here, err = hashInputs(ctx, imageSource{}, image, "/")
			mounts, _ := os.ReadFile("/proc/self/mountinfo")
			s.imageBuild = m.options.sealNumber(string(mounts))
			if err == nil && s.imageBuild == "" {
				install, installHere, err = hashInputs(ctx, imageSource{}, inside, "/")
			}
			return err
		})
	})
	if err != nil {
		return
	}
	s.stepHashes = kept.StepHashes{
		ProgramHash: hashOf(slices.Concat([]string{"hinit", m.version, m.options.ImageBuildID, m.options.Home, program}, s.hook.Command)...), InstallHash: install + s.imageBuild,
		HostHash: here + installHere,
	}
}

// commandFiles returns the files that a hook's command names: the program, and for example its script.
func commandFiles(h boot.Hook, env func(string) (string, bool)) (files []string) {
	for i, word := range h.Command {
		switch {
		case filepath.IsAbs(word):
			if info, err := os.Stat(word); err == nil && info.Mode().IsRegular() {
				files = append(files, word)
			}
		case i == 0:
			if found, ok := boot.CommandFinder(boot.EnvOf(env, "PATH"), "/")(word); ok {
				files = append(files, found)
			}
		}
	}
	return files
}

// ignoredVariables are variables that don't change the result of a step. They differ between containers, or only hinit,
// gateways or the dashboard read them.
var ignoredVariables = []string{
	"HOSTNAME", "TERM", "PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES",
	"HERMES_UID", "HERMES_GID", "PUID", "PGID", "HERMES_ORIG_CWD",
	"HINIT_*", "HERMES_DASHBOARD*", "HERMES_GATEWAY_*", "HERMES_AUTH_*", "S6_*",
}

// matchesVariable reports whether a pattern (path.Match) matches the name of the variable kv, NAME=VALUE.
func matchesVariable(patterns []string, kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		match, err := path.Match(pattern, name)
		return err == nil && match
	})
}

// Load reads the record from the data volume. env is the environment of the steps. If this boot has just filled the data
// directory from the image (filledFromImage), Load uses the record in the image. Without a readable record, every step runs.
func (m *StepRecord) Load(ctx context.Context, env []string, filledFromImage bool) {
	m.env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return matchesVariable(ignoredVariables, kv) })
	slices.Sort(m.env)
	if len(m.recordableSteps) == 0 {
		return
	}
	if filledFromImage {
		k, err := blocking.Get(blocking.Foreign, func() (kept.SeedIndex, error) { return kept.ReadIndex(m.options.Image.Seed) })
		if err == nil {
			maps.Copy(m.steps, k.Steps)
			m.filledFromImage = true
		}
		return
	}
	var r kept.StepRecord
	var data []byte
	if m.withHome(ctx, func(d *fsutil.Dir) (err error) {
		data, err = d.ReadFile(boot.BootRecordFile, kept.MaxRecordSize)
		return err
	}) != nil || json.Unmarshal(data, &r) != nil || r.Format != kept.FormatVersion {
		return
	}
	maps.Copy(m.steps, r.Steps)
}

// withHome calls do with the open data directory, with the agent's identity and a time limit.
func (m *StepRecord) withHome(ctx context.Context, do func(d *fsutil.Dir) error) error {
	ctx, cancel := context.WithTimeout(ctx, hashInputsTimeout+time.Second)
	defer cancel()
	return blocking.Within(ctx, blocking.Volume, "reading what a boot step depends on", func() error {
		d, err := fsutil.OpenDir(m.options.Home, m.options.Agent)
		if err != nil {
			return err
		}
		defer d.Close()
		return d.WithIdentity(do)
	})
}

// currentHashes returns the present hashes of a step's inputs. The second result is false if they can't be read.
func (m *StepRecord) currentHashes(ctx context.Context, s *recordedStep) (kept.StepHashes, bool) {
	if !pause.Until(ctx, s.hashesReady) || s.stepHashes.ProgramHash == "" {
		return kept.StepHashes{}, false
	}
	volume, exact := "", ""
	err := m.withHome(ctx, func(d *fsutil.Dir) (err error) {
		limited, cancel := context.WithTimeout(ctx, hashInputsTimeout)
		defer cancel()
		if s.hook.Name == skillsSync && hasOtherSkillDirs(m.env, d) {
			return errChangeUnknown
		}
		src := &volumeSource{top: d}
		defer src.close()
		volume, exact, err = hashInputs(limited, src, s.volumeInputs, m.options.Home)
		return err
	})
	if err != nil {
		return kept.StepHashes{}, false
	}
	now := s.stepHashes
	now.EnvHash, now.VolumeHash = hashOf(s.variables(m.env)...), volume+exact
	return now, true
}

// variables returns the variables in env that the step reads: the variables among its inputs, or all if its inputs have none.
func (s *recordedStep) variables(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return len(s.varInputs) > 0 && !matchesVariable(s.varInputs, kv) })
}

// isUnchanged reports whether a hook can be skipped, because it has already succeeded with the same inputs.
func (m *StepRecord) isUnchanged(ctx context.Context, h boot.Hook) bool {
	s := m.stepOf(h)
	if s == nil {
		return false
	}
	m.mu.Lock()
	last, recorded := m.steps[stepKey(h)]
	m.mu.Unlock()
	if !recorded {
		return false
	}
	now, ok := m.currentHashes(ctx, s)
	if m.filledFromImage { // these steps have made the files in the data directory, so only the other inputs matter
		same := now.ProgramHash == last.ProgramHash && now.EnvHash == last.EnvHash && (s.imageBuild != "" || now.InstallHash == last.InstallHash)
		if ok = ok && same; ok {
			m.setHashes(stepKey(h), now)
		}
		return ok
	}
	return ok && now == last
}

// recordHookEnd updates the record after the end of a hook.
func (m *StepRecord) recordHookEnd(ctx context.Context, h boot.Hook, succeeded bool) {
	s := m.stepOf(h)
	if s == nil {
		return
	}
	if now, ok := m.currentHashes(ctx, s); ok && succeeded {
		m.setHashes(stepKey(h), now)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, recorded := m.steps[stepKey(h)]; recorded {
		delete(m.steps, stepKey(h))
		m.changed = true
	}
}

func (m *StepRecord) setHashes(key string, s kept.StepHashes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed = m.changed || m.steps[key] != s
	m.steps[key] = s
}

func (m *StepRecord) stepOf(h boot.Hook) *recordedStep {
	if m == nil || len(h.Inputs) == 0 {
		return nil
	}
	return m.recordableSteps[stepKey(h)]
}

// Save writes a changed record to the data volume, without steps that are no longer configured. Call it after [RunHooks]. It
// also sets the mode of config.yaml, which a hook may have replaced. The record isn't synced: after a loss, the steps run once
// more.
func (m *StepRecord) Save(ctx context.Context) error {
	_ = m.withHome(ctx, func(d *fsutil.Dir) error { return d.Chmod(boot.ConfigFile, boot.ConfigFileMode) }) // the boot ignores errors of this mode, too
	m.mu.Lock()
	r := kept.StepRecord{Format: kept.FormatVersion, Steps: maps.Clone(m.steps)}
	changed := m.changed
	m.mu.Unlock()
	if !changed {
		return nil
	}
	maps.DeleteFunc(r.Steps, func(key string, _ kept.StepHashes) bool { return m.recordableSteps[key] == nil })
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("cannot record the boot steps: %w", err)
	}
	err = m.withHome(ctx, func(d *fsutil.Dir) error {
		return d.Replace(boot.BootRecordFile, append(data, '\n'), fsutil.ReplaceOptions{Mode: 0o600, NoSync: true})
	})
	if err != nil {
		return fmt.Errorf("cannot record the boot steps, so all of them run at the next start: %w", err)
	}
	return nil
}
