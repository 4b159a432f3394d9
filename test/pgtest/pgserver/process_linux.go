package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Mode is how a running server is ended, in PostgreSQL's words.
type Mode int

// The shutdown modes of pg_ctl.
const (
	Fast      Mode = iota // sessions are rolled back and ended (57P01)
	Smart                 // waits for the sessions to end by themselves
	Immediate             // no goodbye, crash recovery at the next start
)

func (m Mode) signal() syscall.Signal {
	return [...]syscall.Signal{Fast: syscall.SIGINT, Smart: syscall.SIGTERM, Immediate: syscall.SIGQUIT}[m]
}

const (
	startTimeout = 60 * time.Second // crash recovery on a busy two-core machine included
	stopTimeout  = 30 * time.Second
	readyMarker  = "database system is ready to accept connections"
)

// process is one life of the postmaster.
type process struct {
	pid    int
	data   string
	ended  chan struct{} // closed when the postmaster was waited for
	err    error         // how it ended; valid after ended
	logged chan struct{} // closed when its children let go of the log as well
}

var errEndedEarly = errors.New("postgres ended during its start")

// spawn starts a postmaster and waits until it takes connections.
func spawn(ctx context.Context, b Binaries, f folder, acct account, log *serverLog) (*process, error) {
	logRead, logWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(b.Dir, "postgres"), "-D", f.data())
	cmd.Dir = "/"
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = logWrite, logWrite
	cmd.ExtraFiles = []*os.File{f.lock} // no sweep while a child of ours lives
	cmd.SysProcAttr = acct.attr()

	p := &process{data: f.data(), ended: make(chan struct{}), logged: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.ended)
		// Pdeathsig fires at the end of the *thread* that forked, so that
		// thread must live as long as the server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		logWrite.Close()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		logRead.Close()
		<-p.ended
		return nil, fmt.Errorf("start postgres as user %d: %w", acct.uid, err)
	}
	p.pid = cmd.Process.Pid
	ready := make(chan struct{})
	go func() {
		defer close(p.logged)
		defer logRead.Close()
		log.follow(logRead, readyMarker, ready)
	}()

	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("postgres took no connections within %v", startTimeout))
	defer cancel()
	select {
	case <-ready:
		return p, nil
	case <-p.ended:
		<-p.logged
		return nil, fmt.Errorf("%w: %w", errEndedEarly, p.err)
	case <-ctx.Done():
		p.kill()
		return nil, context.Cause(ctx)
	}
}

// stop ends the server in the given mode; one that does not obey in time is
// stopped harder. It returns when the postmaster and its children are gone.
func (p *process) stop(m Mode) error {
	if m == Smart {
		return p.signalAndWait(m.signal(), 0)
	}
	for _, sig := range []syscall.Signal{m.signal(), syscall.SIGQUIT} {
		if p.signalAndWait(sig, stopTimeout) == nil {
			return nil
		}
	}
	p.kill()
	return fmt.Errorf("postgres %d ignored a fast and an immediate shutdown for %v each and was killed", p.pid, stopTimeout)
}

// signalAndWait waits without bound when limit is 0.
func (p *process) signalAndWait(sig syscall.Signal, limit time.Duration) error {
	select {
	case <-p.ended: // its pid may be somebody else's by now
	default:
		_ = syscall.Kill(p.pid, sig)
	}
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-p.ended:
	case <-late:
		return fmt.Errorf("postgres %d still runs %v after %v", p.pid, limit, sig)
	}
	<-p.logged
	return nil
}

// kill takes the postmaster and every child without a word, as the kernel's
// out-of-memory killer or a power cut would.
func (p *process) kill() {
	// Stopped, the postmaster neither replaces a child nor tells the others;
	// killed last, it leaves nobody who could notice its end and say goodbye.
	_ = syscall.Kill(p.pid, syscall.SIGSTOP)
	for _, pid := range Children(p.pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = syscall.Kill(p.pid, syscall.SIGKILL)
	<-p.ended
	<-p.logged
	removeSharedMemory(p.data)
}

// Children lists the processes whose parent is pid.
func Children(pid int) []int {
	var out []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the only error is a bad pattern
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		// pid (any text, with spaces and parentheses) state ppid …
		head, tail := text, text
		if i := bytes.IndexByte(text, ' '); i > 0 {
			head = text[:i]
		}
		if i := bytes.LastIndexByte(text, ')'); i > 0 {
			tail = text[i+1:]
		}
		fields := bytes.Fields(tail)
		if len(fields) > 1 && string(fields[1]) == strconv.Itoa(pid) {
			if child, err := strconv.Atoi(string(head)); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

// removeSharedMemory frees the System V segment of a killed server, whose
// number is the second one in line 7 of postmaster.pid. A clean end removes
// the segment and the file.
func removeSharedMemory(data string) {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return
	}
	fields := strings.Fields(lines[6])
	if len(fields) != 2 {
		return
	}
	if id, err := strconv.Atoi(fields[1]); err == nil {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}

// environment is ours without what would steer PostgreSQL elsewhere.
func environment() []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); name == "PATH" || name == "LD_LIBRARY_PATH" || name == "TMPDIR" {
			env = append(env, kv)
		}
	}
	return env
}
