//go:build linux

package eventloop

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// directWait is how the loops of this run wait. Every test runs both ways: the
// second time in a child process.
var directWait = os.Getenv("EVENTLOOP_TEST_WAIT") == "direct"

func TestMain(m *testing.M) {
	flag.Parse()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 4) // more than any test has loops
	if directWait || flagSet("test.bench") || flagSet("test.fuzz") || flagSet("test.list") || flagSet("test.cpuprofile") {
		goleak.VerifyTestMain(m)
		return
	}
	code := m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	again := exec.Command(os.Args[0], os.Args[1:]...)
	again.Env = append(os.Environ(), "EVENTLOOP_TEST_WAIT=direct")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	if err := again.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "with direct waits:", err)
		code = 1
	}
	os.Exit(code)
}

func flagSet(name string) bool {
	f := flag.Lookup(name)
	return f != nil && f.Value.String() != ""
}

// busyLoop makes l wait directly by keeping it busy.
func busyLoop(t *testing.T, l *Loop) {
	t.Helper()
	fd, peer := pair(t)
	defer unix.Close(peer)
	attach(t, l, fd, &funcs{received: echo})
	b := make([]byte, 1)
	for range 1000 {
		if _, err := unix.Write(peer, b); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Read(peer, b); err != nil {
			t.Fatal(err)
		}
		direct := false
		do(t, l, func() { direct = l.direct })
		if direct {
			return
		}
	}
	t.Fatal("the loop did not begin to wait directly")
}

func startDirect(t *testing.T) *Loop {
	t.Helper()
	if !directWait {
		directWait = true
		defer func() { directWait = false }()
	}
	return startLoop(t, 0, Config{})
}

func TestABusyLoopWaitsDirectlyAndAnIdleOneParks(t *testing.T) {
	l := startDirect(t)
	busyLoop(t, l)
	// The runtime interrupts a goroutine that keeps its processor for 10 ms.
	interrupted := func() bool {
		l.epoll.Lock()
		defer l.epoll.Unlock()
		// Changing a member of the gate works once the loop's epoll is one again.
		return l.gateCtl(unix.EPOLL_CTL_MOD) == nil
	}
	deadline := time.Now().Add(10 * time.Second)
	for !interrupted() {
		if time.Now().After(deadline) {
			t.Fatal("an idle loop still keeps its processor after 10 s")
		}
		runtime.Gosched()
	}
}

func TestTasksAndTimersReachALoopThatWaitsDirectly(t *testing.T) {
	l := startDirect(t)
	for range 50 {
		busyLoop(t, l)
		do(t, l, func() {}) // a post wakes it
		fired := make(chan time.Duration, 1)
		do(t, l, func() {
			began := time.Now()
			l.Arm(&Timer{F: func(int64) { fired <- time.Since(began) }}, l.Now()+int64(3*time.Millisecond))
		})
		if took := <-fired; took < 3*time.Millisecond {
			t.Fatalf("timer of 3 ms fired after %v", took)
		}
	}
}

func TestACollectionOfGarbageGetsPastALoopThatWaitsDirectly(t *testing.T) {
	l := startDirect(t)
	for range 20 {
		busyLoop(t, l)
		runtime.GC()
	}
}
