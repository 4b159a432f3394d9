//go:build linux

package eventloop

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// startLoop runs a loop until the test ends.
func startLoop(t testing.TB, id int, cfg Config) *Loop {
	t.Helper()
	cfg.DirectWait = directWait
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

// unixPair is pair with a net.Conn as the test's end.
func unixPair(t testing.TB) (fd int, peer *net.UnixConn) {
	t.Helper()
	fd, other := pair(t)
	return fd, fileConn(t, other).(*net.UnixConn)
}

func fileConn(t testing.TB, fd int) net.Conn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "peer")
	nc, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return nc
}

// tcpPair is unixPair over loopback TCP.
func tcpPair(t testing.TB) (fd int, peer *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	raw, _ := accepted.(*net.TCPConn).SyscallConn()
	_ = raw.Control(func(orig uintptr) { fd, err = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	return fd, nc.(*net.TCPConn)
}

// pattern is n bytes in which a lost, doubled or moved byte shows. A shorter
// pattern is the beginning of a longer one.
func pattern(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(p)
	return p
}

func readAll(t testing.TB, r io.Reader, n int) []byte {
	t.Helper()
	p := make([]byte, n)
	if got, err := io.ReadFull(r, p); err != nil {
		t.Fatalf("read %d of %d bytes: %v", got, n, err)
	}
	return p
}

func TestConfigIsCheckedAndDefaulted(t *testing.T) {
	cfg, err := Config{}.withDefaults()
	if want := (Config{ReadBuffer: 64 << 10, HighWater: 256 << 10, LowWater: 64 << 10, MaxRemainder: 1 << 20, MaxReads: 4}); err != nil || cfg != want {
		t.Errorf("defaults %+v, %v; want %+v", cfg, err, want)
	}
	for _, bad := range []Config{{ReadBuffer: 1}, {LowWater: 2, HighWater: 1}, {MaxRemainder: 5}, {MaxReads: -1}} {
		if _, err := New(0, bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	if _, err := New(maxID+1, Config{}); err == nil {
		t.Error("an id that does not fit was accepted")
	}
}

func TestAConnIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Conn{}); size > 104 {
		t.Errorf("a Conn takes %d bytes, want at most 104", size)
	}
}

func TestStoppingTheLoopEndsItsConns(t *testing.T) {
	l, err := New(0, Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	ended := make(chan error, 2)
	h := &funcs{ended: func(_ *Conn, err error) { ended <- err }}
	fd1, owned := unixPair(t)
	fd2, parked := unixPair(t)
	attach(t, l, fd1, h)
	c := attach(t, l, fd2, h)
	do(t, l, c.Park)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; !errors.Is(err, ErrLoopStopped) {
			t.Errorf("Ended(%v), want %v", err, ErrLoopStopped)
		}
	}
	for _, peer := range []net.Conn{owned, parked} {
		if n, err := peer.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("peer reads %d, %v, want EOF", n, err)
		}
	}
	if l.Post(TaskFunc(func(*Loop) {})) {
		t.Error("Post accepted a task after the end")
	}
	if c.TryClaim(1) {
		t.Error("a closed conn was claimed")
	}
}

func TestAnEventOfAnEarlierUseOfTheDescriptorIsDropped(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, _ := unixPair(t)
	old := attach(t, l, fd, &funcs{})
	var stale uint32
	do(t, l, func() { stale = old.word.Load().generation(); old.Close(); old.Close() })
	fd2, peer := unixPair(t)
	got := make(chan string, 1)
	c := attach(t, l, fd2, &funcs{received: func(_ *Conn, p []byte) int { got <- string(p); return len(p) }})
	do(t, l, func() {
		if _, err := peer.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		l.dispatch(c.FD(), stale, unix.EPOLLIN)
		if len(got) > 0 {
			t.Error("a stale event was delivered")
		}
	})
	if s := <-got; s != "x" {
		t.Errorf("got %q", s)
	}
}
