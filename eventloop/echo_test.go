//go:build linux

package eventloop

import (
	"context"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startLoop runs a loop until the test ends.
func startLoop(t testing.TB, id int, cfg Config) *Loop {
	t.Helper()
	l, err := New(id, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error("Run:", err)
		}
	})
	return l
}

// do runs f on the loop and waits for it.
func do(t testing.TB, l *Loop, f func()) {
	t.Helper()
	done := make(chan struct{})
	if !l.Post(TaskFunc(func(*Loop) { f(); close(done) })) {
		t.Fatal("loop has ended")
	}
	<-done
}

// pair returns a non-blocking descriptor for the loop and a blocking one for
// the test.
func pair(t testing.TB) (fd, peer int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		t.Fatal(err)
	}
	return fds[0], fds[1]
}

// funcs is a Handler of functions; nil ones do nothing.
type funcs struct {
	received func(c *Conn, p []byte) int
	drained  func(c *Conn)
	ended    func(c *Conn, err error)
}

func (h *funcs) Received(c *Conn, p []byte) int {
	if h.received == nil {
		return len(p)
	}
	return h.received(c, p)
}

func (h *funcs) Drained(c *Conn) {
	if h.drained != nil {
		h.drained(c)
	}
}

func (h *funcs) Ended(c *Conn, err error) {
	if h.ended != nil {
		h.ended(c, err)
	}
}

func attach(t testing.TB, l *Loop, fd int, h Handler) (c *Conn) {
	t.Helper()
	do(t, l, func() {
		var err error
		if c, err = l.Attach(fd, h, nil); err != nil {
			t.Error(err)
		}
	})
	return c
}

func echo(c *Conn, p []byte) int { c.Write(p); return len(p) }

func TestAnEchoAllocatesNothing(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := pair(t)
	defer unix.Close(peer)
	attach(t, l, fd, &funcs{received: echo})
	buf := make([]byte, 100)
	allocs := testing.AllocsPerRun(1000, func() {
		if n, err := unix.Write(peer, buf); n != 100 || err != nil {
			t.Fatal(n, err)
		}
		for got := 0; got < 100; {
			n, err := unix.Read(peer, buf[got:])
			if err != nil || n == 0 {
				t.Fatal(n, err)
			}
			got += n
		}
	})
	if allocs != 0 {
		t.Fatalf("%v allocations per echo, want 0", allocs)
	}
}
