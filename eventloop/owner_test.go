//go:build linux

package eventloop

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAParkedConnGoesToOneClaimer(t *testing.T) {
	a, b := startLoop(t, 0, Config{}), startLoop(t, 1, Config{})
	fd, peer := unixPair(t)
	got := make(chan string, 1)
	c := attach(t, a, fd, &funcs{received: func(c *Conn, p []byte) int {
		got <- fmt.Sprintf("%s on %d", p, c.Loop().ID())
		return len(p)
	}})
	do(t, a, c.Park)
	if !c.TryClaim(b.ID()) || c.TryClaim(b.ID()) || c.TryClaim(a.ID()) {
		t.Error("want exactly one claim to succeed")
	}
	_, _ = peer.Write([]byte("early")) // a sees it, and must neither deliver nor spin
	do(t, a, func() {})
	do(t, b, func() {
		if err := b.Adopt(c); err != nil {
			t.Error(err)
		}
	})
	if s := <-got; s != "early on 1" {
		t.Errorf("got %q", s)
	}
}

func TestAClaimForTheSameLoopGetsTheBytesAfterAdopt(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	got := make(chan string, 1)
	adopted := false
	c := attach(t, l, fd, &funcs{received: func(_ *Conn, p []byte) int {
		if !adopted {
			t.Error("delivered before Adopt")
		}
		got <- string(p)
		return len(p)
	}})
	do(t, l, c.Park)
	c.TryClaim(0)
	_, _ = peer.Write([]byte("x"))
	do(t, l, func() {})
	do(t, l, func() {
		if len(l.muted) != 1 {
			t.Error("the event stays on epoll: the loop spins")
		}
		adopted = true
		if err := l.Adopt(c); err != nil || len(l.muted) != 0 {
			t.Error(err, len(l.muted))
		}
	})
	if s := <-got; s != "x" {
		t.Errorf("got %q", s)
	}
}

func TestAnEventOnAParkedConnCallsTheHandlerAsOwner(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	got := make(chan string, 9)
	c := attach(t, l, fd, &funcs{
		received: func(c *Conn, p []byte) int {
			if c.TryClaim(1) {
				t.Error("claimed during the call")
			}
			got <- string(p)
			c.Consume(1)
			c.Park()
			return 0
		},
		ended: func(_ *Conn, err error) { got <- err.Error() },
	})
	do(t, l, c.Park)
	_, _ = peer.Write([]byte("ab"))
	if s := <-got; s != "ab" {
		t.Errorf("got %q", s)
	}
	do(t, l, func() {
		if c.word.Load().state() != parked {
			t.Errorf("the conn is %v", c.word.Load())
		}
	})
	_, _ = peer.Write([]byte("c")) // the rest was kept over the parking
	if s := <-got; s != "bc" {
		t.Errorf("got %q", s)
	}
	peer.Close()
	if s := <-got; s != "EOF" {
		t.Errorf("got %q", s)
	}
}

func TestAGivenConnTakesItsRemainderAlong(t *testing.T) {
	a, b := startLoop(t, 0, Config{}), startLoop(t, 1, Config{})
	fd, peer := unixPair(t)
	got := make(chan string, 1)
	attach(t, a, fd, &funcs{received: func(c *Conn, p []byte) int {
		c.Write([]byte("moving"))
		c.SetHandler(&funcs{received: func(c *Conn, p []byte) int {
			got <- fmt.Sprintf("%s on %d", p, c.Loop().ID())
			return len(p)
		}})
		c.Consume(1)
		c.GiveTo(b.ID())
		b.Post(TaskFunc(func(l *Loop) {
			if err := l.Adopt(c); err != nil {
				t.Error(err)
			}
			c.Redeliver()
		}))
		return 0
	}})
	_, _ = peer.Write([]byte("abc"))
	if s := <-got; s != "bc on 1" {
		t.Errorf("got %q", s)
	}
	if s := readAll(t, peer, 6); string(s) != "moving" {
		t.Errorf("peer got %q", s)
	}
}

func TestUsingSomebodyElsesConnPanics(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, _ := unixPair(t)
	c := attach(t, l, fd, &funcs{})
	do(t, l, c.Park)
	for name, use := range map[string]func(){
		"Write": func() { c.Write([]byte("x")) },
		"Park":  c.Park, "Close": c.Close, "GiveTo": func() { c.GiveTo(1) },
		"Adopt": func() { _ = l.Adopt(c) }, "Discard": c.Discard,
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of a parked conn did not panic", name)
				}
			}()
			use()
		}()
	}
	if !c.TryClaim(0) {
		t.Fatal("not claimed")
	}
	c.Discard()
	c.Discard()
	if !c.Closed() {
		t.Error("not closed")
	}
}

// shared is a conn that several loops steal from each other. Its plain fields
// are for the owner, so the race detector checks the ownership too.
type shared struct {
	c        *Conn
	owner    atomic.Int32 // loop id + 1; 0 = nobody
	received int          // bytes, in sequence
	written  int
	ends     int
	ended    chan struct{}

	sent     int // by the peer
	echoed   int // read by the peer
	orderly  bool
	t        *testing.T
	finished *atomic.Int32
}

func (s *shared) take(l *Loop) {
	if old := s.owner.Swap(int32(l.ID() + 1)); old != 0 {
		panic(fmt.Sprintf("owned by loop %d and taken by loop %d", old-1, l.ID()))
	}
}

func (s *shared) drop(l *Loop) {
	if old := s.owner.Swap(0); old != int32(l.ID()+1) {
		panic(fmt.Sprintf("dropped by loop %d, owned by %d", l.ID(), old-1))
	}
}

func (s *shared) Received(c *Conn, p []byte) int {
	l := c.Loop()
	held := s.owner.Load() == int32(l.ID()+1)
	if !held {
		s.take(l)
	}
	n := len(p)
	if n > 1 && rand.IntN(3) == 0 {
		n-- // leave something in the remainder
	}
	for _, b := range p[:n] {
		if b != byte(s.received) {
			panic(fmt.Sprintf("byte %d is %d, want %d", s.received, b, byte(s.received)))
		}
		s.received++
	}
	if rand.IntN(2) == 0 {
		s.write(1 + rand.IntN(50))
	}
	if !held {
		c.Consume(n)
		s.drop(l)
		c.Park()
	}
	return n
}

func (s *shared) write(n int) {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(s.written + i)
	}
	s.c.Write(p)
	s.written += n
}

func (s *shared) Drained(*Conn) {}

func (s *shared) Ended(c *Conn, err error) {
	l := c.Loop()
	if s.owner.Load() != int32(l.ID()+1) {
		s.take(l)
	}
	if err != io.EOF && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		s.t.Error("Ended:", err)
	}
	// What was kept is still there: count it as received.
	for _, b := range c.keep.bytes() {
		if b != byte(s.received) {
			s.t.Errorf("kept byte %d is %d", s.received, b)
		}
		s.received++
	}
	s.ends++
	s.finished.Add(1)
	close(s.ended)
}

// thief claims random conns for its loop, uses them and lets them go in one of
// the ways there are.
type thief struct {
	loops []*Loop
	conns []*shared
	held  []*shared
	rng   *rand.Rand
	done  chan bool
}

func (th *thief) Run(l *Loop) {
	keep := th.held[:0]
	for _, s := range th.held { // since the last turn; some have ended
		switch {
		case s.c.Closed():
		case th.rng.IntN(4) == 0:
			keep = append(keep, s)
		case th.rng.IntN(2) == 0:
			th.give(l, s)
		default:
			s.drop(l)
			s.c.Park()
		}
	}
	th.held = keep
	left := 0
	for _, s := range th.conns {
		select {
		case <-s.ended:
			continue
		default:
			left++
		}
		if th.rng.IntN(3) == 0 && s.c.TryClaim(l.ID()) {
			th.adopt(l, s)
			if th.rng.IntN(2) == 0 {
				s.c.Redeliver()
				th.held = append(th.held, s)
			} else {
				s.drop(l)
				s.c.Park()
			}
		}
	}
	if left == 0 {
		close(th.done)
		return
	}
	l.Post(th)
}

func (th *thief) adopt(l *Loop, s *shared) {
	if err := l.Adopt(s.c); err != nil {
		panic(err)
	}
	s.take(l)
	s.write(1 + th.rng.IntN(20))
}

func (th *thief) give(l *Loop, s *shared) {
	to := th.loops[th.rng.IntN(len(th.loops))]
	s.drop(l)
	s.c.GiveTo(to.ID())
	to.Post(TaskFunc(func(l *Loop) {
		if err := l.Adopt(s.c); err != nil {
			panic(err)
		}
		s.take(l)
		s.drop(l)
		s.c.Park()
	}))
}

func TestConnsThatLoopsStealFromEachOtherLoseNothing(t *testing.T) {
	const nLoops, nConns = 3, 60
	var loops []*Loop
	for id := range nLoops {
		loops = append(loops, startLoop(t, id, Config{ReadBuffer: 256}))
	}
	var finished atomic.Int32
	var all []*shared
	var peers sync.WaitGroup
	for i := range nConns {
		fd, peer := unixPair(t)
		s := &shared{ended: make(chan struct{}), t: t, finished: &finished, orderly: i%2 == 0}
		all = append(all, s)
		l := loops[i%nLoops]
		do(t, l, func() {
			var err error
			if s.c, err = l.Attach(fd, s, nil); err != nil {
				panic(err)
			}
			s.c.Park()
		})
		peers.Go(func() { s.peer(peer) })
	}
	var thieves []*thief
	for i, l := range loops {
		th := &thief{loops: loops, conns: all, rng: rand.New(rand.NewPCG(uint64(i), 1)), done: make(chan bool)}
		thieves = append(thieves, th)
		l.Post(th)
	}
	peers.Wait()
	for _, th := range thieves {
		<-th.done
	}
	// Every conn is accounted for, to the byte.
	if n := finished.Load(); n != nConns {
		t.Errorf("%d of %d conns have ended", n, nConns)
	}
	moved, written := 0, 0
	for i, s := range all {
		if s.ends != 1 || !s.c.Closed() {
			t.Errorf("conn %d: %d ends, closed %v", i, s.ends, s.c.Closed())
		}
		if s.received != s.sent {
			t.Errorf("conn %d: %d of %d bytes received", i, s.received, s.sent)
		}
		if s.orderly && s.echoed != s.written {
			t.Errorf("conn %d: the peer got %d of %d bytes", i, s.echoed, s.written)
		}
		moved += s.received
		written += s.written
	}
	t.Logf("%d bytes received, %d written", moved, written)
}

// peer sends bytes in sequence, reads what comes, and closes at random.
func (s *shared) peer(nc *net.UnixConn) {
	var reader sync.WaitGroup
	reader.Go(func() {
		p := make([]byte, 300)
		for {
			n, err := nc.Read(p)
			for _, b := range p[:n] {
				if b != byte(s.echoed) {
					s.t.Errorf("the peer's byte %d is %d", s.echoed, b)
					return
				}
				s.echoed++
			}
			if err != nil {
				return
			}
		}
	})
	for range rand.IntN(400) {
		p := make([]byte, 1+rand.IntN(600))
		for i := range p {
			p[i] = byte(s.sent + i)
		}
		n, err := nc.Write(p)
		s.sent += n
		if err != nil {
			s.t.Error(err)
		}
	}
	if s.orderly {
		_ = nc.CloseWrite()
	} else {
		nc.Close()
	}
	reader.Wait()
}
