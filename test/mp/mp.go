package mp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	startLimit = 30 * time.Second // from exec to /startupz
	stopLimit  = 30 * time.Second // from SIGTERM at the end of a test to the exit
)

// Options of a process. The zero value serves nothing: name a Target or a
// Config with targets.
type Options struct {
	// Target is the server's URL. It travels in the environment.
	Target string
	// Args are further flags; they win over what Start sets itself, which is
	// --listen 127.0.0.1:0 (unless Listen says otherwise) and a free HTTP port.
	Args []string
	// Listen replaces the TCP listener on 127.0.0.1.
	Listen []string
	// Env are further variables, NAME=value.
	Env []string
	// Config is the text of a configuration file.
	Config string
	// Passwords of users for URL; the Target's own user is known.
	Passwords map[string]string
	// Secrets that must never be in the log, beside all passwords.
	Secrets []string
	// MayFail lets the test judge a process that does not start: Start returns
	// once it has ended.
	MayFail bool
}

// Instance is a running multipooler.
type Instance struct {
	// Listeners are the bound addresses in the order of --listen.
	Listeners []string
	// HTTPAddr is where probes and metrics are.
	HTTPAddr string
	// ConfigFile is the path of Options.Config.
	ConfigFile string

	opts Options
	cmd  *exec.Cmd
	log  journal
	done chan struct{} // closed when the process has ended
}

// Start runs a process for tb, which ends it at its own end.
func Start(tb testing.TB, o Options) *Instance {
	tb.Helper()
	in := &Instance{opts: o, done: make(chan struct{})}
	in.opts.Passwords = knownPasswords(o)
	in.HTTPAddr = freeAddr(tb)
	args := []string{"--http-listen=" + in.HTTPAddr}
	listen := o.Listen
	if listen == nil {
		listen = []string{"127.0.0.1:0"}
	}
	for _, l := range listen {
		args = append(args, "--listen="+l)
	}
	if o.Config != "" {
		in.ConfigFile = filepath.Join(tb.TempDir(), "multipooler.yaml")
		in.WriteConfig(tb, o.Config)
		args = append(args, "--config="+in.ConfigFile)
	}
	in.cmd = exec.Command(Program(tb), append(args, o.Args...)...)
	in.cmd.Env = Env(o)
	in.run(tb)
	if !o.MayFail {
		in.awaitStart(tb)
	} else {
		in.await(tb, startLimit)
	}
	return in
}

// Env is the environment of a process with these options.
func Env(o Options) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MULTIPOOLER_") || strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "DB_")
	})
	if o.Target != "" {
		env = append(env, "MULTIPOOLER_TARGET="+o.Target)
	}
	return append(env, o.Env...)
}

func knownPasswords(o Options) map[string]string {
	known := map[string]string{}
	if u, err := url.Parse(o.Target); err == nil && u.User != nil {
		if p, ok := u.User.Password(); ok {
			known[u.User.Username()] = p
		}
	}
	maps.Copy(known, o.Passwords)
	return known
}

// freeAddr is an address that nobody uses at this moment.
func freeAddr(tb testing.TB) string {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// WriteConfig replaces the configuration file.
func (in *Instance) WriteConfig(tb testing.TB, text string) {
	tb.Helper()
	tmp := in.ConfigFile + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(tmp, in.ConfigFile); err != nil {
		tb.Fatal(err)
	}
}

// run starts the process and the goroutine that follows it.
func (in *Instance) run(tb testing.TB) {
	tb.Helper()
	out, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	in.cmd.Stdout, in.cmd.Stderr = w, w
	// It ends with a test binary that is killed (a fuzz worker at the end of its
	// time). The signal comes at the end of the *thread* that forked, so that
	// thread must live as long as the process.
	in.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		defer close(in.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := in.cmd.Start()
		w.Close()
		started <- err
		if err == nil {
			in.log.follow(out)
			_ = in.cmd.Wait() // the exit code is in ProcessState
		}
		out.Close()
	}()
	if err := <-started; err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { in.end(tb) })
}

// end stops the process if the test has not, and judges its log.
func (in *Instance) end(tb testing.TB) {
	if !in.ended() {
		in.Signal(syscall.SIGTERM)
		late := time.AfterFunc(stopLimit, func() { _ = in.cmd.Process.Signal(syscall.SIGQUIT) })
		// Sessions that the test has left open are cut.
		hurry := time.AfterFunc(time.Second, func() { in.Signal(syscall.SIGTERM) })
		<-in.done
		hurry.Stop()
		if !late.Stop() {
			tb.Errorf("multipooler did not end within %v of SIGTERM", stopLimit)
		}
		if code := in.cmd.ProcessState.ExitCode(); code != 0 && code != 2 {
			tb.Errorf("multipooler ended with code %d (%s)", code, in.cmd.ProcessState)
		}
	}
	in.judge(tb)
	if tb.Failed() {
		tb.Logf("multipooler's log:\n%s", in.log.tail(20<<10))
	}
}

// judge looks for what must never be in a log.
func (in *Instance) judge(tb testing.TB) {
	text := in.Log()
	for _, bad := range []string{"panic", "bug:", "DATA RACE", "goroutine 1 [", "fatal error:"} {
		if i := strings.Index(text, bad); i >= 0 {
			tb.Errorf("multipooler's log has %q: %.2000s", bad, text[max(0, i-200):])
		}
	}
	secrets := slices.Clone(in.opts.Secrets)
	for _, p := range in.opts.Passwords {
		secrets = append(secrets, p, url.QueryEscape(p), url.PathEscape(p))
	}
	for _, s := range secrets {
		if len(s) >= 4 && strings.Contains(text, s) {
			i := strings.Index(text, s)
			tb.Errorf("a secret is in multipooler's log: %.500s", text[max(0, i-200):])
		}
	}
}

// awaitStart waits until the process serves.
func (in *Instance) awaitStart(tb testing.TB) {
	tb.Helper()
	deadline := time.Now().Add(startLimit)
	line := in.WaitLog(tb, 0, `"msg":"ready"`, startLimit)
	var ready struct {
		Listen []string `json:"listen"`
	}
	if err := json.Unmarshal([]byte(line), &ready); err != nil || len(ready.Listen) == 0 {
		tb.Fatalf("no addresses in %s: %v", line, err)
	}
	in.Listeners = ready.Listen
	Eventually(tb, time.Until(deadline), "/startupz", func() bool {
		code, _ := in.HTTP(tb, "/startupz")
		return code == 200
	})
}

// Addr is the first TCP listener, host:port.
func (in *Instance) Addr() string { return in.Listeners[0] }

// URL is how user reaches database db over TCP; params are "key=value" pairs
// such as "sslmode=require" (the default is disable).
func (in *Instance) URL(user, db string, params ...string) string {
	return URL(in.Addr(), user, in.opts.Passwords[user], db, params...)
}

// URL is a connection URL; an address that begins with / is the folder of a
// unix socket with its port behind a colon.
func URL(addr, user, password, db string, params ...string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Host: addr, Path: "/" + db}
	q := url.Values{}
	if strings.HasPrefix(addr, "/") {
		i := strings.LastIndexByte(addr, ':')
		u.Host = ""
		q.Set("host", addr[:i])
		q.Set("port", addr[i+1:])
	} else {
		q.Set("sslmode", "disable")
	}
	for _, p := range params {
		k, v, _ := strings.Cut(p, "=")
		q.Set(k, v)
	}
	// libpq and pgx take a plus sign for itself, so a space must be %20.
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
}

// PID of the process.
func (in *Instance) PID() int { return in.cmd.Process.Pid }

// Signal sends a signal; a process that has ended gets none.
func (in *Instance) Signal(s os.Signal) { _ = in.cmd.Process.Signal(s) }

func (in *Instance) ended() bool {
	select {
	case <-in.done:
		return true
	default:
		return false
	}
}

// Done is closed when the process has ended.
func (in *Instance) Done() <-chan struct{} { return in.done }

func (in *Instance) await(tb testing.TB, limit time.Duration) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	select {
	case <-in.done:
	case <-ctx.Done():
		tb.Fatalf("multipooler did not end within %v", limit)
	}
}

// Wait returns the exit code; a process that has not ended within limit fails
// the test.
func (in *Instance) Wait(tb testing.TB, limit time.Duration) int {
	tb.Helper()
	in.await(tb, limit)
	return in.cmd.ProcessState.ExitCode()
}

// Run runs a subcommand such as check and returns what it prints and its exit
// code.
func Run(tb testing.TB, o Options, args ...string) (out string, code int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), startLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, Program(tb), append(args, o.Args...)...)
	cmd.Env = Env(o)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		tb.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// Eventually looks again and again until ok is true; after limit tb fails.
// For what comes to pass in another process and cannot be waited for.
func Eventually(tb testing.TB, limit time.Duration, what string, ok func() bool) {
	tb.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !ok() {
		select {
		case <-again.C:
		case <-deadline.C:
			tb.Fatalf("after %v still not: %s", limit, what)
		}
	}
}

// PeakMemory is the largest resident set the process has had, in bytes.
func (in *Instance) PeakMemory(tb testing.TB) int64 {
	tb.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", in.PID()))
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	tb.Fatal("no VmHWM in /proc/PID/status")
	return 0
}
