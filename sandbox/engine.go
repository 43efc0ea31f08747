package sandbox

import (
	"context"
	"io"
	"strings"
	"time"

	"hinit/sandbox/mux"
)

// Engine has the calls that sandboxes need of a container engine. Every method may be called from several goroutines and ends
// when its context does. Errors name the request and its object. A missing container or image wraps [ErrGone] or [ErrNoImage],
// and an engine that doesn't answer wraps [ErrNoEngine].
type Engine interface {
	// Info asks the engine what it is.
	Info(ctx context.Context) (Info, error)
	// Image describes an image that the engine has, and Pull fetches one.
	Image(ctx context.Context, ref string) (Image, error)
	Pull(ctx context.Context, ref string) error

	// List returns the containers that carry all the labels, in any state. A label of the value "" need only be there.
	List(ctx context.Context, labels map[string]string) ([]Container, error)
	Inspect(ctx context.Context, id string) (Container, error)
	// Create makes a container and does not start it. A failure leaves none behind, unless the engine stopped answering.
	Create(ctx context.Context, spec Spec) (id string, err error)
	Start(ctx context.Context, id string) error
	Unpause(ctx context.Context, id string) error
	// Stop asks the container's first process to end, and kills it after the grace.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Remove kills the container if it runs and removes it with its anonymous volumes. One that is gone is no error.
	Remove(ctx context.Context, id string) error

	// Exec runs a command in a running container.
	Exec(ctx context.Context, id string, spec ExecSpec) (Attachment, error)
	// CopyIn unpacks a tar archive below a directory of the container. It doesn't see what is mounted inside the container only, such
	// as a tmpfs.
	CopyIn(ctx context.Context, id, dir string, tar io.Reader) error
	// Logs copies what the container's first process has written; with follow until it ends.
	Logs(ctx context.Context, id string, follow bool, stdout, stderr io.Writer) error

	// Volumes lists the volumes that carry all the labels, or whose name begins with prefix.
	Volumes(ctx context.Context, prefix string, labels map[string]string) ([]Volume, error)

	Close() error
}

// FullEngine has what only the service of sandboxes does, besides.
type FullEngine interface {
	Engine

	Rename(ctx context.Context, id, name string) error
	// CopyOut packs a path of a container into a tar archive, and sees no more than CopyIn.
	CopyOut(ctx context.Context, id, path string) (io.ReadCloser, error)
	// CreateVolume makes a volume, or takes the one that has the name. RemoveVolume refuses one that a container has.
	CreateVolume(ctx context.Context, name string, labels map[string]string) error
	RemoveVolume(ctx context.Context, name string) error
	// Watch calls changed whenever a container with all the labels is made, ends or is removed. It starts with the events of the
	// last second, and goes on until the context ends or the engine sends no more; the error says why. began is called when the
	// events begin.
	Watch(ctx context.Context, labels map[string]string, began, changed func()) error
}

// Cluster is an engine whose containers run on other machines. The engine brings the program inside into each container, on the volume that
// Gate names. A file has the same inode number on every machine, on a device of another number.
type Cluster interface {
	FullEngine

	// Self is the container of this process. It has no ID where this process is not in the cluster.
	Self(ctx context.Context) (Container, error)
	Gate() (volume string)
}

// Volume is one of the engine's named volumes.
type Volume struct {
	Name    string            `json:"name"`
	Labels  map[string]string `json:"labels"`
	Created time.Time         `json:"created"`
}

// An Attachment is a command that the engine runs, as a connection: with its standard input and output. Close gives it up; it does not end the
// command.
type Attachment interface {
	io.ReadWriteCloser
	CloseWrite() error
	// Said is what the command or the engine has said of what was wrong, once Read has failed.
	Said() string
}

// Info describes an engine.
type Info struct {
	Version, API string // "20.10.24", "1.41"
	OS, Arch     string // as Go names them
	Driver       string // of storage, such as "overlay2"
	Users        string // how it keeps root in containers from being the host's root: "userns-remap", "rootless" or ""
}

// Image is what matters of an image.
type Image struct {
	Entrypoint []string
	Cmd        []string
	Labels     map[string]string
}

// State is what a container is in, by the engine's word.
type State string

// The states. Gone is what the engine does not know any more.
const (
	Created    State = "created"
	Running    State = "running"
	Paused     State = "paused"
	Restarting State = "restarting"
	Removing   State = "removing"
	Exited     State = "exited"
	Dead       State = "dead"
	Gone       State = "gone"
)

// stateOf is a state in Docker's words: podman has some of its own.
func stateOf(text string) State {
	switch state := State(strings.ToLower(text)); state {
	case "configured", "initialized":
		return Created
	case "stopping": // it runs until its first process has ended
		return Running
	case "stopped":
		return Exited
	default:
		return state
	}
}

// Container is what matters of a container. List leaves out what only Inspect tells: see each field.
type Container struct {
	ID        string            `json:"container"`
	Name      string            `json:"name"`
	Image     string            `json:"image"`
	Labels    map[string]string `json:"labels"`
	State     State             `json:"state"`
	Created   time.Time         `json:"created"`
	Started   time.Time         `json:"-"`    // Inspect; zero before the first start
	Finished  time.Time         `json:"-"`    // Inspect; zero while it hasn't ended
	ExitCode  int               `json:"-"`    // Inspect
	OOMKilled bool              `json:"-"`    // Inspect
	User      string            `json:"user"` // Inspect; of commands, "" is the image's
	Mounts    []Mount           `json:"-"`
	Reason    string            `json:"-"` // the State in the engine's own words, "" for the usual ones
}

// Mount is one of a container.
type Mount struct {
	Type             string // "bind", "volume" or "tmpfs"
	Source, Target   string
	ReadOnly         bool
	Options          string // of a tmpfs, as mount(8) takes them
	CreateHostParent bool   // make the source if it is missing, as -v does
}

// Spec is a container to create.
type Spec struct {
	Name, Image string
	Labels      map[string]string
	Entrypoint  []string // nil keeps the image's
	Cmd         []string
	Env         []string // NAME=value
	User        string
	Dir         string // working directory
	Hostname    string

	Init        bool // the engine's own init is process 1
	CapDrop     []string
	CapAdd      []string
	SecurityOpt []string
	Privileged  bool
	ReadOnly    bool // root file system
	Devices     []string
	Groups      []string // supplementary groups

	Mounts  []Mount // tmpfs too
	Storage map[string]string

	CPUs      float64
	Memory    int64 // bytes
	PidsLimit int64
	ShmSize   int64             // bytes
	Ulimits   map[string]string // name → soft[:hard]

	Network  string // "" is the engine's default
	PIDMode  string
	IPCMode  string
	UTSMode  string
	UserNS   string
	CgroupNS string
	DNS      []string
	Hosts    []string // host:ip
	Ports    []string // as -p takes them

	Runtime string // "" is the engine's default
	Restart string
}

// ExecSpec is a command that the engine is to run in a container.
type ExecSpec struct {
	Argv  []string
	User  string // "" is the container's
	Stdin bool
}

// Size is the size of a terminal.
type Size = mux.TerminalSize
