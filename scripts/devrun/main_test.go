package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/multipooler/multipooler/test/pgtest"
	"github.com/multipooler/multipooler/test/pgtest/pgserver"
)

func TestTheLoginLineHidesThePasswordAndQuotesTheRest(t *testing.T) {
	for target, want := range map[string]string{
		"postgres://me:secret@db:5432/shop":      "psql -h %s -p %s -U me shop   # the password of TARGET",
		"postgresql://db":                        "psql -h %s -p %s   # the password of TARGET",
		"postgres://m%20e:secret@db/s'h%25op%3B": `psql -h %s -p %s -U 'm e' 's'\''h%%op;'   # the password of TARGET`,
	} {
		if got, err := loginOf(target); err != nil || got != want {
			t.Errorf("%s:\n got %s, %v\nwant %s", target, got, err, want)
		}
	}
	for _, target := range []string{"mysql://a:secret@b", "post gres://:secret", "localhost:secret"} {
		if _, err := loginOf(target); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", target, err)
		}
	}
}

func TestATakenPortIsReplacedByAFreeOne(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	got := address("MULTIPOOLER_TEST_UNSET", taken.Addr().String())
	ln, err := net.Listen("tcp", got)
	if err != nil {
		t.Fatalf("%s is not free: %v", got, err)
	}
	ln.Close()
	t.Setenv("MULTIPOOLER_TEST_SET", "127.0.0.1:1")
	if got := address("MULTIPOOLER_TEST_SET", taken.Addr().String()); got != "127.0.0.1:1" {
		t.Errorf("the environment's address became %s", got)
	}
}

// TestMain lets the test binary stand in for devrun (it is started with -bin)
// and for multipooler (with --listen and --http-listen), so that these tests
// are about devrun alone.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "-bin":
		main()
	case len(os.Args) == 5 && os.Args[1] == "--listen" && os.Args[3] == "--http-listen":
		if err := forward(os.Args[2], os.Args[4], os.Getenv("MULTIPOOLER_TARGET")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// forward passes TCP connections on to the target until it is told to end.
func forward(listen, web, target string) error {
	if os.Getenv("MULTIPOOLER_POOL_MODE") == "nonsense" {
		return errors.New("pool_mode: nonsense")
	}
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	go http.ListenAndServe(web, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", u.Host)
			if err != nil {
				client.Close()
				continue
			}
			go io.Copy(client, server)
			go func() { io.Copy(server, client); server.Close() }()
		}
	}()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
	return nil
}

// standIn is this test binary.
func standIn(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// devrun is a running `make run`.
type devrun struct {
	*exec.Cmd
	out    *bufio.Reader
	errors strings.Builder
}

// start runs devrun with a binary; env overrides the environment.
func start(t *testing.T, bin string, env ...string) *devrun {
	t.Helper()
	d := &devrun{Cmd: exec.Command(standIn(t), "-bin", bin)}
	d.Env = append(os.Environ(), env...)
	d.Dir = "../.."
	d.Stderr = &d.errors
	pipe, err := d.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.out = bufio.NewReader(pipe)
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.ProcessState == nil { // the test failed half-way
			_ = d.Process.Signal(syscall.SIGTERM)
			_ = d.Wait()
		}
	})
	return d
}

// until reads lines up to the first that matches.
func (d *devrun) until(t *testing.T, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for {
		line, err := d.out.ReadString('\n')
		if m := re.FindStringSubmatch(line); m != nil {
			return m
		}
		if err != nil {
			t.Fatalf("no line matches %s: %v, %v\n%s", pattern, err, d.Wait(), d.errors.String())
		}
	}
}

// end waits for devrun behind the rest of its output.
func (d *devrun) end() error {
	_, err := io.Copy(io.Discard, d.out)
	return errors.Join(err, d.Wait())
}

func TestMakeRunPrintsALineThatWorksAndLeavesNothingBehind(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) { runAndEnd(t, standIn(t), sig) })
	}
}

// runAndEnd is a life of `make run` with a binary: up, used as printed, ended.
func runAndEnd(t *testing.T, bin string, sig syscall.Signal) {
	t.Helper()
	d := start(t, bin, "TARGET=")
	line := d.until(t, `^ +(PGPASSWORD=\S+) psql -h (\S+) -p (\d+) -U (\S+) (\S+)\n`)
	b, err := pgserver.Find()
	if err != nil {
		t.Fatal(err)
	}
	psql, err := b.Tool("psql")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(psql, "-h", line[2], "-p", line[3], "-U", line[4], "-d", line[5], "-Atc", "select 6 * 7")
	cmd.Env = append(os.Environ(), line[1])
	if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "42" {
		t.Errorf("psql as printed: %v\n%s", err, out)
	}

	gone := []string{}
	var shm sharedMemory
	for _, pid := range append(pgserver.Children(d.Process.Pid), d.Process.Pid) {
		if line := commandLine(t, pid); strings.Contains(line, "app:app@") {
			t.Errorf("a password is in the process list: %q", line)
		}
		gone = append(gone, fmt.Sprintf("/proc/%d", pid))
		if folder := serverFolder(t, pid); folder != "" {
			gone = append(gone, folder)
			shm = memoryOf(t, pid, folder)
		}
	}
	if len(gone) != 4 {
		t.Fatalf("%q are not devrun, multipooler, PostgreSQL and its folder", gone)
	}
	if err := d.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if err := d.end(); err != nil {
		t.Errorf("%v\n%s", err, d.errors.String())
	}
	for _, path := range gone {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	shm.mustBeGone(t)
	if conn, err := net.Dial("tcp", net.JoinHostPort(line[2], line[3])); err == nil {
		conn.Close()
		t.Error("somebody still listens")
	}
}

func TestMakeRunUsesTheTargetAndPrintsNoPassword(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	d := start(t, standIn(t), "TARGET="+s.URL("app", "app"))
	line := d.until(t, `psql -h (\S+) -p (\d+) -U app app`)
	if strings.Contains(line[0], pgtest.DefaultPassword) {
		t.Error("the target's password is printed")
	}
	through := strings.Replace(s.URL("app", "app"), s.Addr(), net.JoinHostPort(line[1], line[2]), 1)
	var port int
	if err := pgtest.Connect(t, through).QueryRow(t.Context(), "select inet_server_port()").Scan(&port); err != nil || port != s.Port {
		t.Errorf("reached port %d, %v, want %d", port, err, s.Port)
	}
	if err := d.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := d.end(); err != nil {
		t.Error(err)
	}
	if err := s.Admin(t).Ping(t.Context()); err != nil {
		t.Error("the target was stopped:", err)
	}
}

func TestAKilledMakeRunLeavesNoProcess(t *testing.T) {
	d := start(t, standIn(t), "TARGET=")
	d.until(t, `psql -h`)
	var watched []unix.PollFd
	var folder string
	for _, pid := range pgserver.Children(d.Process.Pid) {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		watched = append(watched, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		if found := serverFolder(t, pid); found != "" {
			folder = found
		}
	}
	if len(watched) != 2 || folder == "" {
		t.Fatalf("%d children, want PostgreSQL and multipooler", len(watched))
	}
	if err := d.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = d.end()          // "signal: killed"
	const limit = 30_000 // ms
	for _, fd := range watched {
		if n, err := unix.Poll([]unix.PollFd{fd}, limit); n != 1 {
			t.Errorf("a child outlived devrun by %d ms: %v", limit, err)
		}
	}
	pgtest.Start(t, pgtest.Options{}) // any start sweeps what the kill left
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", folder, err)
	}
}

func TestAMultipoolerThatCannotStartIsReported(t *testing.T) {
	d := start(t, standIn(t), "TARGET=postgres://a:b@127.0.0.1:1/c", "MULTIPOOLER_POOL_MODE=nonsense")
	if err := d.end(); err == nil {
		t.Error("no error")
	}
	if got := d.errors.String(); !strings.Contains(got, "nonsense") || !strings.Contains(got, "make run: multipooler ended") {
		t.Errorf("got %s", got)
	}
}

// commandLine is what everybody can read of a process, words ended by NUL.
func commandLine(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// serverFolder is the folder that a postmaster's data folder is in, "" of
// another process.
func serverFolder(t *testing.T, pid int) string {
	t.Helper()
	_, data, ok := strings.Cut(commandLine(t, pid), "\x00-D\x00")
	if !ok {
		return ""
	}
	return filepath.Dir(strings.TrimRight(data, "\x00"))
}
