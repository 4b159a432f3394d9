package pooler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/multipooler/multipooler/config"
	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/protocol"
)

// peer is where a client comes from.
type peer struct {
	addr netip.AddrPort
	unix bool
}

func (p peer) String() string {
	if p.unix {
		return "unix"
	}
	return p.addr.String()
}

// listener accepts on one address, on the first loop. Accepted sockets inherit
// its options (TCP_NODELAY, keep-alive), so that a connection costs one system
// call here.
type listener struct {
	p     *Pooler
	ln    net.Listener
	fd    int // a duplicate, because a net.Listener does not let us accept a bare descriptor
	timer eventloop.Timer
	pause time.Duration
}

// start begins to accept.
func (l *listener) start() {
	w := l.p.workers[0]
	l.timer.F = func(int64) { l.watch() }
	w.loop.Post(task(func(*eventloop.Loop) { l.watch() }))
}

func (l *listener) watch() {
	if err := l.p.workers[0].loop.Watch(l.fd, l.accept); err != nil {
		l.p.log.Error("cannot accept", zap.Stringer("address", l.ln.Addr()), zap.Error(err))
	}
}

// stop ends accepting and closes; it waits for the loop.
func (l *listener) stop() {
	done := make(chan struct{})
	w := l.p.workers[0]
	if w.loop.Post(task(func(*eventloop.Loop) {
		w.loop.Forget(&l.timer)
		w.loop.Unwatch(l.fd)
		close(done)
	})) {
		<-done
	}
	l.close()
}

func (l *listener) close() {
	closeFD(l.fd)
	l.ln.Close()
}

// listen binds one address.
func (p *Pooler) listen(ctx context.Context, at config.Listener) (*listener, error) {
	lc := net.ListenConfig{KeepAlive: -1, Control: func(network, _ string, c syscall.RawConn) error {
		if network == "unix" {
			return nil
		}
		var serr error
		err := c.Control(func(fd uintptr) { serr = setTCPOptions(int(fd), p.config().TCPKeepalive) })
		return errors.Join(err, serr)
	}}
	if at.Network() == "unix" {
		if err := removeStale(at.Address()); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", at, err)
		}
	}
	ln, err := lc.Listen(ctx, at.Network(), at.Address())
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
	if at.Network() == "unix" {
		if err := os.Chmod(at.Address(), p.config().UnixSocketMode); err != nil {
			ln.Close()
			return nil, fmt.Errorf("listen on %s: %w", at, err)
		}
	}
	fd, err := dupSocket(ln)
	if err != nil {
		ln.Close()
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
	return &listener{p: p, ln: ln, fd: fd}, nil
}

// removeStale removes a socket file that nobody listens on any more.
func removeStale(path string) error {
	if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket == 0 {
		return errors.New("something that is not a socket has this name")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		conn.Close()
		return errors.New("another process listens there")
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	}
	return nil
}

func setTCPOptions(fd int, keepalive time.Duration) error {
	err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1))
	if s := int(keepalive / time.Second); s > 0 {
		err = errors.Join(err,
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, s),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, max(s/4, 1)))
	}
	return err
}

// The back-off while the process has no descriptors: going on at once would
// spin.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// accept takes one client; the loop calls again while there are more.
func (l *listener) accept() {
	fd, sa, err := unix.Accept4(l.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	switch {
	case err == nil:
		l.pause = 0
		l.p.accepted(fd, peerOf(sa))
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
	default:
		l.pause = min(max(2*l.pause, minAcceptPause), maxAcceptPause)
		l.p.log.Warn("accept failed", zap.Stringer("address", l.ln.Addr()), zap.Error(err), zap.Duration("pause", l.pause))
		w := l.p.workers[0]
		w.loop.Unwatch(l.fd)
		w.loop.Arm(&l.timer, w.now()+int64(l.pause))
	}
}

func peerOf(sa unix.Sockaddr) peer {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return peer{addr: netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))}
	case *unix.SockaddrInet6:
		return peer{addr: netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))}
	}
	return peer{unix: true}
}

// accepted hands a fresh socket to a loop, unless there are too many clients
// that have not logged in.
func (p *Pooler) accepted(fd int, from peer) {
	most := p.config().Client.MaxUnauthenticated
	if p.loggingIn.Add(1) > int64(most) {
		p.loginOver()
		p.stats.logins[loginTooMany].Add(1)
		p.noisy.Info("login refused", zap.String("address", from.String()), zap.String("reason", "too many clients are logging in"),
			zap.Int("max_unauthenticated_clients", most))
		_ = writeAll(fd, protocol.AppendErrorResponse(nil, &protocol.Error{
			Severity: protocol.SeverityFatal, Code: "53300",
			Message: "too many clients are logging in",
			Detail:  "There are " + strconv.Itoa(most) + ", the most that --max-unauthenticated-clients allows.",
		}))
		closeFD(fd)
		return
	}
	w := p.place()
	c := &clientConn{id: p.nextID.Add(1), peer: from}
	c.home.Store(w)
	if w == p.workers[0] { // accept runs there
		w.welcome(c, fd)
		return
	}
	if !w.loop.Post(task(func(*eventloop.Loop) { w.welcome(c, fd) })) {
		p.loginOver()
		closeFD(fd)
	}
}

// welcome begins the login of a client on its loop.
func (w *worker) welcome(c *clientConn, fd int) {
	ec, err := w.loop.Attach(fd, c, nil)
	if err != nil {
		w.p.log.Warn("client connection cannot be taken", zap.Error(err))
		w.p.loginOver()
		closeFD(fd)
		return
	}
	c.ec = ec
	c.connected = w.now()
	w.add(c)
	c.login = &login{c: c, deadline: w.now() + int64(w.p.config().Client.LoginTimeout)}
	c.login.arm()
}
