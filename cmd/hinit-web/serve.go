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

	"golang.org/x/sync/errgroup"

	"hinit/internal/cmdline"
	"hinit/internal/isolation/peer"
	"hinit/internal/metrics"
	"hinit/internal/proc"
	"hinit/internal/web"
)

// defaultAddress is the address of the page without an option.
const defaultAddress = "127.0.0.1:9120"

// minTokenLength is the minimum length of a token in bytes. An attacker could guess a shorter one.
const minTokenLength = 16

var serveVerb = verb{cmdline.Verb{
	Program: "hinit", Name: "web", Args: "[--listen ADDRESS] [--token-file FILE]", Summary: "serve the status page and metrics",
	Help: `The page is for reading, at http://` + defaultAddress + `/. With a token (HINIT_WEB_TOKEN, or a file) everything needs it, and services can be
started and stopped; with --listen unix:PATH whoever can open the socket controls. An address that other machines reach is refused without a
token, unless --without-token says that everybody may read. HINIT_WEB=1 makes a service of it; then the variables below count.`,
}, serve}

func serve(ctx context.Context, c *cmdline.Call) int {
	const doing = "serve the page"
	var listen, hosts cmdline.ListFlag
	c.Flags.Var(&listen, "listen", "`ADDRESS`: HOST:PORT or unix:PATH, several with commas (HINIT_WEB_LISTEN; "+defaultAddress+")")
	c.Flags.Var(&hosts, "host", "`NAME` of this machine in requests without a token or over a Unix socket, besides localhost (HINIT_WEB_HOST)")
	tokenFile := c.Flags.String("token-file", c.EnvOr("HINIT_WEB_TOKEN_FILE", ""), "`FILE` with the token (HINIT_WEB_TOKEN_FILE)")
	base := c.Flags.String("base-path", c.EnvOr("HINIT_WEB_BASE_PATH", ""), "`PATH` below which a reverse proxy shows the page (HINIT_WEB_BASE_PATH)")
	open := c.Flags.Bool("without-token", false, "let every client read")
	most := c.Flags.Int("max-services", metrics.MaxServices, "metrics for at most `N` services")
	if _, code, ok := c.Parse(0, 0); !ok {
		return code
	}
	if listen == nil {
		_ = listen.Set(c.EnvOr("HINIT_WEB_LISTEN", defaultAddress))
	}
	if hosts == nil {
		_ = hosts.Set(c.EnvOr("HINIT_WEB_HOST", ""))
	}
	token, err := readToken(c, *tokenFile)
	if err != nil {
		return c.ReportError(doing, err)
	}
	if *base = strings.TrimRight(*base, "/"); *base != "" && (!strings.HasPrefix(*base, "/") || strings.ContainsAny(*base, "?#%\\\"<> ") || strings.Contains(*base, "//")) {
		return c.Fail(cmdline.ExitUsage, "cannot %s: the base path %q is none; it looks like /hinit", doing, *base)
	}
	for _, address := range listen {
		if token == "" && !*open && !web.Loopback(address) {
			return c.Fail(cmdline.ExitUsage, "cannot %s: other machines reach %s, and there is no token; set HINIT_WEB_TOKEN_FILE, or --without-token to let everybody read", doing, address)
		}
	}
	h := newSource(c.Env)
	if err := h.requireToken(); err != nil && token == "" && !*open {
		return c.Fail(cmdline.ExitUsage, "cannot %s: %v", doing, err)
	}
	collected, err := metrics.Handler(newCollector(ctx, h, *most))
	if err != nil {
		return c.ReportError(doing, err)
	}
	log := slog.New(slog.NewTextHandler(c.Err, nil))
	s, err := web.New(web.Options{
		Hinit: h, Proc: h.procPath, LogReader: h.logReader, Programs: siblingPrograms(c.Env), Metrics: collected, Token: token, Base: *base, AllowedHosts: hosts, Open: *open, Log: log,
	})
	if err != nil {
		return c.ReportError(doing, err)
	}
	var listeners []net.Listener
	for _, address := range listen {
		l, err := web.Listen(ctx, address, h.mayConnect)
		if err != nil {
			return c.ReportError(doing, err)
		}
		defer l.Close()
		listeners = append(listeners, l)
	}
	handler := http.Handler(s)
	if token == "" && !*open {
		handler = h.refuseIsolated(s)
	}
	return c.ReportError(doing, serveAll(ctx, s, handler, listeners, c))
}

// tokenAdvice is the end of the error about isolated profiles and a page without a token.
const tokenAdvice = "set HINIT_WEB_TOKEN_FILE, or --without-token to let everybody read"

// refuseIsolated wraps page, and refuses all requests while profiles are isolated. It checks at each request, because a reload
// can isolate profiles later.
func (h *hinitSource) refuseIsolated(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.requireToken(); err != nil {
			http.Error(w, "cannot serve the status page: "+err.Error(), http.StatusForbidden)
			return
		}
		page.ServeHTTP(w, r)
	})
}

// mayConnect reports whether a process may use the page over a Unix socket. An isolated profile may not. The permissions of the
// socket don't suffice, because the profile may run as the owner of the socket.
func (h *hinitSource) mayConnect(c net.Conn) bool {
	cred, err := proc.PeerCredentials(c)
	return err == nil && (cred.Uid == 0 || h.requireToken() == nil || !peer.IsIsolated(c, int(cred.Pid)))
}

// serveAll serves the page on all listeners until ctx ends or a listener fails.
func serveAll(ctx context.Context, s *web.Server, handler http.Handler, listeners []net.Listener, c *cmdline.Call) error {
	server := web.NewHTTPServer(s)
	server.Handler = handler
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // clients cause these errors, so don't log them
	all, ctx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		all.Go(func() error { return server.Serve(l) })
		if l.Addr().Network() == "unix" {
			fmt.Fprintf(c.Out, "serving on unix:%s\n", l.Addr())
			continue
		}
		fmt.Fprintf(c.Out, "serving on http://%s%s/\n", l.Addr(), s.Base)
	}
	all.Go(func() error {
		s.Run(ctx)
		last, stop := context.WithTimeout(context.Background(), 2*time.Second)
		defer stop()
		if server.Shutdown(last) != nil {
			_ = server.Close()
		}
		return nil
	})
	if err := all.Wait(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// readToken returns the token in file if file is set, and otherwise the value of HINIT_WEB_TOKEN. Without a configured token it
// returns "".
func readToken(c *cmdline.Call, file string) (string, error) {
	token := c.EnvOr("HINIT_WEB_TOKEN", "")
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if token = strings.TrimSpace(string(text)); token == "" {
			return "", fmt.Errorf("there is no token in %q", file)
		}
	}
	if token != "" && len(token) < minTokenLength {
		return "", fmt.Errorf("the token has less than %d characters; make one with: head -c 24 /dev/urandom | base64", minTokenLength)
	}
	return token, nil
}
