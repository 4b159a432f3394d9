package faultconn

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

// untyped builds a startup-like packet, typed a message with a type byte.
func untyped(code uint32, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	b = binary.BigEndian.AppendUint32(b, code)
	return append(b, body...)
}

func typed(t byte, body string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{t}, uint32(4+len(body)))
	return append(b, body...)
}

func startup() []byte { return untyped(3<<16, "user\x00u\x00\x00") }

func join(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// count runs p through a lane in pieces cut at the given sizes.
func count(l *lane, p []byte, piece func() int) {
	for len(p) > 0 {
		n := min(len(p), piece())
		l.admit(p[:n])
		p = p[n:]
	}
}

func TestMessagesAreCountedHoweverTheyAreCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var wireBytes []byte
		want := int64(1)
		wireBytes = append(wireBytes, startup()...)
		for range rapid.IntRange(0, 20).Draw(t, "messages") {
			body := rapid.StringN(0, 40, 40).Draw(t, "body")
			wireBytes = append(wireBytes, typed('Q', body)...)
			want++
		}
		l := newLane(&wire{}, ToServer, nil)
		count(l, wireBytes, func() int { return rapid.IntRange(1, 30).Draw(t, "piece") })
		if l.messages != want || l.bytes != int64(len(wireBytes)) || !l.framer.atBoundary() {
			t.Fatalf("got %d messages in %d bytes, want %d in %d", l.messages, l.bytes, want, len(wireBytes))
		}
	})
}

func TestTheAnswerToAnSSLRequestIsOneMessage(t *testing.T) {
	w := &wire{}
	up, down := newLane(w, ToServer, nil), newLane(w, ToClient, nil)
	up.admit(untyped(gssEncRequest, ""))
	down.admit([]byte("N"))
	up.admit(untyped(sslRequest, ""))
	down.admit([]byte("N"))
	up.admit(startup())
	down.admit(join(typed('R', "\x00\x00\x00\x00"), typed('N', "notice"), typed('Z', "I")))
	if up.messages != 3 || down.messages != 5 {
		t.Fatalf("got %d up and %d down, want 3 and 5", up.messages, down.messages)
	}
}

func TestNothingIsCountedInsideEncryption(t *testing.T) {
	w := &wire{}
	up := newLane(w, ToServer, []Fault{{At: BeforeMessage(ToServer, 1), Action: Stall}, {At: BeforeByte(ToServer, 12), Action: Cut}})
	down := newLane(w, ToClient, nil)
	if n, f := up.admit(untyped(sslRequest, "")); n != 8 || f == nil || f.Action != Stall {
		t.Fatalf("got %d, %v: the boundary behind the request is still known", n, f)
	}
	down.admit([]byte("S"))
	if n, f := up.admit([]byte("\x16\x03\x01\x00\x05")); n != 4 || f == nil || f.Action != Cut {
		t.Fatalf("got %d, %v, want the cut 4 bytes into the handshake", n, f)
	}
	if up.messages != 1 {
		t.Fatalf("counted %d messages", up.messages)
	}
}

func TestGarbageStopsTheCounting(t *testing.T) {
	l := newLane(&wire{}, ToServer, nil)
	l.admit([]byte("GET / HTTP/1.1\r\n"))
	l.admit([]byte{0, 0, 0, 1, 0, 0, 0, 0})
	if l.messages != 0 {
		t.Fatalf("counted %d messages in garbage", l.messages)
	}
	short := newLane(&wire{}, ToClient, nil)
	short.admit([]byte{'Z', 0, 0, 0, 2})
	if !short.framer.wire.isOpaque() {
		t.Fatal("a length below 4 went unnoticed")
	}
}

func TestAFaultFiresAtItsPointAndOnlyThere(t *testing.T) {
	all := join(startup(), typed('Q', "select 1"), typed('X', ""))
	for f := range EveryBoundary(Cut, 3) {
		if f.At.Direction == ToClient {
			continue
		}
		l := newLane(&wire{}, ToServer, []Fault{f})
		n, got := l.admit(all)
		want := []int{0, len(startup()), len(all) - 5}[f.At.N]
		if n != want || got == nil {
			t.Errorf("%s: passed %d bytes and met %v, want %d", f, n, got, want)
		}
	}
	for at := range len(all) {
		l := newLane(&wire{}, ToServer, []Fault{{At: BeforeByte(ToServer, int64(at)), Action: Cut}})
		if n, f := l.admit(all); n != at || f == nil {
			t.Errorf("before byte %d: passed %d, %v", at, n, f)
		}
	}
}
