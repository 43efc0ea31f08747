package sandbox

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	mounts "github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/docker/go-connections/nat"
	"github.com/docker/go-units"
	"github.com/samber/lo"

	"hinit/internal/pause"
)

// docker implements FullEngine for Docker and for engines with the same API.
type docker struct{ client *client.Client }

// Docker returns the engine at an address such as unix:///run/docker.sock. The engine is Docker from API 1.40 on, or one with the
// same API, such as podman. An empty address means DOCKER_HOST, otherwise the current docker context, otherwise the first
// existing socket. Docker does not connect; the first request does.
func Docker(address string) (FullEngine, error) {
	at, err := findEngine(address)
	if err != nil {
		return nil, err
	}
	options := []client.Opt{client.WithHost(at.host), client.WithAPIVersionNegotiation()}
	if at.certDir != "" {
		options = append(options, client.WithTLSClientConfig(at.certDir+"/ca.pem", at.certDir+"/cert.pem", at.certDir+"/key.pem"))
	}
	c, err := client.NewClientWithOpts(options...)
	if err != nil {
		return nil, fmt.Errorf("cannot use the engine at %s: %w", at.host, err)
	}
	return &docker{c}, nil
}

// engineError returns an error with the failed request (what) and the reason. It wraps one of this package's errors, such as
// [ErrGone], so that callers can recognise the reason.
func engineError(what string, err error) error {
	var kind error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("cannot %s: %w: it is not responding (%w); a docker pause beside a docker exec can leave an engine like that, and then it has to be restarted", what, ErrNoEngine, err)
	// The engine's socket is missing, or nothing listens there.
	case client.IsErrConnectionFailed(err), cerrdefs.IsUnavailable(err),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		kind = ErrNoEngine
	case cerrdefs.IsNotFound(err) && strings.Contains(strings.ToLower(err.Error()), "no such image"):
		kind = ErrNoImage
	case cerrdefs.IsNotFound(err) && !strings.Contains(strings.ToLower(err.Error()), "network"):
		kind = ErrGone
	case cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "name") && strings.Contains(err.Error(), "already in use"):
		kind = ErrNameTaken
	case cerrdefs.IsInvalidArgument(err), cerrdefs.IsPermissionDenied(err), cerrdefs.IsConflict(err), cerrdefs.IsNotImplemented(err):
		kind = ErrRefused
	default:
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	return fmt.Errorf("cannot %s: %w: %w", what, kind, err)
}

// parseBytes parses a size such as 512m in the same way as docker.
func parseBytes(text string) (int64, error) { return units.RAMInBytes(text) }

func (d *docker) Close() error { return d.client.Close() }

func (d *docker) Info(ctx context.Context) (Info, error) {
	defer setTimeLimit(&ctx, engineAnswerTimeout)()
	info, err := d.client.Info(ctx)
	if err != nil {
		return Info{}, engineError("ask the engine what it is", err)
	}
	out := Info{Version: info.ServerVersion, API: d.client.ClientVersion(), OS: info.OSType, Driver: info.Driver}
	out.Arch = cmp.Or(map[string]string{"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}[info.Architecture], info.Architecture)
	for _, option := range info.SecurityOptions {
		switch name, _, _ := strings.Cut(option, ","); name {
		case "name=userns":
			out.UserMapping = "userns-remap"
		case "name=rootless":
			out.UserMapping = "rootless"
		}
	}
	return out, nil
}

func (d *docker) Image(ctx context.Context, ref string) (Image, error) {
	defer setTimeLimit(&ctx, engineAnswerTimeout)()
	i, err := d.client.ImageInspect(ctx, ref)
	if err != nil {
		return Image{}, engineError("inspect the image "+ref, err)
	}
	if c := i.Config; c != nil {
		return Image{c.Entrypoint, c.Cmd, c.Labels, cmp.Or(c.WorkingDir, "/")}, nil
	}
	return Image{}, nil
}

func (d *docker) Pull(ctx context.Context, ref string) error {
	r, err := d.client.ImagePull(ctx, ref, image.PullOptions{})
	if err != nil {
		return engineError("pull the image "+ref, err)
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return engineError("pull the image "+ref, err)
}

func (d *docker) List(ctx context.Context, labels map[string]string) ([]Container, error) {
	defer setTimeLimit(&ctx, engineAnswerTimeout)()
	list, err := d.client.ContainerList(ctx, container.ListOptions{All: true, Filters: labelFilter(labels)})
	if err != nil {
		return nil, engineError("list containers", err)
	}
	return lo.Map(list, func(c container.Summary, _ int) Container {
		return Container{
			ID: c.ID, Name: strings.TrimPrefix(lo.FirstOrEmpty(c.Names), "/"), Image: c.Image, Labels: c.Labels, State: stateOf(c.State),
			Created: time.Unix(c.Created, 0), Mounts: convertMounts(c.Mounts),
		}
	}), nil
}

func labelFilter(labels map[string]string) filters.Args {
	filter := filters.NewArgs()
	for name, value := range labels {
		if value != "" {
			name += "=" + value
		}
		filter.Add("label", name)
	}
	return filter
}

func (d *docker) Watch(ctx context.Context, labels map[string]string, began, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	filter := labelFilter(labels)
	filter.Add("type", string(events.ContainerEventType))
	for _, action := range []events.Action{events.ActionCreate, events.ActionDie, events.ActionDestroy} {
		filter.Add("event", string(action))
	}
	// Ask for the events of the last second too. The engine begins to send events only when it answers, so an event before
	// that would be lost.
	since := strconv.FormatInt(time.Now().Unix()-1, 10)
	messages, failed := d.client.Events(ctx, events.ListOptions{Since: since, Filters: filter})
	select {
	case err := <-failed:
		return engineError("watch containers", err)
	default:
	}
	began()
	for {
		select {
		case <-messages:
			changed()
		case err := <-failed:
			return engineError("watch containers", err)
		}
	}
}

func convertMounts(points []container.MountPoint) []Mount {
	return lo.Map(points, func(m container.MountPoint, _ int) Mount {
		return Mount{Type: string(m.Type), Source: m.Source, Target: m.Destination, ReadOnly: !m.RW}
	})
}

// parseTime parses a timestamp from the engine. An invalid text, and the engine's own zero time, become the zero Time, which
// means never.
func parseTime(text string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, text)
	return t.UTC()
}

// engineAnswerTimeout limits the wait for a request about one container. An engine may hang on one container and still answer
// about others.
var engineAnswerTimeout = 10 * time.Second

func setTimeLimit(ctx *context.Context, most time.Duration) (cancel context.CancelFunc) {
	*ctx, cancel = context.WithTimeout(*ctx, most)
	return cancel
}

func (d *docker) Inspect(ctx context.Context, id string) (Container, error) {
	defer setTimeLimit(&ctx, engineAnswerTimeout)()
	// In a request's address, such an id would be a path to another object.
	if strings.Trim(id, "./") == "" || strings.LastIndexByte(id, '/') > 0 {
		return Container{}, fmt.Errorf("cannot inspect the container %s: %w", shortID(id), ErrGone)
	}
	c, err := d.client.ContainerInspect(ctx, id)
	if err != nil {
		return Container{}, engineError("inspect the container "+shortID(id), err)
	}
	out := Container{ID: c.ID, Name: strings.TrimPrefix(c.Name, "/"), Image: c.Image, Mounts: convertMounts(c.Mounts)}
	out.Created = parseTime(c.Created)
	if s := c.State; s != nil {
		out.State, out.ExitCode, out.OOMKilled = stateOf(s.Status), s.ExitCode, s.OOMKilled
		out.Started, out.Finished = parseTime(s.StartedAt), parseTime(s.FinishedAt)
	}
	if c := c.Config; c != nil {
		out.Labels, out.User, out.Image, out.Dir = c.Labels, c.User, c.Image, cmp.Or(c.Labels[LabelDir], c.WorkingDir, "/")
	}
	return out, nil
}

func (d *docker) Create(ctx context.Context, spec Spec) (string, error) {
	host, err := hostConfig(spec)
	if err != nil {
		return "", err
	}
	config := &container.Config{
		Hostname: spec.Hostname, User: spec.User, Env: spec.Env, Cmd: spec.Cmd, Image: spec.Image, WorkingDir: spec.Dir,
		Entrypoint: spec.Entrypoint, Labels: spec.Labels,
	}
	if config.ExposedPorts, host.PortBindings, err = nat.ParsePortSpecs(spec.Ports); err != nil {
		return "", fmt.Errorf("cannot publish ports: %w", err)
	}
	defer setTimeLimit(&ctx, createTimeout)()
	if spec.Untrusted {
		config.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
		// Set a limit only for this driver; the others have one, or write elsewhere.
		if info, err := d.client.Info(ctx); err == nil && info.LoggingDriver == "json-file" {
			host.LogConfig.Config = map[string]string{"max-size": "5m", "max-file": "2"}
		}
	}
	made, err := d.client.ContainerCreate(ctx, config, host, nil, nil, spec.Name)
	if err != nil {
		return "", engineError("create the container "+spec.Name, err)
	}
	return made.ID, nil
}

// hostConfig converts the part of a Spec that Docker's API calls HostConfig: mounts, limits and rights.
func hostConfig(spec Spec) (*container.HostConfig, error) {
	h := &container.HostConfig{
		NetworkMode: container.NetworkMode(spec.Network), CapAdd: spec.CapAdd, CapDrop: spec.CapDrop, DNS: spec.DNS, ExtraHosts: spec.Hosts,
		GroupAdd: spec.Groups, IpcMode: container.IpcMode(spec.IPCMode), PidMode: container.PidMode(spec.PIDMode), Privileged: spec.Privileged,
		ReadonlyRootfs: spec.ReadOnly, SecurityOpt: spec.SecurityOpt, StorageOpt: spec.Storage, UTSMode: container.UTSMode(spec.UTSMode),
		UsernsMode: container.UsernsMode(spec.UserNS), CgroupnsMode: container.CgroupnsMode(spec.CgroupNS), ShmSize: spec.ShmSize, Runtime: spec.Runtime,
	}
	name, count, limited := strings.Cut(spec.Restart, ":")
	h.RestartPolicy.Name = container.RestartPolicyMode(name)
	if limited {
		var err error
		if h.RestartPolicy.MaximumRetryCount, err = strconv.Atoi(count); err != nil {
			return nil, fmt.Errorf("cannot use the restart policy %q: %w", spec.Restart, err)
		}
	}
	h.NanoCPUs, h.Memory = int64(spec.CPUs*1e9), spec.Memory
	if spec.PidsLimit != 0 {
		h.PidsLimit = &spec.PidsLimit
	}
	if spec.Init {
		h.Init = &spec.Init
	}
	for name, limit := range spec.Ulimits {
		u, err := units.ParseUlimit(name + "=" + limit)
		if err != nil {
			return nil, fmt.Errorf("cannot set the limit %s to %q: %w", name, limit, err)
		}
		h.Ulimits = append(h.Ulimits, u)
	}
	for _, device := range spec.Devices {
		host, rest, _ := strings.Cut(device, ":")
		inside, permissions, _ := strings.Cut(rest, ":")
		h.Devices = append(h.Devices, container.DeviceMapping{PathOnHost: host, PathInContainer: cmp.Or(inside, host), CgroupPermissions: cmp.Or(permissions, "rwm")})
	}
	for _, m := range spec.Mounts {
		switch {
		case m.Type == "tmpfs":
			if h.Tmpfs == nil {
				h.Tmpfs = make(map[string]string)
			}
			h.Tmpfs[m.Target] = m.Options
		case m.CreateHostParent || m.Type == "volume":
			options := m.Options
			if m.ReadOnly {
				options = strings.TrimPrefix(options+",ro", ",")
			}
			h.Binds = append(h.Binds, strings.Trim(m.Source+":"+m.Target+":"+options, ":"))
		default:
			h.Mounts = append(h.Mounts, mounts.Mount{Type: mounts.Type(m.Type), Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
		}
	}
	return h, nil
}

func (d *docker) Start(ctx context.Context, id string) error {
	defer setTimeLimit(&ctx, 3*engineAnswerTimeout)()
	return engineError("start the container "+shortID(id), d.client.ContainerStart(ctx, id, container.StartOptions{}))
}

func (d *docker) Unpause(ctx context.Context, id string) error {
	defer setTimeLimit(&ctx, engineAnswerTimeout)()
	return engineError("unpause the container "+shortID(id), d.client.ContainerUnpause(ctx, id))
}

func (d *docker) Rename(ctx context.Context, id, name string) error {
	defer setTimeLimit(&ctx, engineAnswerTimeout)()
	return engineError("rename the container "+shortID(id), d.client.ContainerRename(ctx, id, name))
}

func (d *docker) Stop(ctx context.Context, id string, grace time.Duration) error {
	defer setTimeLimit(&ctx, grace+2*engineAnswerTimeout)() // The engine itself may take 10 s longer than the grace period.
	seconds := int(grace.Seconds())
	return engineError("stop the container "+shortID(id), d.client.ContainerStop(ctx, id, container.StopOptions{Timeout: &seconds}))
}

func (d *docker) Remove(ctx context.Context, id string) error {
	defer setTimeLimit(&ctx, 3*engineAnswerTimeout)()
	for try := 1; ; try++ {
		err := engineError("remove the container "+shortID(id), d.client.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true}))
		switch {
		case err == nil, errors.Is(err, ErrGone), strings.Contains(err.Error(), "already in progress"):
			return nil
		case try > 20, !strings.Contains(err.Error(), "failed to remove root filesystem"), !pause.For(ctx, 100*time.Millisecond):
			return err // On fuse-overlayfs, an engine can't always remove files that were just written, so try again.
		}
	}
}

func (d *docker) Exec(ctx context.Context, id string, spec ExecSpec) (Attachment, error) {
	what := "run a command in the container " + shortID(id)
	options := container.ExecOptions{AttachStdin: spec.Stdin, AttachStdout: true, AttachStderr: true, Cmd: spec.Argv, User: spec.User, WorkingDir: spec.Dir}
	begin := ctx
	defer setTimeLimit(&begin, engineAnswerTimeout)()
	made, err := d.client.ContainerExecCreate(begin, id, options)
	if err != nil {
		return nil, engineError(what, err)
	}
	stream, err := d.client.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{})
	if err != nil {
		return nil, engineError(what, err)
	}
	return &dockerExec{HijackedResponse: stream}, nil
}

// dockerExec is the connection to a command that the engine runs. The engine sends standard output and standard error in
// parts over one connection. Each part begins with a header of 8 bytes, with the number of the stream and the size of the
// part.
type dockerExec struct {
	types.HijackedResponse
	once        sync.Once
	unread      int    // Number of unread bytes in the current part of standard output.
	outputStart []byte // Beginning of standard output, where an engine writes its own errors.
	errorTail   tailBuffer
}

func (a *dockerExec) Write(p []byte) (int, error) { return a.Conn.Write(p) }
func (a *dockerExec) Close() error                { a.once.Do(a.HijackedResponse.Close); return nil }

func (a *dockerExec) ErrorText() string {
	return strings.TrimSpace(a.errorTail.String() + " " + string(a.outputStart))
}

func (a *dockerExec) Read(p []byte) (int, error) {
	for a.unread == 0 {
		var header [8]byte
		if _, err := io.ReadFull(a.Reader, header[:]); err != nil {
			return 0, err
		}
		size := binary.BigEndian.Uint32(header[4:])
		if stdcopy.StdType(header[0]) == stdcopy.Stdout {
			a.unread = int(size)
		} else if _, err := io.CopyN(&a.errorTail, a.Reader, int64(size)); err != nil {
			return 0, err
		}
	}
	n, err := a.Reader.Read(p[:min(len(p), a.unread)])
	a.unread -= n
	a.outputStart = append(a.outputStart, p[:min(n, max(0, 300-len(a.outputStart)))]...)
	return n, err
}

func (d *docker) CopyIn(ctx context.Context, id, dir string, tar io.Reader) error {
	defer setTimeLimit(&ctx, 3*engineAnswerTimeout)()
	return engineError("copy into the container "+shortID(id), d.client.CopyToContainer(ctx, id, dir, tar, container.CopyToContainerOptions{}))
}

func (d *docker) CopyOut(ctx context.Context, id, path string) (io.ReadCloser, error) {
	r, _, err := d.client.CopyFromContainer(ctx, id, path)
	return r, engineError("copy from the container "+shortID(id), err)
}

func (d *docker) Logs(ctx context.Context, id string, follow bool, stdout, stderr io.Writer) error {
	what := "read the log of the container " + shortID(id)
	r, err := d.client.ContainerLogs(ctx, id, container.LogsOptions{ShowStdout: true, ShowStderr: true, Follow: follow})
	if err != nil {
		return engineError(what, err)
	}
	defer r.Close()
	_, err = stdcopy.StdCopy(stdout, stderr, r)
	return engineError(what, err)
}

func (d *docker) Volumes(ctx context.Context, prefix string, labels map[string]string) ([]Volume, error) {
	filter := labelFilter(labels)
	if prefix != "" {
		// The engine also returns names that contain the prefix elsewhere, so the loop below checks them.
		filter.Add("name", prefix)
	}
	defer setTimeLimit(&ctx, engineAnswerTimeout)()
	list, err := d.client.VolumeList(ctx, volume.ListOptions{Filters: filter})
	if err != nil {
		return nil, engineError("list volumes", err)
	}
	return lo.FilterMap(list.Volumes, func(v *volume.Volume, _ int) (Volume, bool) {
		return Volume{v.Name, v.Labels, parseTime(v.CreatedAt)}, strings.HasPrefix(v.Name, prefix)
	}), nil
}

func (d *docker) CreateVolume(ctx context.Context, name string, labels map[string]string) error {
	defer setTimeLimit(&ctx, engineAnswerTimeout)()
	_, err := d.client.VolumeCreate(ctx, volume.CreateOptions{Name: name, Labels: labels})
	return engineError("make the volume "+name, err)
}

func (d *docker) RemoveVolume(ctx context.Context, name string) error {
	defer setTimeLimit(&ctx, engineAnswerTimeout)()
	return engineError("remove the volume "+name, d.client.VolumeRemove(ctx, name, false))
}
