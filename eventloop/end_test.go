//go:build linux

package eventloop

import (
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAHalfClosedConnStillReads(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := tcpPair(t)
	var got []byte
	ended := make(chan error, 1)
	c := attach(t, l, fd, &funcs{
		received: func(_ *Conn, p []byte) int { got = append(got, p...); return len(p) },
		ended:    func(_ *Conn, err error) { ended <- err },
	})
	const size = 20 << 20 // more than loopback buffers
	do(t, l, func() {
		c.Write(pattern(size))
		c.CloseWrite()
		c.Write([]byte("dropped"))
		if c.Backlog() == 0 {
			t.Error("no backlog: nothing is tested")
		}
	})
	all, err := io.ReadAll(peer)
	if err != nil || len(all) != size {
		t.Errorf("peer got %d bytes, %v", len(all), err)
	}
	_, _ = peer.Write([]byte("answer"))
	peer.Close()
	if err := <-ended; err != io.EOF || string(got) != "answer" {
		t.Errorf("Ended(%v) after %q", err, got)
	}
}

func TestAResetEndsTheConnAlsoWhilePaused(t *testing.T) {
	for _, paused := range []bool{false, true} {
		l := startLoop(t, 0, Config{})
		fd, peer := tcpPair(t)
		ended := make(chan error, 1)
		c := attach(t, l, fd, &funcs{ended: func(_ *Conn, err error) { ended <- err }})
		if paused {
			do(t, l, c.PauseRead)
			_, _ = peer.Write([]byte("never read"))
		}
		_ = peer.SetLinger(0)
		peer.Close()
		if err := <-ended; !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("paused %v: Ended(%v), want ECONNRESET", paused, err)
		}
		do(t, l, func() {
			if !c.Closed() {
				t.Error("not closed after Ended")
			}
			c.Write([]byte("ignored"))
			c.Close()
		})
	}
}

func TestAnOrderlyEndWhilePausedWaitsForTheLastBytes(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		l := startLoop(t, 0, Config{})
		var fd int
		var peer io.WriteCloser
		if network == "tcp" {
			fd, peer = tcpPair(t)
		} else {
			fd, peer = unixPair(t)
		}
		events := make(chan string, 9)
		c := attach(t, l, fd, &funcs{
			received: func(_ *Conn, p []byte) int { events <- string(p); return len(p) },
			ended:    func(_ *Conn, err error) { events <- err.Error() },
		})
		do(t, l, c.PauseRead)
		_, _ = peer.Write([]byte("last words"))
		peer.Close()
		do(t, l, func() {})
		do(t, l, func() {
			if len(events) != 0 {
				t.Errorf("%s: %q while paused", network, <-events)
			}
			if network == "unix" && c.flags&flagHungUp == 0 {
				t.Error("a dead peer is still on epoll: the loop spins")
			}
			c.ResumeRead()
		})
		if a, b := <-events, <-events; a != "last words" || b != "EOF" {
			t.Errorf("%s: got %q, then %q", network, a, b)
		}
	}
}

func TestADeadPeerWithNothingToReadEndsThePausedConn(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	ended := make(chan error, 1)
	c := attach(t, l, fd, &funcs{ended: func(_ *Conn, err error) { ended <- err }})
	do(t, l, c.PauseRead)
	peer.Close()
	if err := <-ended; err != io.EOF {
		t.Errorf("Ended(%v), want EOF", err)
	}
}

func TestAFailedWriteStillDeliversWhatThePeerSaidBefore(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	events := make(chan string, 9)
	inWrite := false
	c := attach(t, l, fd, &funcs{
		received: func(_ *Conn, p []byte) int { events <- string(p); return len(p) },
		ended: func(_ *Conn, err error) {
			if inWrite {
				t.Error("Ended inside of Write")
			}
			events <- err.Error()
		},
	})
	do(t, l, func() {
		_, _ = peer.Write([]byte("FATAL"))
		peer.Close()
		inWrite = true
		c.Write(pattern(100_000))
		inWrite = false
	})
	if a, b := <-events, <-events; a != "FATAL" || b != unix.EPIPE.Error() {
		t.Errorf("got %q, then %q", a, b)
	}
}

func TestAFailedWriteEndsAPausedConn(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	ended := make(chan error, 1)
	c := attach(t, l, fd, &funcs{ended: func(_ *Conn, err error) { ended <- err }})
	do(t, l, func() {
		c.PauseRead()
		_, _ = peer.Write([]byte("unread"))
		peer.Close()
		c.Write([]byte("x"))
	})
	if err := <-ended; !errors.Is(err, unix.EPIPE) {
		t.Errorf("Ended(%v), want EPIPE", err)
	}
}

func TestCloseInTheMiddleOfADeliverySendsWhatWasWritten(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	attach(t, l, fd, &funcs{
		received: func(c *Conn, p []byte) int { c.Write(p); c.Write([]byte("!")); c.Close(); return 0 },
		ended:    func(*Conn, error) { t.Error("Ended after Close") },
	})
	_, _ = peer.Write([]byte("bye"))
	if got, err := io.ReadAll(peer); string(got) != "bye!" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}
