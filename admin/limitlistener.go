package admin

import (
	"net"
	"sync"
)

// limitListener accepts at most a number of connections at a time; the rest
// wait in the kernel's backlog.
type limitListener struct {
	net.Listener
	seats  chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newLimitListener(ln net.Listener, n int) *limitListener {
	return &limitListener{Listener: ln, seats: make(chan struct{}, n), closed: make(chan struct{})}
}

// Accept waits for a seat first, so that Close must wake it.
func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.seats <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.seats
		return nil, err
	}
	return &seatedConn{Conn: conn, leave: sync.OnceFunc(func() { <-l.seats })}, nil
}

func (l *limitListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type seatedConn struct {
	net.Conn
	leave func()
}

func (c *seatedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
