package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"hinit/internal/metrics"
	"hinit/internal/web"
)

// usualAddress is where the page is unless it is told otherwise.
const usualAddress = "127.0.0.1:9120"

// shortToken is how many bytes a token has at least: it can be guessed from afar.
const shortToken = 16

func serveVerb() verb {
	return verb{
		name: "web", args: "[--listen ADDRESS] [--token-file FILE]", summary: "serve the status page and metrics",
		help: `The page is for reading, at http://` + usualAddress + `/. With a token (HINIT_WEB_TOKEN, or a file) everything needs it, and services can be
started and stopped; with --listen unix:PATH whoever can open the socket controls. An address that other machines reach is refused without a
token, unless --without-token says that everybody may read. HINIT_WEB=1 makes a service of it; then the variables below count.`,
		run: serve,
	}
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *list) Set(text string) error {
	*l = append(*l, strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })...)
	return nil
}

// variable returns the value of a variable, or another one.
func (c *call) variable(name, otherwise string) string {
	if v, ok := c.env(name); ok && v != "" {
		return v
	}
	return otherwise
}

func serve(ctx context.Context, c *call) int {
	const doing = "serve the page"
	var listen, hosts list
	c.flags.Var(&listen, "listen", "`ADDRESS`: HOST:PORT or unix:PATH, several with commas (HINIT_WEB_LISTEN; "+usualAddress+")")
	c.flags.Var(&hosts, "host", "`NAME` of this machine in requests without a token, besides localhost (HINIT_WEB_HOST)")
	tokenFile := c.flags.String("token-file", c.variable("HINIT_WEB_TOKEN_FILE", ""), "`FILE` with the token (HINIT_WEB_TOKEN_FILE)")
	base := c.flags.String("base-path", c.variable("HINIT_WEB_BASE_PATH", ""), "`PATH` below which a reverse proxy shows the page (HINIT_WEB_BASE_PATH)")
	open := c.flags.Bool("without-token", false, "let everybody who reaches it read")
	most := c.flags.Int("max-services", metrics.MostServices, "metrics for at most `N` services")
	if code, ok := c.parse(); !ok {
		return code
	}
	if listen == nil {
		_ = listen.Set(c.variable("HINIT_WEB_LISTEN", usualAddress))
	}
	if hosts == nil {
		_ = hosts.Set(c.variable("HINIT_WEB_HOST", ""))
	}
	token, err := c.token(*tokenFile)
	if err != nil {
		return c.failed(doing, err)
	}
	if *base = strings.TrimRight(*base, "/"); *base != "" && (!strings.HasPrefix(*base, "/") || strings.ContainsAny(*base, "?#%\\\"<> ") || strings.Contains(*base, "//")) {
		return c.fail(exitUsage, "cannot %s: the base path %q is none; it looks like /hinit", doing, *base)
	}
	for _, address := range listen {
		if token == "" && !*open && !web.Loopback(address) {
			return c.fail(exitUsage, "cannot %s: other machines reach %s, and there is no token; set HINIT_WEB_TOKEN_FILE, or --without-token to let everybody read", doing, address)
		}
	}
	h := &hinit{env: c.env}
	collected, err := metrics.Handler(newCollector(ctx, h, *most))
	if err != nil {
		return c.failed(doing, err)
	}
	log := slog.New(slog.NewTextHandler(c.err, nil))
	s, err := web.New(web.Options{
		Hinit: h, Proc: h.proc, LogsAs: h.logsAs, Beside: c.beside(), Metrics: collected, Token: token, Base: *base, Hosts: hosts, Open: *open, Log: log,
	})
	if err != nil {
		return c.failed(doing, err)
	}
	var listeners []net.Listener
	for _, address := range listen {
		l, err := web.Listen(ctx, address)
		if err != nil {
			return c.failed(doing, err)
		}
		defer l.Close()
		listeners = append(listeners, l)
	}
	return c.failedUnlessEnded(doing, serveAll(ctx, s, listeners, c))
}

func (c *call) failedUnlessEnded(doing string, err error) int {
	if err == nil {
		return exitDone
	}
	return c.failed(doing, err)
}

// serveAll serves until ctx ends or a listener fails.
func serveAll(ctx context.Context, s *web.Server, listeners []net.Listener, c *call) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := web.NewHTTPServer(s)
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // what clients do wrong is no fault
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- server.Serve(l) }()
		if l.Addr().Network() == "unix" {
			fmt.Fprintf(c.out, "serving on unix:%s\n", l.Addr())
			continue
		}
		fmt.Fprintf(c.out, "serving on http://%s%s/\n", l.Addr(), s.Base)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	cancel()
	<-ended
	last, stop := context.WithTimeout(context.Background(), 2*time.Second)
	defer stop()
	if server.Shutdown(last) != nil {
		_ = server.Close()
	}
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// token reads the token from its variable or file.
func (c *call) token(file string) (string, error) {
	token := c.variable("HINIT_WEB_TOKEN", "")
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		token = strings.TrimSpace(string(text))
		if token == "" {
			return "", fmt.Errorf("there is no token in %q", file)
		}
	}
	if token != "" && len(token) < shortToken {
		return "", fmt.Errorf("the token has less than %d characters; make one with: head -c 24 /dev/urandom | base64", shortToken)
	}
	return token, nil
}
