package sandbox

import (
	"context"
	"io"
	"strings"
	"time"

	"hinit/sandbox/mux"
)

// Engine is a container engine, with the calls that sandboxes need. Several goroutines may use it. A call returns when its
// context ends. An error names the request and the object. It wraps [ErrGone] if the container is missing, [ErrNoImage] if the
// image is missing, and [ErrNoEngine] if the engine doesn't answer.
type Engine interface {
	// Info returns the version and the properties of the engine.
	Info(ctx context.Context) (Info, error)
	// Image describes an image that the engine already has. Pull fetches an image from its registry.
	Image(ctx context.Context, ref string) (Image, error)
	Pull(ctx context.Context, ref string) error

	// List returns the containers that have all of these labels, in any state. A label with the value "" matches any value.
	List(ctx context.Context, labels map[string]string) ([]Container, error)
	Inspect(ctx context.Context, id string) (Container, error)
	// Create makes a container and does not start it. If it fails, no container remains, unless the engine stopped answering.
	Create(ctx context.Context, spec Spec) (id string, err error)
	Start(ctx context.Context, id string) error
	Unpause(ctx context.Context, id string) error
	// Stop asks the container's first process to end, and kills it after the grace.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Remove kills the container if it runs, and removes it with its anonymous volumes. A missing container is not an error.
	Remove(ctx context.Context, id string) error

	// Exec runs a command in a running container.
	Exec(ctx context.Context, id string, spec ExecSpec) (Attachment, error)
	// CopyIn unpacks a tar archive below a directory of the container. It can't write to a mount that exists only inside the
	// container, such as a tmpfs.
	CopyIn(ctx context.Context, id, dir string, tar io.Reader) error
	// Logs copies the output of the container's first process. If follow is true, it continues until the process ends.
	Logs(ctx context.Context, id string, follow bool, stdout, stderr io.Writer) error

	// Volumes lists the volumes that have all of these labels and a name that begins with prefix.
	Volumes(ctx context.Context, prefix string, labels map[string]string) ([]Volume, error)

	Close() error
}

// FullEngine is an [Engine] with the additional calls that only the sandbox service needs.
type FullEngine interface {
	Engine

	Rename(ctx context.Context, id, name string) error
	// CopyOut packs a path of a container into a tar archive. Like CopyIn, it can't reach a mount that exists only inside the
	// container.
	CopyOut(ctx context.Context, id, path string) (io.ReadCloser, error)
	// CreateVolume makes a volume, or keeps an existing one of this name. RemoveVolume fails for a volume that a container uses.
	CreateVolume(ctx context.Context, name string, labels map[string]string) error
	RemoveVolume(ctx context.Context, name string) error
	// Watch calls changed whenever a container with all of these labels is created, ends or is removed, and for such events
	// in the last second. It calls began once, as soon as it can receive events. It returns an error when ctx ends or the
	// engine stops sending events.
	Watch(ctx context.Context, labels map[string]string, began, changed func()) error
}

// Cluster is an engine whose containers run on several machines, such as Kubernetes. It adds a volume with the helper to each
// container, and GateVolume returns the name of that volume. A file has the same inode on every machine, but its device number
// may differ.
type Cluster interface {
	FullEngine

	// Self returns the container of this process. Its ID is empty if this process does not run in the cluster.
	Self(ctx context.Context) (Container, error)
	GateVolume() (volume string)
}

// Volume is a named volume of the engine.
type Volume struct {
	Name    string            `json:"name"`
	Labels  map[string]string `json:"labels"`
	Created time.Time         `json:"created"`
}

// Attachment is a connection to a command that the engine runs. Read reads the command's output, and Write writes its input.
// Close closes the connection but does not end the command.
type Attachment interface {
	io.ReadWriteCloser
	// ErrorText returns the error text that the command or the engine has written. Call it after Read has failed.
	ErrorText() string
}

// Info describes an engine.
type Info struct {
	Version, API string // versions of the engine and of its API, such as "20.10.24" and "1.41"
	OS, Arch     string // Operating system and processor architecture of the engine, in Go's names, such as "linux" and "amd64".
	Driver       string // storage driver, such as "overlay2"
	UserMapping  string // How the engine maps container root to another user: "userns-remap" or "rootless"; "" if it doesn't.
}

// Image holds the properties of an image that sandboxes need.
type Image struct {
	Entrypoint []string
	Cmd        []string
	Labels     map[string]string
	Dir        string // Working directory; "" if the engine doesn't know it.
}

// State is the state of a container as the engine reports it.
type State string

// The values of State. Gone means that the engine no longer has the container.
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

// stateOf converts the name of a state to Docker's, because podman has other names for some states.
func stateOf(text string) State {
	switch state := State(strings.ToLower(text)); state {
	case "configured", "initialized":
		return Created
	case "stopping": // A stopping container runs until its first process has ended.
		return Running
	case "stopped":
		return Exited
	default:
		return state
	}
}

// Container holds the properties of a container that sandboxes need. A field marked Inspect is set only by [Engine.Inspect],
// not by [Engine.List].
type Container struct {
	ID        string            `json:"container"`
	Name      string            `json:"name"`
	Image     string            `json:"image"`
	Labels    map[string]string `json:"labels"`
	State     State             `json:"state"`
	Created   time.Time         `json:"created"`
	Started   time.Time         `json:"-"`    // Inspect: start time; zero if it was never started
	Finished  time.Time         `json:"-"`    // Inspect: end time; zero if it has never ended
	ExitCode  int               `json:"-"`    // Inspect: exit code of the first process
	OOMKilled bool              `json:"-"`    // Inspect: the kernel has killed a process for lack of memory
	User      string            `json:"user"` // Inspect: user of commands; "" for the image's user
	Dir       string            `json:"-"`    // Inspect: working directory of commands
	Mounts    []Mount           `json:"-"`
	Reason    string            `json:"-"` // engine's explanation of an unusual State; otherwise ""
}

// Mount is a mount of a container.
type Mount struct {
	Type             string // type of the mount: "bind", "volume" or "tmpfs"
	Source, Target   string
	ReadOnly         bool
	Options          string // options as in mount(8) for a tmpfs, otherwise as in docker run -v
	CreateHostParent bool   // Create a missing source directory, as docker run -v does.
}

// Spec describes a container to make. A zero field means the engine's or the image's default.
type Spec struct {
	Name, Image string
	Labels      map[string]string
	Entrypoint  []string // Entry point; nil for the image's.
	Cmd         []string
	Env         []string // variables, each as NAME=value
	User        string
	Dir         string // Working directory of commands. The engine only gets "/", and the helper enters Dir later, see [LabelDir].
	Hostname    string

	Init        bool // Run the engine's own init as process 1.
	Untrusted   bool // Skip the image's health check, and limit the log of process 1. The log does not count for Storage.
	CapDrop     []string
	CapAdd      []string
	SecurityOpt []string
	Privileged  bool
	ReadOnly    bool // Mount the root file system read-only.
	Devices     []string
	Groups      []string // supplementary groups of commands

	Mounts  []Mount // mounts, including tmpfs
	Storage map[string]string

	CPUs      float64
	Memory    int64 // memory limit in bytes
	PidsLimit int64
	ShmSize   int64             // size of /dev/shm in bytes
	Ulimits   map[string]string // resource limits by name, each as soft[:hard], as in docker run --ulimit

	Network  string // network of the container; "" for the engine's default
	PIDMode  string
	IPCMode  string
	UTSMode  string
	UserNS   string
	CgroupNS string
	DNS      []string
	Hosts    []string // entries for /etc/hosts, each host:ip
	Ports    []string // ports to publish, as in docker run -p

	Runtime string // runtime of the engine; "" for its default
	Restart string
}

// ExecSpec describes a command for [Engine.Exec].
type ExecSpec struct {
	Argv  []string
	User  string // user of the command; "" for the container's user
	Dir   string // working directory; "" for the container's
	Stdin bool
}

// TerminalSize is the size of a terminal.
type TerminalSize = mux.TerminalSize
