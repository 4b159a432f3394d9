//go:build linux

package eventloop

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// TLS runs the standard crypto/tls inside the loop. It reads and writes a link,
// which blocks on the socket during the handshake and is memory afterwards.
// What is relied on, and checked by tests per Go release:
//
//   - a Read whose connection returns a net.Error with Temporary() true fails
//     with that error, changes nothing, and can be repeated (conn.go,
//     readRecordOrCCS: only other errors become permanent);
//   - Read hands out at most what was received: repeating it until "again"
//     leaves no plaintext inside;
//   - Write returns after its records were given to the connection, and session
//     tickets, key updates and alerts are written during Read.
//
// Renegotiation (TLS 1.2) would handshake in the middle of Read and is refused,
// as PostgreSQL does.

const (
	maxRecord = 16 << 10 // plaintext
	sealPiece = 64 << 10 // plaintext sealed before it is sent
	keptSeal  = 128 << 10
)

// errAgain is what the link returns while it has nothing to read.
var errAgain net.Error = againError{}

type againError struct{}

func (againError) Error() string   { return "no bytes yet" }
func (againError) Timeout() bool   { return true }
func (againError) Temporary() bool { return true }

// TLS is the TLS state of a conn: made by a handshake, then given to Attach.
type TLS struct {
	conn *tls.Conn
	link link
}

// ConnectionState describes the finished handshake.
func (t *TLS) ConnectionState() tls.ConnectionState { return t.conn.ConnectionState() }

// TLS is the TLS state of the conn, nil if it is plain.
func (c *Conn) TLS() *TLS { return c.tls }

// link is the net.Conn below a tls.Conn.
type link struct {
	in       []byte   // to be read first
	eof      bool     // nothing comes after in
	blocking net.Conn // nil = on a loop
	c        *Conn    // whose loop takes what is written; nil = blocking
}

func (k *link) Read(p []byte) (int, error) {
	switch {
	case len(k.in) > 0:
		n := copy(p, k.in)
		k.in = k.in[n:]
		return n, nil
	case k.blocking != nil:
		return k.blocking.Read(p)
	case k.eof:
		return 0, io.EOF
	}
	return 0, errAgain
}

func (k *link) Write(p []byte) (int, error) {
	if k.blocking != nil {
		return k.blocking.Write(p)
	}
	l := k.c.loop.Load()
	l.tout = append(l.tout, p...)
	return len(p), nil
}

func (k *link) Close() error {
	if k.blocking != nil {
		return k.blocking.Close()
	}
	return nil
}

func (k *link) LocalAddr() net.Addr {
	if k.blocking != nil {
		return k.blocking.LocalAddr()
	}
	return LocalAddr(int(k.c.fd))
}

func (k *link) RemoteAddr() net.Addr {
	if k.blocking != nil {
		return k.blocking.RemoteAddr()
	}
	return RemoteAddr(int(k.c.fd))
}

func (k *link) SetDeadline(t time.Time) error {
	if k.blocking != nil {
		return k.blocking.SetDeadline(t)
	}
	return nil
}

func (k *link) SetReadDeadline(t time.Time) error {
	if k.blocking != nil {
		return k.blocking.SetReadDeadline(t)
	}
	return nil
}

func (k *link) SetWriteDeadline(t time.Time) error {
	if k.blocking != nil {
		return k.blocking.SetWriteDeadline(t)
	}
	return nil
}

// attachTLS takes t over and looks at once for what the handshake read ahead.
func (l *Loop) attachTLS(c *Conn, t *TLS) {
	if t.link.c != nil {
		panic("bug: TLS state attached twice")
	}
	t.link.c, t.link.blocking = c, nil
	c.tls = t
	c.flags |= flagFresh
	l.schedule(c, flagDeliver)
}

// readTLS is readOnce for a TLS conn.
func (l *Loop) readTLS(c *Conn) bool {
	if c.keep.len() >= l.cfg.MaxRemainder {
		l.full(c)
		return false
	}
	n, e := sysRead(c.fd, l.rbuf)
	switch {
	case n > 0:
		c.tls.link.in = l.rbuf[:n]
	case e == 0:
		c.tls.link.eof = true
	case e == unix.EAGAIN:
		return false
	default:
		l.end(c, e)
		return false
	}
	return l.open(c) && n == len(l.rbuf)
}

// readFresh looks for plaintext, or an end, that no event announces.
func (l *Loop) readFresh(c *Conn) {
	if c.keep != nil {
		l.redeliver(c)
		if !l.mine(c) || c.flags&(flagPaused|flagFull) != 0 {
			return
		}
	}
	c.flags &^= flagFresh
	l.open(c)
}

// open decrypts all that the link has and delivers it behind what is kept. All
// of it: the link's bytes are in the loop's read buffer, and epoll knows nothing
// of bytes inside of crypto/tls.
func (l *Loop) open(c *Conn) bool {
	if l.pbuf == nil {
		l.pbuf = make([]byte, len(l.rbuf)/2+len(l.rbuf)+2*maxRecord)
	}
	k := 0 // how much of what is kept goes in front, see readOnce
	if c.keep.len() <= len(l.rbuf)/2 {
		k = copy(l.pbuf, c.keep.bytes())
	}
	off := k
	var err error
	for err == nil {
		if len(l.pbuf)-off < maxRecord { // more only after a long handshake read-ahead
			l.pbuf = append(l.pbuf, make([]byte, maxRecord)...)
		}
		var n int
		n, err = c.tls.conn.Read(l.pbuf[off:])
		off += n
	}
	l.sendSealed(c) // an alert, a ticket, a key update
	if off > k {
		p, keep := l.pbuf[:off], (*keepBuf)(nil)
		if k == 0 && c.keep != nil {
			c.keep = c.keep.append(p)
			p, keep = c.keep.bytes(), c.keep
		}
		if !l.deliver(c, p, keep) {
			return false
		}
	}
	if err == errAgain { //nolint:errorlint // crypto/tls must return it as it is, see above
		return true
	}
	if c.flags&(flagPaused|flagFull) != 0 {
		c.flags |= flagFresh // the error stays in crypto/tls until reading resumes
		return false
	}
	l.end(c, err)
	return false
}

// sealAndSend encrypts segs into as few records as they fit and sends those.
func (l *Loop) sealAndSend(c *Conn, segs [][]byte) {
	if c.flags&flagWErr != 0 {
		return
	}
	total := 0
	for _, s := range segs {
		total += len(s)
	}
	if len(segs) > 1 && total <= sealPiece {
		l.plain = l.plain[:0]
		for _, s := range segs {
			l.plain = append(l.plain, s...)
		}
		l.seal(c, l.plain)
		return
	}
	for _, s := range segs {
		l.seal(c, s)
	}
}

func (l *Loop) seal(c *Conn, p []byte) {
	for len(p) > 0 && c.flags&flagWErr == 0 {
		piece := p[:min(len(p), sealPiece)]
		p = p[len(piece):]
		_, err := c.tls.conn.Write(piece)
		l.sendSealed(c)
		if err != nil {
			// crypto/tls has given up on the connection, and told the peer; why
			// is for the next Read to say.
			l.writeFailed(c, unix.EPIPE)
		}
	}
}

// sendSealed sends what crypto/tls has written.
func (l *Loop) sendSealed(c *Conn) {
	if len(l.tout) == 0 {
		return
	}
	l.segs[0] = l.tout
	l.send(c, l.segs[:1])
	l.segs[0] = nil
	if l.tout = l.tout[:0]; cap(l.tout) > keptSeal {
		l.tout = nil
	}
}

// closeNotify tells the peer that no more is coming, once.
func (l *Loop) closeNotify(c *Conn) {
	if c.flags&flagWErr != 0 {
		return
	}
	if err := c.tls.conn.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) {
		l.tout = l.tout[:0]
		return
	}
	l.sendSealed(c)
}
