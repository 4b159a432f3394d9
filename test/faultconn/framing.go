package faultconn

import (
	"encoding/binary"
	"sync"
)

// Request codes that stand where a startup packet's version stands
// (PostgreSQL manual, "Message Formats": SSLRequest, GSSENCRequest).
const (
	sslRequest    = 80877103
	gssEncRequest = 80877104
)

// wire is what the two directions of one connection must know of each other.
type wire struct {
	mu         sync.Mutex
	unanswered int  // encryption requests whose one-byte answer has not been seen
	opaque     bool // encrypted or not PostgreSQL: boundaries are unknown
}

func (w *wire) asked() {
	w.mu.Lock()
	w.unanswered++
	w.mu.Unlock()
}

func (w *wire) isOpaque() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opaque
}

func (w *wire) giveUp() {
	w.mu.Lock()
	w.opaque = true
	w.mu.Unlock()
}

// answered reports whether b is the one-byte answer to an encryption request.
func (w *wire) answered(b byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unanswered == 0 || (b != 'S' && b != 'N' && b != 'G') {
		return false
	}
	w.unanswered--
	w.opaque = b != 'N'
	return true
}

// framer finds message boundaries in one direction. It needs only headers.
type framer struct {
	wire    *wire
	dir     Direction
	startup bool // the next message has no type byte
	header  [8]byte
	have    int   // bytes of header seen
	rest    int64 // bytes of the message's body still to come
}

func newFramer(w *wire, d Direction) framer {
	return framer{wire: w, dir: d, startup: d == ToServer}
}

// atBoundary: no byte of an unfinished message has been seen.
func (f *framer) atBoundary() bool { return f.have == 0 && f.rest == 0 && !f.wire.isOpaque() }

// next takes bytes of at most one message from p and reports how many, and
// whether they finished the message. p must not be empty.
func (f *framer) next(p []byte) (n int, end bool) {
	switch {
	case f.wire.isOpaque():
		return len(p), false
	case f.rest > 0:
		n = int(min(f.rest, int64(len(p))))
		f.rest -= int64(n)
		return n, f.rest == 0
	case f.dir == ToClient && f.have == 0 && f.wire.answered(p[0]):
		return 1, true
	}
	need := 5
	if f.startup {
		need = 8
	}
	n = copy(f.header[f.have:need], p)
	f.have += n
	if f.have < need {
		return n, false
	}
	f.have = 0
	return n, f.headerDone()
}

// headerDone interprets a whole header and reports whether the message has no body.
func (f *framer) headerDone() bool {
	if !f.startup {
		f.rest = int64(binary.BigEndian.Uint32(f.header[1:5])) - 4
	} else {
		f.rest = int64(binary.BigEndian.Uint32(f.header[:4])) - 8
		switch binary.BigEndian.Uint32(f.header[4:8]) {
		case sslRequest, gssEncRequest:
			f.wire.asked()
		default:
			f.startup = false
		}
	}
	if f.rest < 0 {
		f.rest = 0
		f.wire.giveUp()
		return false
	}
	return f.rest == 0
}
