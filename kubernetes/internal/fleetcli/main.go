// Package fleetcli is the command line of hinit-fleet. It owns no goroutine.
package fleetcli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	hinit "hinit/client"
	"hinit/client/dial"
	"hinit/kubernetes/internal/controller"
	"hinit/kubernetes/internal/host"
)

// The exit codes, as hinit has them.
const (
	exitDone    = 0
	exitFailed  = 1
	exitUsage   = 2
	exitNotUp   = 3
	exitUnknown = 6
)

// errCode is an error with an exit code of its own.
type errCode struct {
	code int
	error
}

// call is one call of the command line.
type call struct {
	out, err io.Writer
	flags    *flag.FlagSet

	config    string // the kubeconfig, "" for the usual places
	namespace string // "" for the one of the kubeconfig
	debug     bool
}

// verb is a command.
type verb struct {
	args, doing string
	run         func(ctx context.Context, c *call, words []string) error
}

// verbs are the commands by their names.
var verbs = map[string]verb{
	"controller": {"", "decide for the pools of the cluster", runController},
	"top":        {"[-once]", "show pools and hosts, again and again", runTop},
	"status":     {"[PROFILE...]", "show profiles", runStatus},
	"logs":       {"[-f] [-lines N] PROFILE", "show the log of a gateway", runLogs},
	"explain":    {"PROFILE", "tell why a profile is as it is", runExplain},
	"move":       {"PROFILE [HOST]", "move a profile to HOST and keep it there; without HOST any host may have it", runMove},
	"drain":      {"[-undo] HOST", "have a host give all its profiles away", runDrain},
	"rollout":    {"POOL [IMAGE]", "give a pool an image, and wait until all hosts have it", runRollout},
	"host":       {"", "carry out, in this pod, what the profiles of the cluster say", runHost},
}

// errUsage is a wrong command line.
type errUsage string

func (e errUsage) Error() string { return string(e) }

// Main runs a command line and returns the exit code. SIGTERM and SIGINT end it.
func Main(argv []string, out, errs io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	name := ""
	if len(argv) > 1 {
		name = argv[1]
	}
	v, known := verbs[name]
	if !known {
		usage(errs)
		return exitUsage
	}
	c := &call{out: out, err: errs, flags: flag.NewFlagSet("hinit-fleet "+name, flag.ContinueOnError)}
	c.flags.SetOutput(errs)
	c.flags.StringVar(&c.config, "kubeconfig", "", "the kubeconfig `FILE`, instead of the usual places")
	c.flags.StringVar(&c.namespace, "namespace", "", "the `NAMESPACE`, instead of the one of the kubeconfig")
	c.flags.StringVar(&c.namespace, "n", "", "the same as -namespace")
	c.flags.BoolVar(&c.debug, "debug", false, "log every step")
	if err := v.run(ctx, c, argv[2:]); err != nil {
		if err == flag.ErrHelp {
			return exitDone
		}
		fmt.Fprintln(errs, "hinit-fleet:", err)
		return codeOf(err)
	}
	return exitDone
}

// codeOf returns the exit code of an error.
func codeOf(err error) int {
	if coded, is := errors.AsType[errCode](err); is {
		return coded.code
	}
	if _, wrong := errors.AsType[errUsage](err); wrong {
		return exitUsage
	}
	return exitFailed
}

// parse reads flags and words, in any order, and checks the number of words.
func (c *call) parse(args []string, least, most int) ([]string, error) {
	var words []string
	for len(args) > 0 {
		if err := c.flags.Parse(args); err != nil {
			if err == flag.ErrHelp {
				return nil, err
			}
			return nil, errUsage(err.Error())
		}
		args = c.flags.Args()
		if len(args) > 0 {
			words, args = append(words, args[0]), args[1:]
		}
	}
	if len(words) < least || most >= 0 && len(words) > most {
		return nil, errUsage(fmt.Sprintf("cannot run %s: %d words are too few or too many; hinit-fleet shows what it takes", c.flags.Name(), len(words)))
	}
	return words, nil
}

// begin reads the command line of a verb as parse does, and connects to the API server.
func (c *call) begin(args []string, least, most int) (f *fleet, words []string, err error) {
	if words, err = c.parse(args, least, most); err != nil {
		return nil, nil, err
	}
	f, err = c.fleet()
	return f, words, err
}

func (c *call) log() *slog.Logger {
	level := slog.LevelInfo
	if c.debug {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(c.err, &slog.HandlerOptions{Level: level}))
}

// api returns the configuration of the API server, and the namespace.
func (c *call) api() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.config
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("cannot find the API server: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if c.namespace != "" {
		namespace = c.namespace
	}
	return config, namespace, err
}

func runController(ctx context.Context, c *call, args []string) error {
	var only string
	c.flags.StringVar(&only, "only", "", "control the pools of one `NAMESPACE`")
	if _, err := c.parse(args, 0, 0); err != nil {
		return err
	}
	config, namespace, err := c.api()
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 400, 800 // the API server has limits of its own
	return controller.Run(ctx, controller.Settings{API: config, Namespace: namespace, Only: only, Log: c.log()})
}

func runHost(ctx context.Context, c *call, args []string) error {
	if _, err := c.parse(args, 0, 0); err != nil {
		return err
	}
	if err := host.Refuse(); err != nil {
		return err
	}
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // no other process of its user reads the tokens from its memory; it can't fail
	init, home, err := reach(ctx, c.log())
	if err != nil {
		return err
	}
	s, err := host.InPod(os.Getenv, home, init, c.log())
	if err != nil {
		return err
	}
	return host.Run(ctx, s)
}

// reach waits for the hinit of the pod, whose container begins later. It returns its volume too.
func reach(ctx context.Context, log *slog.Logger) (init *dial.Client, home string, err error) {
	for said := ""; ; {
		var st hinit.Status
		if init, err = dial.Find("", os.LookupEnv); err == nil {
			st, err = init.Status(ctx)
		}
		if err == nil {
			return init, st.Init.Home, nil
		}
		if text := err.Error(); text != said {
			log.Info("waits for hinit", "reason", text)
			said = text
		}
		select {
		case <-ctx.Done():
			return nil, "", ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
