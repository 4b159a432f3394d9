package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// process is a proxy that bench has started.
type process struct {
	cmd    *exec.Cmd
	log    string // path of what it wrote
	exited chan struct{}
}

// startProcess runs name with as many file descriptors as bench itself may
// have: a proxy with 5,000 clients needs more than the usual soft limit.
func startProcess(log string, as *syscall.Credential, env []string, name string, args ...string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	script := `ulimit -n $(ulimit -Hn); exec "$0" "$@"`
	cmd := exec.Command("sh", append([]string{"-c", script, name}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), env...)
	// A process group of its own, so that Ctrl-C reaches bench alone, which
	// then ends its children in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: as}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: log, exited: make(chan struct{})}
	go func() { // owned by stop, which waits for it
		_ = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop asks, waits, and then insists.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		return
	case <-time.After(2 * time.Second):
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// ready waits until a client can log in through the process and run a query.
func (p *process) ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := oneQuery(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("ended at once: %s", p.tail())
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w; its log ends with: %s", err, p.tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func oneQuery(ctx context.Context, url string) error {
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.Exec(ctx, "select 1").Close()
}

func (p *process) tail() string {
	b, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " | ")
}

// clockTick is USER_HZ, which is 100 on every Linux that Go runs on.
const clockTick = time.Second / 100

// cpuTime is what all threads of pid have used so far, in user and kernel mode
// (fields 14 and 15 of /proc/<pid>/stat, proc(5)).
func cpuTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The command name in parentheses may hold anything.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, b)
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, b)
	}
	return time.Duration(user+system) * clockTick, nil
}

// memoryOf returns the resident and the proportional set of pid in KiB.
func memoryOf(pid int) (rssKiB, pssKiB float64, err error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "Rss:":
			rssKiB, err = strconv.ParseFloat(f[1], 64)
		case "Pss:":
			pssKiB, err = strconv.ParseFloat(f[1], 64)
		}
		if err != nil {
			return 0, 0, err
		}
	}
	return rssKiB, pssKiB, nil
}
