// Command devrun is `make run`: it starts multipooler before a private
// PostgreSQL, or before $TARGET, prints the line that reaches it, and takes
// everything away at the first SIGINT or SIGTERM. A second signal hurries.
//
// It owns two children, the server (package pgserver) and multipooler. The
// kernel ends both if devrun itself is killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/multipooler/multipooler/test/pgtest/pgserver"
)

const (
	user, password, database = "app", "app", "app" // the sample's, on loopback only

	defaultListen = "127.0.0.1:6432"
	defaultHTTP   = "127.0.0.1:9632"

	readyTimeout = 30 * time.Second
	readyPause   = 20 * time.Millisecond // between two looks at /startupz
	stopTimeout  = 60 * time.Second      // then multipooler is killed
)

func main() {
	// Children die with the thread that started them (Pdeathsig); the main
	// thread lives as long as the process.
	runtime.LockOSThread()
	bin := flag.String("bin", "bin/multipooler", "the binary to run")
	flag.Parse()

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code, err := run(signals, *bin, os.Getenv("TARGET"), os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "make run:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(signals <-chan os.Signal, bin, target string, out io.Writer) (code int, err error) {
	var what, login string // of the lines to print; login leaves out host and port
	if target == "" {
		server, err := startServer(signals)
		if err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		target = server.URL(user, database)
		what = "PostgreSQL " + server.Version
		login = "PGPASSWORD=" + password + " psql -h %s -p %s -U " + user + " " + database
	} else {
		what = "the target"
		if login, err = loginOf(target); err != nil {
			return 1, err
		}
	}

	listen := address("MULTIPOOLER_LISTEN", defaultListen)
	web := address("MULTIPOOLER_HTTP_LISTEN", defaultHTTP)
	child := exec.Command(bin, "--listen", listen, "--http-listen", web)
	child.Env = append(os.Environ(), "MULTIPOOLER_TARGET="+target) // not in ps
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	// Ctrl-C reaches the whole group of the terminal; the child gets it from us.
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := child.Start(); err != nil {
		return 1, fmt.Errorf("start multipooler: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()

	ready, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- waitStarted(ready, "http://"+web+"/startupz") }()

	var stopping <-chan time.Time
	for {
		select {
		case err := <-started:
			if err != nil {
				_ = child.Process.Kill()
				return 1, errors.Join(err, ignoreExit(<-ended))
			}
			host, port, _ := net.SplitHostPort(listen)
			fmt.Fprintf(out, "\nmultipooler is in front of %s. In another terminal:\n\n  "+login+"\n  curl http://%s/metrics\n\nCtrl-C ends it and leaves nothing behind.\n\n",
				what, host, port, web)
		case sig := <-signals:
			_ = child.Process.Signal(sig)
			if stopping == nil {
				stopping = time.After(stopTimeout)
			}
		case <-stopping:
			_ = child.Process.Kill()
		case err := <-ended:
			if stopping != nil {
				return 0, ignoreExit(err)
			}
			return 1, fmt.Errorf("multipooler ended: %w", orExit0(err))
		}
	}
}

var errExit0 = errors.New("exit status 0, though nobody asked it to")

func orExit0(err error) error {
	if err == nil {
		return errExit0
	}
	return err
}

// ignoreExit keeps only failures to wait: how a child ends that was told to
// end (cut sessions are exit code 2) is its own business.
func ignoreExit(err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// startServer is startPostgreSQL, interruptible.
func startServer(signals <-chan os.Signal) (*pgserver.Server, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	type result struct {
		server *pgserver.Server
		err    error
	}
	done := make(chan result, 1)
	go func() {
		server, err := startPostgreSQL(ctx)
		done <- result{server, err}
	}()
	for {
		select {
		case r := <-done:
			if r.err == nil && ctx.Err() != nil {
				return nil, errors.Join(context.Cause(ctx), r.server.Close())
			}
			return r.server, r.err
		case sig := <-signals:
			cancel(fmt.Errorf("interrupted by %v", sig))
		}
	}
}

// startPostgreSQL installs the server where there is none, if it can.
func startPostgreSQL(ctx context.Context) (*pgserver.Server, error) {
	if _, err := pgserver.Find(); errors.Is(err, pgserver.ErrNotFound) {
		install := exec.CommandContext(ctx, "scripts/deps.sh", "postgres")
		install.Stdout, install.Stderr = os.Stderr, os.Stderr
		if install.Run() != nil {
			return nil, err
		}
	}
	return pgserver.Start(ctx, pgserver.Options{
		Users:      []pgserver.User{{Name: user, Password: password}},
		Databases:  []string{database},
		NoTemplate: true,
	})
}

// loginOf is the psql line for a target, with the host and port left open and
// without its password: that one is not ours to print.
func loginOf(target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		// url.Parse quotes the text, which holds a password.
		return "", errors.New("TARGET is not a URL like postgres://user:password@host:port/dbname")
	}
	login := "psql -h %s -p %s"
	if name := u.User.Username(); name != "" {
		login += " -U " + quote(name)
	}
	if db := strings.TrimPrefix(u.Path, "/"); db != "" {
		login += " " + quote(db)
	}
	return login + "   # the password of TARGET", nil
}

// quote makes one word of the shell, and one of Printf.
func quote(word string) string {
	word = strings.ReplaceAll(word, "%", "%%")
	if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.%") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// address is what the environment says, else def, else a free port where
// somebody has def's.
func address(env, def string) string {
	if set := os.Getenv(env); set != "" {
		return set
	}
	for _, try := range []string{def, "127.0.0.1:0"} {
		if ln, err := net.Listen("tcp", try); err == nil {
			defer ln.Close()
			return ln.Addr().String()
		}
	}
	return def // multipooler will say what is wrong
}

// waitStarted returns when /startupz answers 200.
func waitStarted(ctx context.Context, startupz string) error {
	pause := time.NewTicker(readyPause)
	defer pause.Stop()
	last := errors.New("no answer")
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, startupz, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("multipooler did not start within %v: %s: %w", readyTimeout, startupz, last)
		}
	}
}
