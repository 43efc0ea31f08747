// Package fleetcli is the command line of hinit-fleet. It owns the goroutine of [cmdline.InterruptibleContext], and one for each
// command that it runs outside of the fleet during an import or export. They end before [Main] returns.
package fleetcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	hinit "hinit/client"
	"hinit/client/dial"
	"hinit/internal/cmdline"
	"hinit/kubernetes/internal/controller"
	"hinit/kubernetes/internal/host"
)

// codeError is an error with an exit code.
type codeError struct {
	code int
	error
}

// printedError is the exit code for a command line whose help or usage error was already printed.
type printedError int

func (printedError) Error() string { return "" }

// call is one invocation of the command line.
type call struct {
	*cmdline.Call

	config    string // Path of the kubeconfig file; "" for the default locations.
	namespace string // Kubernetes namespace; "" for the namespace in the kubeconfig.
	debug     bool
}

// verb is a subcommand of hinit-fleet. The help shows args, its arguments, and doing, its purpose.
type verb struct {
	name, args, summary string
	run                 func(ctx context.Context, c *call) error
}

func verbs() []verb {
	return []verb{
		{"top", "[--once]", "show pools and hosts, again and again", runTop},
		{"status", "[PROFILE...]", "show profiles", runStatus},
		{"logs", "[-f] [--lines N] PROFILE", "show the log of a gateway", runLogs},
		{"explain", "PROFILE", "tell why a profile is as it is", runExplain},
		{"move", "PROFILE [HOST]", "move a profile to HOST and keep it there; without HOST any host may have it", runMove},
		{"drain", "[--undo] HOST", "have a host give all its profiles away", runDrain},
		{"rollout", "POOL [IMAGE]", "give a pool an image, and wait until all hosts have it", runRollout},
		{"import", "POOL [NAME[=NEW]...] [--from COMMAND] [--dry-run]", "make profiles of a hinit outside profiles of a pool, all without a NAME", runImport},
		{"export", "PROFILE... [--to COMMAND] [--dry-run]", "give profiles to a hinit outside; --pool POOL gives all", runExport},
		{"controller", "[--metrics HOST:PORT]", "decide for the pools of the cluster", runController},
		{"host", "", "carry out, in this pod, what the profiles of the cluster say", runHost},
	}
}

// Main executes a command line and returns the exit code. SIGTERM and SIGINT cancel it.
func Main(argv []string, out, errs io.Writer) int {
	ctx, stop := cmdline.InterruptibleContext()
	defer stop()
	name := strings.Join(argv[min(len(argv), 1):min(len(argv), 2)], "")
	if slices.Contains([]string{"help", "-h", "--help", "-help"}, name) {
		usage(out)
		return cmdline.ExitDone
	}
	for _, v := range verbs() {
		if v.name == name {
			described := cmdline.Verb{Program: "hinit-fleet", Name: v.name, Args: v.args, Summary: v.summary}
			c := &call{Call: cmdline.NewCall(described, argv[2:], out, errs)}
			c.Flags.StringVar(&c.config, "kubeconfig", "", "the kubeconfig `FILE`, instead of the usual places")
			c.Flags.StringVar(&c.namespace, "namespace", "", "the `NAMESPACE`, instead of the one of the kubeconfig")
			c.Flags.StringVar(&c.namespace, "n", "", "the same `NAMESPACE`")
			c.Flags.BoolVar(&c.debug, "debug", false, "log every step")
			return c.printError(v.run(ctx, c))
		}
	}
	usage(errs)
	return cmdline.ExitUsage
}

func (c *call) printError(err error) int {
	if code, is := errors.AsType[printedError](err); is {
		return int(code)
	}
	if coded, is := errors.AsType[codeError](err); is {
		return c.Fail(coded.code, "%v", err)
	}
	return c.ReportError("run "+c.Command(), err)
}

func usage(w io.Writer) {
	fmt.Fprint(w, "hinit-fleet shows and changes a fleet of agents on Kubernetes.\n\n")
	for _, v := range verbs() {
		fmt.Fprintf(w, "  hinit-fleet %-46s %s\n", strings.TrimSpace(v.name+" "+v.args), v.summary)
	}
	fmt.Fprint(w, "\nhinit-fleet COMMAND --help tells more.\n")
}

// parseArgs parses the flags and returns the other words. There must be at least atLeast and at most atMost words; an atMost
// of -1 means any number. If their number or a flag is wrong, parseArgs prints the usage and returns a [printedError].
func (c *call) parseArgs(atLeast, atMost int) ([]string, error) {
	words, code, ok := c.Parse(atLeast, atMost)
	if !ok {
		return nil, printedError(code)
	}
	return words, nil
}

// connect parses the command line like [call.parseArgs], and connects to the API server.
func (c *call) connect(atLeast, atMost int) (f *fleet, words []string, err error) {
	if words, err = c.parseArgs(atLeast, atMost); err != nil {
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
	return slog.New(slog.NewTextHandler(c.Err, &slog.HandlerOptions{Level: level}))
}

// api returns the configuration of the client for the API server, and the namespace.
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

func runController(ctx context.Context, c *call) error {
	metrics := c.Flags.String("metrics", "", "serve metrics for Prometheus on `HOST:PORT`")
	if _, err := c.parseArgs(0, 0); err != nil {
		return err
	}
	config, namespace, err := c.api()
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 400, 800 // The API server itself limits the rate, so allow many requests.
	return controller.Run(ctx, controller.Settings{API: config, Namespace: namespace, Metrics: *metrics, Log: c.log()})
}

func runHost(ctx context.Context, c *call) error {
	if _, err := c.parseArgs(0, 0); err != nil {
		return err
	}
	if err := host.CheckNotRoot(); err != nil {
		return err
	}
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // Prevent other processes of the user from reading the tokens in this process's memory.
	init, home, err := awaitInit(ctx, c.log())
	if err != nil {
		return err
	}
	s, err := host.InPod(os.Getenv, home, init, c.log())
	if err != nil {
		return err
	}
	return host.Run(ctx, s)
}

func awaitInit(ctx context.Context, log *slog.Logger) (init *dial.Client, home string, err error) {
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
