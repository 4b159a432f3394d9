package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// ownerVar makes the test binary start a server, print its pid and folder, and
// wait for its end on stdin: a process that a test can kill.
const ownerVar = "PGSERVER_TEST_OWNER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerVar); dir != "" {
		own(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func TestVersionsAreReadFromEveryKindOfAnswer(t *testing.T) {
	for answer, want := range map[string]Binaries{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": {"/x", 15, "15.18 (Debian 15.18-0+deb12u1)"},
		"postgres (PostgreSQL) 19devel\n":                        {"/x", 19, "19devel"},
		"postgres (PostgreSQL) 9.6.24\n":                         {"/x", 9, "9.6.24"},
	} {
		if got, err := parseVersion("/x", answer); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", answer, got, err)
		}
	}
	if _, err := parseVersion("/x", "CockroachDB v25"); err == nil {
		t.Error("no error without a version")
	}
}

func TestTheFirstServerThatIsNewEnoughIsChosen(t *testing.T) {
	list := func(majors ...int) (out []Binaries) {
		for i, m := range majors {
			out = append(out, Binaries{Dir: fmt.Sprint(i), Major: m})
		}
		return out
	}
	for _, tt := range []struct {
		name  string
		found []Binaries
		want  string // Dir, "" for an error
	}{
		{"nothing", nil, ""},
		{"PATH wins over newer folders", list(16, 18), "0"},
		{"an old PATH does not", list(13, 12, 15), "2"},
		{"old is better than none", list(12, 14, 13), "1"},
		{"too old", list(12, 9), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := choose(tt.found)
			if got.Dir != tt.want || errors.Is(err, ErrNotFound) != (tt.want == "") {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestPGBINThatIsWrongIsNotPassedOver(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PGBIN", dir)
	if _, err := Find(); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want an error that names %s", err, dir)
	}
}

func TestFoldersAreOrderedByNumber(t *testing.T) {
	if folderVersion("/usr/lib/postgresql/9/bin") >= folderVersion("/usr/lib/postgresql/15/bin") {
		t.Error("9 is not older than 15")
	}
}

func TestTheLogKeepsItsNewestMegabyte(t *testing.T) {
	var l serverLog
	line := strings.Repeat("x", 1023) + "\n"
	for range 3 * logBound / len(line) {
		l.add(line)
	}
	_, before := l.since(0)
	l.add("last\n")
	if text, _ := l.since(before); text != "last\n" {
		t.Errorf("since the last position: %q", text)
	}
	if text, end := l.since(0); len(text) > logBound || len(text) < logBound/4 || end != 3*logBound+5 {
		t.Errorf("kept %d bytes, position %d", len(text), end)
	}
}

func TestUserSettingsReplaceDefaults(t *testing.T) {
	conf := confFile(map[string]string{"port": "1"}, map[string]string{"fsync": "on", "x.y": `a'\b`})
	for _, want := range []string{"fsync = 'on'\n", "port = '1'\n", `x.y = 'a''\\b'` + "\n", "autovacuum = 'off'\n"} {
		if strings.Count(conf, want) != 1 {
			t.Errorf("%q is not once in\n%s", want, conf)
		}
	}
}

// own is the process that TestAKilledOwnerTakesItsServerAlong kills.
func own(dir string) {
	s, err := Start(context.Background(), Options{Dir: dir})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	fmt.Println(s.PID(), s.DataDir)
	os.Stdin.Read(make([]byte, 1)) // blocks until the kill
}

func TestAKilledOwnerTakesItsServerAlongAndTheNextStartSweeps(t *testing.T) {
	cache := CacheDir() + "-test"
	t.Cleanup(func() { os.RemoveAll(cache) })
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerVar+"="+cache)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var data string
	if _, err := fmt.Fscan(stdout, &pid, &data); err != nil {
		t.Fatal(err, cmd.Process.Kill(), cmd.Wait())
	}

	// While the owner lives, others leave its folder alone.
	second, err := Start(t.Context(), Options{Dir: cache})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(data); err != nil {
		t.Error("the folder of a running server was swept")
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}

	postmaster, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(postmaster)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()       // "signal: killed"
	const limit = 30_000 // ms
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(postmaster), Events: unix.POLLIN}}, limit); n != 1 {
		t.Fatalf("postgres %d outlived its owner by %d ms: %v", pid, limit, errors.Join(err, unix.PidfdSendSignal(postmaster, unix.SIGQUIT, nil, 0)))
	}
	// Its children hold the folder's lock as well, so getting it says that
	// they are gone.
	lock, err := lockFile(filepath.Join(filepath.Dir(data), "lock"), unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()

	third, err := Start(t.Context(), Options{Dir: cache})
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if _, err := os.Stat(filepath.Dir(data)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was not swept: %v", filepath.Dir(data), err)
	}
}

func TestAServerWithoutTemplateLeavesNoCacheFolder(t *testing.T) {
	cache := CacheDir() + "-bare"
	s, err := Start(t.Context(), Options{Dir: cache, NoTemplate: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(cache); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", cache, err)
	}
}

func TestACacheFolderThatOthersMayWriteToIsRefused(t *testing.T) {
	cache := t.TempDir()
	if err := os.Chmod(cache, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Options{Dir: cache}); err == nil || !strings.Contains(err.Error(), cache) {
		t.Errorf("got %v", err)
	}
}

func TestLiteralsAndIdentifiersCannotBreakOut(t *testing.T) {
	if got := Literal(`a'b\c`); got != ` E'a''b\\c'` {
		t.Error(got)
	}
	if got := Identifier(`a"b`); got != `"a""b"` {
		t.Error(got)
	}
}

func TestOwnChildrenAreFound(t *testing.T) {
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found := Children(os.Getpid())
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(found, cmd.Process.Pid) {
		t.Errorf("%d is not in %v", cmd.Process.Pid, found)
	}
}
