//go:build linux

package eventloop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// PrepareTLS makes a configuration fit for the loop: full-size records from the
// start (crypto/tls would begin with small ones, each a packet) and no
// renegotiation. Handshakes do it for a configuration that is not prepared, by
// cloning it each time; prepare once, and keep the session ticket keys too.
// What GetConfigForClient returns must be prepared by its author.
func PrepareTLS(cfg *tls.Config) *tls.Config {
	if cfg.DynamicRecordSizingDisabled && cfg.Renegotiation == tls.RenegotiateNever {
		return cfg
	}
	cfg = cfg.Clone()
	cfg.DynamicRecordSizingDisabled = true
	cfg.Renegotiation = tls.RenegotiateNever
	return cfg
}

// HandshakeServer does the server's side of a TLS handshake on a non-blocking
// socket that is on no loop, and blocks until it is done, fails, or ctx ends.
// rest is what was read from the socket already. The descriptor stays the
// caller's; after success it goes to Attach together with the result.
func HandshakeServer(ctx context.Context, fd int, rest []byte, cfg *tls.Config) (*TLS, error) {
	return handshake(ctx, fd, rest, cfg, tls.Server, nil)
}

// HandshakeClient is HandshakeServer for the client's side. then, if not nil,
// goes on talking over the blocking connection after the handshake, in the same
// goroutine; what it has read is gone for the loop.
func HandshakeClient(ctx context.Context, fd int, rest []byte, cfg *tls.Config, then func(*tls.Conn) error) (*TLS, error) {
	return handshake(ctx, fd, rest, cfg, tls.Client, then)
}

func handshake(ctx context.Context, fd int, rest []byte, cfg *tls.Config, side func(net.Conn, *tls.Config) *tls.Conn, then func(*tls.Conn) error) (*TLS, error) {
	// The netpoller wants a descriptor that it may close, and a duplicate is
	// the only way to get the caller's back from it.
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor %d: %w", fd, err)
	}
	if err := unix.SetNonblock(dup, true); err != nil { // shared with fd
		unix.Close(dup)
		return nil, fmt.Errorf("make descriptor %d non-blocking: %w", fd, err)
	}
	sock := blockingConn{File: os.NewFile(uintptr(dup), "socket"), fd: fd}
	t := &TLS{link: link{blocking: sock}}
	if len(rest) > 0 {
		t.link.in = append([]byte(nil), rest...)
	}
	t.conn = side(&t.link, PrepareTLS(cfg))
	err = t.conn.HandshakeContext(ctx)
	if err == nil && then != nil {
		err = then(t.conn)
	}
	sock.Close() // before the loop sees fd: epoll would know the duplicate too
	if err != nil {
		return nil, err
	}
	return t, nil
}

// blockingConn is a net.Conn whose calls park the goroutine, without the dozen
// system calls of net.FileConn. It serves one handshake.
type blockingConn struct {
	*os.File
	fd int // for the addresses
}

func (c blockingConn) LocalAddr() net.Addr  { return LocalAddr(c.fd) }
func (c blockingConn) RemoteAddr() net.Addr { return RemoteAddr(c.fd) }

// DetachConn takes the conn out of the loop and makes it an ordinary net.Conn,
// a *tls.Conn if it was TLS, for a goroutine. rest is the plaintext that was
// delivered and not consumed: it comes before what the net.Conn reads. What the
// socket has not taken yet is sent by the first call of the net.Conn. The conn
// is over, without an Ended call; on an error the socket is closed.
func (c *Conn) DetachConn() (nc net.Conn, rest []byte, err error) {
	if _, ok := c.mustOwn("DetachConn"); !ok {
		return nil, nil, net.ErrClosed
	}
	l := c.loop.Load()
	l.leave(c)
	rest = append(rest, c.keep.bytes()...)
	var unsent []byte
	for _, s := range c.out.segments(make([][]byte, 0, 1+c.out.size/len(chunk{}.b)+1)) {
		unsent = append(unsent, s...)
	}
	l.ctl(unix.EPOLL_CTL_DEL, c.fd, 0, 0)
	l.release(c)
	f := os.NewFile(uintptr(c.fd), "socket")
	nc, err = net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		if nc != nil {
			nc.Close()
		}
		return nil, nil, fmt.Errorf("make a net.Conn of descriptor %d: %w", c.fd, err)
	}
	if len(unsent) > 0 {
		nc = &unsentConn{Conn: nc, unsent: unsent}
	}
	if c.tls != nil {
		c.tls.link.blocking, c.tls.link.c = nc, nil
		nc = c.tls.conn
	}
	return nc, rest, nil
}

// unsentConn sends what a loop had queued before its first read or write.
type unsentConn struct {
	net.Conn
	once   sync.Once
	unsent []byte
	err    error
}

func (c *unsentConn) catchUp() error {
	c.once.Do(func() {
		_, c.err = c.Conn.Write(c.unsent)
		c.unsent = nil
	})
	return c.err
}

func (c *unsentConn) Read(p []byte) (int, error) {
	if err := c.catchUp(); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *unsentConn) Write(p []byte) (int, error) {
	if err := c.catchUp(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
