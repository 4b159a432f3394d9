package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/multipooler/multipooler/test/pgtest"
	"github.com/multipooler/multipooler/test/pgtest/pgserver"
)

// product is the real multipooler.
func product(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "multipooler")
	build := exec.Command("go", "build", "-o", bin, "./cmd/multipooler")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

func TestMakeRunWorksWithTheProduct(t *testing.T) {
	bin := product(t)
	for name, sig := range map[string]syscall.Signal{"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) { runAndEnd(t, bin, sig) })
	}
}

func TestMakeRunPutsTheProductBeforeTheTarget(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	d := start(t, product(t), "TARGET="+s.URL("app", "app"))
	line := d.until(t, `psql -h (\S+) -p (\d+) -U app app`)
	through := strings.Replace(s.URL("app", "app"), s.Addr(), net.JoinHostPort(line[1], line[2]), 1)
	var port int
	if err := pgtest.Connect(t, through).QueryRow(t.Context(), "select inet_server_port()").Scan(&port); err != nil || port != s.Port {
		t.Errorf("reached port %d, %v, want %d", port, err, s.Port)
	}
	children := pgserver.Children(d.Process.Pid)
	if len(children) != 1 {
		t.Errorf("%d children, want multipooler alone", len(children))
	}
	if err := d.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := d.end(); err != nil {
		t.Errorf("%v\n%s", err, d.errors.String())
	}
	for _, pid := range children {
		if alive(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
}

// TestCtrlCEndsMakeAndEverythingUnderIt sends SIGINT to the process group of a
// real `make run`, as a terminal does.
func TestCtrlCEndsMakeAndEverythingUnderIt(t *testing.T) {
	m := exec.Command("make", "run")
	m.Dir = "../.."
	m.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	m.Env = slices.DeleteFunc(append(os.Environ(), "TARGET="), func(e string) bool { return strings.HasPrefix(e, "MAKE") || strings.HasPrefix(e, "MFLAGS") })
	out, err := m.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d := &devrun{Cmd: m, out: bufio.NewReader(out)}
	m.Stderr = &d.errors
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if m.ProcessState == nil {
			_ = syscall.Kill(-m.Process.Pid, syscall.SIGTERM)
			_ = m.Wait()
		}
	})
	d.until(t, `^ +PGPASSWORD=\S+ psql -h `)
	under := descendants(m.Process.Pid)
	var folder string
	var shm sharedMemory
	for _, pid := range under {
		if found := serverFolder(t, pid); found != "" {
			folder = found
			shm = memoryOf(t, pid, folder)
		}
	}
	if folder == "" {
		t.Fatalf("no PostgreSQL among %d processes", len(under))
	}
	if err := syscall.Kill(-m.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = d.end() // make says that it was interrupted
	for _, pid := range under {
		if alive(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", folder, err)
	}
	shm.mustBeGone(t)
}

// alive tells whether a process exists and is no zombie of somebody else's.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// descendants are the processes under pid.
func descendants(pid int) []int {
	var all []int
	for _, child := range pgserver.Children(pid) {
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// sharedMemory is what a postmaster holds outside its processes and folder.
type sharedMemory struct {
	sysv  string   // id of its System V segment
	files []string // of /dev/shm
}

// memoryOf reads it of a running postmaster: line 7 of postmaster.pid is "key
// id" of the System V segment, and the rest is mapped.
func memoryOf(t *testing.T, pid int, folder string) (m sharedMemory) {
	t.Helper()
	_, data, _ := strings.Cut(commandLine(t, pid), "\x00-D\x00")
	text, err := os.ReadFile(filepath.Join(strings.TrimRight(data, "\x00"), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(string(text), "\n"); len(lines) > 6 {
		if words := strings.Fields(lines[6]); len(words) == 2 {
			m.sysv = words[1]
		}
	}
	if m.sysv == "" {
		t.Fatalf("postmaster.pid names no shared memory:\n%s", text)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if _, path, ok := strings.Cut(strings.TrimSpace(line), " /dev/shm/"); ok && !strings.HasPrefix("/dev/shm/"+path, folder) {
			m.files = append(m.files, "/dev/shm/"+path)
		}
	}
	return m
}

func (m sharedMemory) mustBeGone(t *testing.T) {
	t.Helper()
	segments, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(segments)) {
		if words := strings.Fields(line); len(words) > 1 && words[1] == m.sysv {
			t.Errorf("the System V segment %s is left", m.sysv)
		}
	}
	for _, path := range m.files {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}
