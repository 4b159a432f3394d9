//go:build linux

package eventloop

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

func TestABacklogArrivesInWholeAndIsGivenBack(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1); err != nil {
		t.Fatal(err)
	}
	drained := make(chan bool, 9)
	c := attach(t, l, fd, &funcs{drained: func(*Conn) { drained <- true }})
	want := pattern(3 << 20)
	do(t, l, func() {
		for i := 0; i < len(want); i += 100_000 {
			c.Write(want[i:min(i+100_000, len(want))])
		}
		if c.Backlog() < 256<<10 || !c.Congested() {
			t.Errorf("backlog %d, congested %v", c.Backlog(), c.Congested())
		}
	})
	do(t, l, func() {
		if c.events&unix.EPOLLOUT == 0 {
			t.Error("the loop does not wait for the socket")
		}
	})
	if got := readAll(t, peer, len(want)); !bytes.Equal(got, want) {
		t.Error("the bytes differ")
	}
	<-drained
	do(t, l, func() {
		if c.Backlog() != 0 || c.Congested() || c.out.head != nil || c.events != unix.EPOLLIN {
			t.Errorf("left: backlog %d, events %x", c.Backlog(), c.events)
		}
	})
	if len(drained) != 0 {
		t.Error("Drained was called twice")
	}
}

func TestAStreamThroughPausesIsBoundedAndIdentical(t *testing.T) {
	l := startLoop(t, 0, Config{})
	inFD, in := unixPair(t)
	outFD, out := unixPair(t)
	var src, sink *Conn
	most, pauses := 0, 0
	sink = attach(t, l, outFD, &funcs{drained: func(*Conn) { src.ResumeRead() }})
	src = attach(t, l, inFD, &funcs{
		received: func(c *Conn, p []byte) int {
			sink.Write(p)
			most = max(most, sink.Backlog())
			if sink.Congested() {
				pauses++
				c.PauseRead()
			}
			return len(p)
		},
		ended: func(*Conn, error) { sink.CloseWrite() },
	})
	want := pattern(16 << 20)
	go func() {
		_, _ = in.Write(want)
		in.Close()
	}()
	got, err := io.ReadAll(out)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	do(t, l, func() {
		if most > 256<<10+64<<10 {
			t.Errorf("the backlog reached %d", most)
		}
		t.Logf("most %d, %d pauses", most, pauses)
	})
}

func TestPiecesGoOutInTheOrderOfTheirWrites(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	big := pattern(5000)
	tests := []struct {
		name     string
		segments int
		write    func(c *Conn, p []byte) string
	}{
		{"adjacent parts of what was received are one", 1, func(c *Conn, p []byte) string {
			c.Write(p[0:2:2])
			c.Write(p[2:5:5])
			c.Write(p[5:])
			return "0123456789"
		}},
		{"parts with a gap are two", 2, func(c *Conn, p []byte) string {
			c.Write(p[0:2])
			c.Write(p[3:5])
			return "0134"
		}},
		{"small pieces of elsewhere become one", 3, func(c *Conn, p []byte) string {
			c.Write(p[0:2])
			c.Write([]byte("ab"))
			c.Write([]byte("cd"))
			c.Write(nil)
			c.Write(p[2:4])
			return "01abcd23"
		}},
		{"a large piece is not copied", 2, func(c *Conn, p []byte) string {
			c.Write(big)
			c.Write(p)
			return string(big) + "0123456789"
		}},
		{"more than one system call takes", -1, func(c *Conn, p []byte) string {
			want := ""
			for i := range 100 {
				c.Write(p[i%9 : i%9+1])
				c.Write([]byte{'x'})
				want += string(p[i%9]) + "x"
			}
			return want
		}},
	}
	for _, tt := range tests {
		want := make(chan string, 1)
		c := attach(t, l, fd, &funcs{received: func(c *Conn, p []byte) int {
			want <- tt.write(c, p)
			if n := l.pend[c.pend-1].n; tt.segments >= 0 && n != tt.segments {
				t.Errorf("%s: %d segments, want %d", tt.name, n, tt.segments)
			}
			return len(p)
		}})
		if _, err := peer.Write([]byte("0123456789")); err != nil {
			t.Fatal(err)
		}
		w := <-want
		if got := string(readAll(t, peer, len(w))); got != w {
			t.Errorf("%s: got %q, want %q", tt.name, got, w)
		}
		do(t, l, func() { fd, _ = c.Detach() })
	}
	unix.Close(fd)
}

// frames consumes messages of a 4-byte length and as many bytes.
func frames(seen func([]byte)) func(*Conn, []byte) int {
	return func(_ *Conn, p []byte) int {
		n := 0
		for len(p)-n >= 4 {
			size := 4 + int(binary.BigEndian.Uint32(p[n:]))
			if len(p)-n < size {
				break
			}
			seen(p[n+4 : n+size])
			n += size
		}
		return n
	}
}

func TestWhatIsNotConsumedComesAgainInFrontOfTheRest(t *testing.T) {
	for _, cfg := range []Config{{}, {ReadBuffer: 64}, {ReadBuffer: 1000, MaxRemainder: 400_000}} {
		l := startLoop(t, 0, cfg)
		fd, peer := unixPair(t)
		sizes := []int{0, 1, 3, 70, 1000, 40_000, 300_000, 5, 0, 60_000, 2}
		got := make(chan []byte, len(sizes))
		c := attach(t, l, fd, &funcs{received: frames(func(p []byte) { got <- bytes.Clone(p) })})
		go func() {
			var all []byte
			for _, n := range sizes {
				all = binary.BigEndian.AppendUint32(all, uint32(n))
				all = append(all, pattern(n)...)
			}
			for i := range 200 { // one byte at a time at first
				_, _ = peer.Write(all[i : i+1])
			}
			_, _ = peer.Write(all[200:])
		}()
		for _, n := range sizes {
			if p := <-got; !bytes.Equal(p, pattern(n)) {
				t.Errorf("ReadBuffer %d: frame of %d bytes differs (%d)", cfg.ReadBuffer, n, len(p))
			}
		}
		do(t, l, func() {
			if c.keep != nil {
				t.Errorf("%d bytes are kept after everything was consumed", c.Kept())
			}
		})
	}
}

func TestAFullRemainderStopsReadingUntilRedeliver(t *testing.T) {
	const limit = 128 << 10
	l := startLoop(t, 0, Config{MaxRemainder: limit})
	fd, peer := unixPair(t)
	full, all := make(chan bool, 99), make(chan bool)
	var got []byte
	open := false
	want := pattern(4 * limit)
	c := attach(t, l, fd, &funcs{received: func(_ *Conn, p []byte) int {
		if !open {
			if len(p) > limit {
				t.Errorf("%d bytes delivered, the limit is %d", len(p), limit)
			}
			if len(p) == limit {
				full <- true
			}
			return 0
		}
		got = append(got, p...)
		if len(got) == len(want) {
			close(all)
		}
		return len(p)
	}})
	go func() { _, _ = peer.Write(want) }()
	<-full
	do(t, l, func() { c.Redeliver() }) // consumes nothing: stays full
	<-full
	do(t, l, func() {})
	do(t, l, func() {
		if c.events&unix.EPOLLIN != 0 || c.Kept() != limit {
			t.Errorf("events %x, kept %d: still reading", c.events, c.Kept())
		}
		open = true
		c.Redeliver()
	})
	<-all
	if !bytes.Equal(got, want) {
		t.Error("the bytes differ")
	}
}

func TestPausedMeansNoDelivery(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	got := make(chan string, 9)
	take := 1
	c := attach(t, l, fd, &funcs{received: func(c *Conn, p []byte) int {
		got <- string(p)
		c.PauseRead()
		return take
	}})
	send := func(s string) {
		if _, err := peer.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	send("ab")
	if s := <-got; s != "ab" {
		t.Fatalf("got %q", s)
	}
	send("cd")
	do(t, l, func() {})
	do(t, l, func() { // one turn after the bytes were there
		if len(got) != 0 {
			t.Errorf("delivered %q while paused", <-got)
		}
		if c.events&unix.EPOLLIN != 0 {
			t.Error("epoll still reports what is not read: the loop spins")
		}
		c.ResumeRead()
		c.PauseRead()
	})
	do(t, l, func() {
		if len(got) != 0 {
			t.Errorf("delivered %q though paused again", <-got)
		}
		c.ResumeRead()
	})
	if s := <-got; s != "b" { // kept, and offered again without new bytes
		t.Errorf("got %q, want the kept b", s)
	}
	do(t, l, func() { take = 2; c.ResumeRead() })
	if s := <-got; s != "cd" {
		t.Errorf("got %q, want cd", s)
	}
}

func TestUnreadBytesComeFirst(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	if _, err := peer.Write([]byte("3")); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 9)
	do(t, l, func() {
		c, err := l.Attach(fd, &funcs{received: func(c *Conn, p []byte) int { got <- string(p); return 0 }}, nil)
		if err != nil {
			t.Error(err)
			return
		}
		c.Unread([]byte("2"))
		c.Unread([]byte("1"))
	})
	if a, b := <-got, <-got; a != "12" || b != "123" {
		t.Errorf("got %q then %q", a, b)
	}
}

func TestDetachHandsOverTheRest(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	type handed struct {
		fd   int
		rest string
	}
	got := make(chan handed, 1)
	attach(t, l, fd, &funcs{
		received: func(c *Conn, p []byte) int {
			c.Write(p[:2])
			c.Consume(2)
			fd, rest := c.Detach()
			got <- handed{fd, string(rest)}
			return 0
		},
		ended: func(*Conn, error) { t.Error("Ended after Detach") },
	})
	if _, err := peer.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	h := <-got
	if h.fd != fd || h.rest != "llo" {
		t.Errorf("got %+v", h)
	}
	if s := readAll(t, peer, 2); string(s) != "he" {
		t.Errorf("peer got %q", s)
	}
	unix.Close(h.fd)
	if _, err := peer.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
}

func TestADetachedNetConnSendsWhatWasQueued(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := unixPair(t)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1); err != nil {
		t.Fatal(err)
	}
	want := pattern(200_000)
	c := attach(t, l, fd, &funcs{})
	do(t, l, func() { c.Write(want) })
	do(t, l, func() {
		if c.Backlog() == 0 {
			t.Error("no backlog: nothing is tested")
		}
		nc, rest, err := c.DetachConn()
		if err != nil || len(rest) != 0 {
			t.Errorf("rest %q, %v", rest, err)
			return
		}
		go func() {
			defer nc.Close()
			_, _ = nc.Write([]byte("end"))
		}()
	})
	got, err := io.ReadAll(peer)
	if err != nil || !bytes.Equal(got, append(want, "end"...)) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}
