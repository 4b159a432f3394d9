package pooler

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/multipooler/multipooler/certs"
	"github.com/multipooler/multipooler/config"
)

// socket connects and returns the bare non-blocking descriptor.
func (p *Pooler) socket(ctx context.Context, t *target) (int, error) {
	cfg := p.config()
	dialer := net.Dialer{KeepAliveConfig: serverKeepalive(cfg.TCPKeepalive, cfg.Server.CheckPeriod)}
	conn, err := dialer.DialContext(ctx, t.cfg.Network(), t.cfg.Address())
	if err != nil {
		return -1, err
	}
	defer conn.Close()
	return dupSocket(conn)
}

// serverKeepalive makes the kernel notice within period that an idle server has
// vanished without a word: the first probe after half of it, then three. The
// socket of a parked connection is watched by its loop, so that this end, like
// any other, is seen at once and needs no query. (TCP_USER_TIMEOUT would watch
// busy connections too, but it also cuts a COPY IN that waits for a lock.)
// Without a period, --tcp-keepalive or the system decides.
func serverKeepalive(idle, period time.Duration) net.KeepAliveConfig {
	const probes = 3
	k := net.KeepAliveConfig{Enable: true, Idle: -1, Interval: -1, Count: -1}
	if idle > 0 {
		k.Idle = max(idle, time.Second)
	}
	if period > 0 {
		half := max(period/2, time.Second)
		if k.Idle < 0 || k.Idle > half {
			k.Idle = half
		}
		k.Interval, k.Count = max(half/probes, time.Second), probes
	}
	return k
}

// connect opens a blocking connection for a cancel request, with TLS where the
// target's connections have it.
func (p *Pooler) connect(ctx context.Context, t *target) (net.Conn, error) {
	fd, err := p.socket(ctx, t)
	if err != nil {
		return nil, err
	}
	encrypt := t.tls.Mode() >= certs.Prefer && !t.cfg.Unix()
	if encrypt && t.cfg.TLS.Negotiation != config.NegotiateDirect {
		err := askTLS(ctx, fd)
		switch {
		case errors.Is(err, errNoTLS) && t.tls.Mode() == certs.Prefer:
			encrypt = false
			closeFD(fd)
			if fd, err = p.socket(ctx, t); err != nil {
				return nil, err
			}
		case err != nil:
			closeFD(fd)
			return nil, err
		}
	}
	f := os.NewFile(uintptr(fd), "socket")
	raw, err := net.FileConn(f)
	f.Close() // net.FileConn has made a duplicate
	if err != nil || !encrypt {
		return raw, err
	}
	conn := tls.Client(raw, t.tls.Config(t.cfg.Host))
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// fileConn reads and writes a duplicate of a socket, parking the goroutine.
type fileConn struct{ *os.File }

func newFileConn(fd int) fileConn {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		dup = -1 // every call will say so
	}
	return fileConn{os.NewFile(uintptr(dup), "socket")}
}

// interruptAt makes reads and writes fail once ctx has ended. The returned
// function undoes it and waits for it.
func interruptAt(ctx context.Context, conn interface{ SetDeadline(time.Time) error }) (undo func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-done
		}
		_ = conn.SetDeadline(time.Time{})
	}
}

// awaitEnd waits for the server's EOF on a connection that came to nothing. One
// that goes on talking is not waited for.
func awaitEnd(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_WR)
	conn := newFileConn(fd)
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(dialQuarantine))
	_, _ = io.CopyN(io.Discard, conn.File, maxLogin)
}

// dupSocket duplicates the descriptor of a net.Conn or net.Listener.
func dupSocket(conn any) (int, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("no descriptor in a %T", conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, derr := -1, error(nil)
	err = raw.Control(func(s uintptr) { fd, derr = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, derr)
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// writeAll writes a few bytes to a socket whose buffer is empty.
func writeAll(fd int, p []byte) error {
	n, err := unix.Write(fd, p)
	if err == nil && n != len(p) {
		err = io.ErrShortWrite
	}
	return err
}

func isReset(err error) bool { return errors.Is(err, syscall.ECONNRESET) }
