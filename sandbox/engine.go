package sandbox

import (
	"context"
	"io"
	"strings"
	"time"

	"hinit/sandbox/mux"
)

// Engine is the interface to a container engine, with the calls that sandboxes need. Its methods are safe for concurrent use, and
// return when their context ends. An error names the request and the object. It wraps [ErrGone] if the container is missing,
// [ErrNoImage] if the image is missing, and [ErrNoEngine] if the engine doesn't answer.
type Engine interface {
	// Info returns the version and the properties of the engine.
	Info(ctx context.Context) (Info, error)
	// Image describes an image that the engine already has. Pull fetches an image.
	Image(ctx context.Context, ref string) (Image, error)
	Pull(ctx context.Context, ref string) error

	// List returns the containers with all of these labels, in any state. A label with the value "" matches any value.
	List(ctx context.Context, labels map[string]string) ([]Container, error)
	Inspect(ctx context.Context, id string) (Container, error)
	// Create makes a container, but does not start it. If it fails, no container remains, unless the engine stopped answering.
	Create(ctx context.Context, spec Spec) (id string, err error)
	Start(ctx context.Context, id string) error
	Unpause(ctx context.Context, id string) error
	// Stop asks the container's first process to end, and kills it after the grace period.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Remove kills the container if it is running, and removes it with its anonymous volumes. A missing container is not an error.
	Remove(ctx context.Context, id string) error

	// Exec runs a command in a running container.
	Exec(ctx context.Context, id string, spec ExecSpec) (Attachment, error)
	// CopyIn unpacks a tar archive below a directory of the container. It can't write to mounts that exist only inside the
	// container, such as a tmpfs.
	CopyIn(ctx context.Context, id, dir string, tar io.Reader) error
	// Logs copies the output of the container's first process. If follow is true, it continues until the process ends.
	Logs(ctx context.Context, id string, follow bool, stdout, stderr io.Writer) error

	// Volumes lists the volumes with all of these labels and with names that begin with prefix.
	Volumes(ctx context.Context, prefix string, labels map[string]string) ([]Volume, error)

	Close() error
}

// FullEngine adds the calls to Engine that only the sandbox service needs.
type FullEngine interface {
	Engine

	Rename(ctx context.Context, id, name string) error
	// CopyOut packs a path of a container into a tar archive. Like CopyIn, it can't reach mounts that exist only inside the
	// container.
	CopyOut(ctx context.Context, id, path string) (io.ReadCloser, error)
	// CreateVolume creates a volume, or keeps an existing one with this name. RemoveVolume fails for a volume that a container uses.
	CreateVolume(ctx context.Context, name string, labels map[string]string) error
	RemoveVolume(ctx context.Context, name string) error
	// Watch calls changed whenever a container with all of these labels is created, ends or is removed. It includes the events of
	// the last second. It calls the function began once, as soon as it can receive events. It returns an error when the context
	// ends or the engine stops sending events.
	Watch(ctx context.Context, labels map[string]string, began, changed func()) error
}

// Cluster is an engine whose containers run on other machines. The engine itself mounts a volume with the helper into each
// container. The method Gate returns the name of this volume. A file has the same inode number on every machine, but the device
// number may differ.
type Cluster interface {
	FullEngine

	// Self returns the container of this process. Its ID is empty if this process does not run in the cluster.
	Self(ctx context.Context) (Container, error)
	Gate() (volume string)
}

// Volume is one of the engine's named volumes.
type Volume struct {
	Name    string            `json:"name"`
	Labels  map[string]string `json:"labels"`
	Created time.Time         `json:"created"`
}

// An Attachment is a connection to a command that the engine runs, with its standard input and output. Close closes the
// connection, but does not end the command.
type Attachment interface {
	io.ReadWriteCloser
	CloseWrite() error
	// Said returns the error text that the command or the engine has written. Call it after Read has failed.
	Said() string
}

// Info describes an engine.
type Info struct {
	Version, API string // such as "20.10.24" and "1.41"
	OS, Arch     string // named as in Go, such as "linux" and "amd64"
	Driver       string // storage driver, such as "overlay2"
	UserMapping  string // how the engine maps root in containers to another user of the host: "userns-remap", "rootless" or ""
}

// Image holds the properties of an image that sandboxes need.
type Image struct {
	Entrypoint []string
	Cmd        []string
	Labels     map[string]string
}

// State is the state of a container, as the engine reports it.
type State string

// The states of a container. Gone means that the engine does not know the container any more.
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

// stateOf converts an engine's state name to Docker's, because podman uses different names for some states.
func stateOf(text string) State {
	switch state := State(strings.ToLower(text)); state {
	case "configured", "initialized":
		return Created
	case "stopping": // the container runs until its first process has ended
		return Running
	case "stopped":
		return Exited
	default:
		return state
	}
}

// Container holds the properties of a container that sandboxes need. Only Inspect fills in the fields that are marked with
// Inspect.
type Container struct {
	ID        string            `json:"container"`
	Name      string            `json:"name"`
	Image     string            `json:"image"`
	Labels    map[string]string `json:"labels"`
	State     State             `json:"state"`
	Created   time.Time         `json:"created"`
	Started   time.Time         `json:"-"`    // set by Inspect: start time; zero if the container was never started
	Finished  time.Time         `json:"-"`    // set by Inspect: end time; zero if the container has never ended
	ExitCode  int               `json:"-"`    // set by Inspect: exit code of the first process
	OOMKilled bool              `json:"-"`    // set by Inspect: the kernel has killed a process for lack of memory
	User      string            `json:"user"` // set by Inspect: user of commands, "" for the image's user
	Mounts    []Mount           `json:"-"`
	Reason    string            `json:"-"` // the engine's explanation of an unusual State, otherwise ""
}

// Mount is a mount of a container.
type Mount struct {
	Type             string // "bind", "volume" or "tmpfs"
	Source, Target   string
	ReadOnly         bool
	Options          string // mount(8) options for a tmpfs, otherwise the options of docker run -v
	CreateHostParent bool   // create a missing source, as docker run -v does
}

// Spec describes a container to create.
type Spec struct {
	Name, Image string
	Labels      map[string]string
	Entrypoint  []string // nil for the image's entry point
	Cmd         []string
	Env         []string // NAME=value
	User        string
	Dir         string // working directory of commands
	Hostname    string

	Init        bool // the engine runs its own init as process 1
	CapDrop     []string
	CapAdd      []string
	SecurityOpt []string
	Privileged  bool
	ReadOnly    bool // the root file system is read-only
	Devices     []string
	Groups      []string // supplementary groups

	Mounts  []Mount // all mounts, including tmpfs
	Storage map[string]string

	CPUs      float64
	Memory    int64 // limit on the memory in bytes
	PidsLimit int64
	ShmSize   int64             // size of /dev/shm in bytes
	Ulimits   map[string]string // name → soft[:hard], as in docker run --ulimit

	Network  string // name of a network; "" for the engine's default
	PIDMode  string
	IPCMode  string
	UTSMode  string
	UserNS   string
	CgroupNS string
	DNS      []string
	Hosts    []string // entries for /etc/hosts, each as host:ip
	Ports    []string // ports to publish, as in docker run -p

	Runtime string // name of a runtime; "" for the engine's default
	Restart string
}

// ExecSpec describes a command that the engine runs in a container.
type ExecSpec struct {
	Argv  []string
	User  string // "" for the container's user
	Stdin bool
}

// Size is the size of a terminal.
type Size = mux.TerminalSize
