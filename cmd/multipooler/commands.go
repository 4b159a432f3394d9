package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/multipooler/multipooler/config"
)

// check names every mistake, one line each with its place; without mistakes, it
// says what would be served.
func check(args, env []string, out io.Writer) exitCode {
	c, err := config.Load(config.Input{Args: args, Env: env})
	n := printMistakes(out, "", err)
	for _, note := range c.Notes {
		kind := "note"
		if note.Warn {
			kind = "warning"
		}
		fmt.Fprintf(out, "%s: %s\n", kind, note)
	}
	switch n {
	case 0:
		fmt.Fprintln(out, "ok: "+summary(c))
		return exitDrained
	case 1:
		fmt.Fprintln(out, "1 mistake")
	default:
		fmt.Fprintf(out, "%d mistakes\n", n)
	}
	return exitFailed
}

// summary is a valid configuration in one line.
func summary(c *config.Config) string {
	var listen, targets []string
	for _, l := range c.Listeners() {
		listen = append(listen, l.String())
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		targets = append(targets, fmt.Sprintf("%s at %s for databases %s with at most %d connections",
			t.Name, t.Address(), strings.Join(t.Databases, ","), t.Capacity))
	}
	return fmt.Sprintf("clients log in on %s by %s; target %s; pool mode %s",
		strings.Join(listen, ", "), c.Auth.Type, strings.Join(targets, "; target "), c.PoolMode)
}

// effective prints what is in force, also when it has mistakes.
func effective(args, env []string, out, stderr io.Writer) exitCode {
	c, err := config.Load(config.Input{Args: args, Env: env})
	if printErr := c.WriteEffective(out); printErr != nil {
		fmt.Fprintln(stderr, "multipooler:", printErr)
		return exitFailed
	}
	if printMistakes(stderr, "multipooler: ", err) > 0 {
		return exitFailed
	}
	return exitDrained
}

// version prints what the binary was built from.
func version(out io.Writer) exitCode {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	fmt.Fprintln(out, versionLine(info))
	return exitDrained
}

func versionLine(info *debug.BuildInfo) string {
	module, commit, dirty := info.Main.Version, "unknown", ""
	if module == "" {
		module = "(devel)"
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = ", modified"
		}
	}
	return fmt.Sprintf("multipooler %s (commit %s%s, %s, %s/%s)", module, commit, dirty, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

const (
	defaultWait  = 60 * time.Second
	waitInterval = 200 * time.Millisecond
	waitRequest  = 2 * time.Second // one request; a process that hangs is asked again
	maxAnswer    = 4 << 10         // bytes of an answer that are shown
)

// wait asks /startupz until it answers 200: for containers without a shell.
func wait(args, env []string, out, stderr io.Writer) exitCode {
	timeout, args, err := cutTimeout(args)
	if err != nil {
		fmt.Fprintln(stderr, "multipooler: --timeout:", err)
		return exitFailed
	}
	c, err := config.Load(config.Input{Args: args, Env: env, NoTarget: true})
	if printMistakes(stderr, "multipooler: ", err) > 0 {
		return exitFailed
	}
	url, err := startupURL(c.HTTPListen)
	if err != nil {
		fmt.Fprintln(stderr, "multipooler:", err)
		return exitFailed
	}
	ctx, stop := context.WithTimeout(context.Background(), timeout)
	defer stop()
	if err := waitFor(ctx, url, ask); err != nil {
		fmt.Fprintf(stderr, "multipooler: not started after %s: %v\n", timeout, err)
		return exitFailed
	}
	fmt.Fprintln(out, "started")
	return exitDrained
}

// cutTimeout takes --timeout out of the arguments; the others are the daemon's.
func cutTimeout(args []string) (time.Duration, []string, error) {
	timeout := defaultWait
	var rest []string
	for i := 0; i < len(args); i++ {
		text, ok := strings.CutPrefix(args[i], "--timeout=")
		if args[i] == "--timeout" {
			if i+1 == len(args) {
				return 0, nil, errors.New("its value is missing")
			}
			i++
			text, ok = args[i], true
		}
		if !ok {
			rest = append(rest, args[i])
			continue
		}
		d, err := config.ParseDuration(text)
		if err != nil {
			return 0, nil, err
		}
		timeout = d
	}
	return timeout, rest, nil
}

// startupURL is where a daemon with this http_listen answers from this machine.
func startupURL(listen string) (string, error) {
	if listen == "" {
		return "", errors.New("http_listen is off, there is nothing to ask")
	}
	l, err := config.ParseListener(listen)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(l.Host); l.Host == "" || ip != nil && ip.IsUnspecified() {
		l.Host = "localhost"
	}
	return "http://" + l.Address() + "/startupz", nil
}

// waitFor asks until there is a 200 or ctx ends; its error is the last answer.
func waitFor(ctx context.Context, url string, ask func(ctx context.Context, url string) error) error {
	tick := time.NewTicker(waitInterval)
	defer tick.Stop()
	for {
		last := ask(ctx, url)
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}

// ask makes one request; anything but 200 is an error with the answer's text.
func ask(ctx context.Context, url string) error {
	ctx, stop := context.WithTimeout(ctx, waitRequest)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// No proxy and no kept connection: the peer is on this machine, and new
	// each time.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}
