package faultconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// dialTimeout bounds a Proxy's connect to its target.
const dialTimeout = 10 * time.Second

// Proxy forwards connections to one target and lets faults happen on the way.
// It owns a goroutine that accepts and two per connection; Close waits for all.
type Proxy struct {
	listener net.Listener
	target   string
	ctx      context.Context // ends with Close; bounds the dials
	cancel   context.CancelFunc
	tasks    sync.WaitGroup

	mu struct {
		sync.Mutex
		script   func(n int) []Fault
		accepted int
		open     map[*link]struct{}
		closed   bool
	}
}

// link is one forwarded connection.
type link struct {
	client, server net.Conn
	gone           chan struct{} // closed with the connection: ends stalls
	once           sync.Once
}

// Listen starts a proxy on a free loopback port. target is host:port or the
// path of a unix socket. script is asked once per accepted connection, which
// is numbered from 0; nil means no faults.
func Listen(target string, script func(n int) []Fault) (*Proxy, error) {
	return listen("tcp", "127.0.0.1:0", target, script)
}

// ListenUnix is Listen on a unix socket in dir, named as PostgreSQL names the
// socket of port (".s.PGSQL.<port>"), so that libpq finds it.
func ListenUnix(dir string, port int, target string, script func(n int) []Fault) (*Proxy, error) {
	return listen("unix", filepath.Join(dir, fmt.Sprintf(".s.PGSQL.%d", port)), target, script)
}

func listen(network, address, target string, script func(n int) []Fault) (*Proxy, error) {
	ln, err := net.Listen(network, address)
	if err != nil {
		return nil, fmt.Errorf("faultconn: listen: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{listener: ln, target: target, ctx: ctx, cancel: cancel}
	p.mu.script = script
	p.mu.open = make(map[*link]struct{})
	p.tasks.Go(p.accept)
	return p, nil
}

// Addr is where clients connect: host:port, or the path of the unix socket.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetScript replaces the script for connections accepted from now on.
func (p *Proxy) SetScript(script func(n int) []Fault) {
	p.mu.Lock()
	p.mu.script = script
	p.mu.Unlock()
}

// Accepted counts the connections since the start.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.accepted
}

// Open counts the connections that are being forwarded now.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.open)
}

// CutAll ends every connection that is open now; the proxy goes on accepting.
func (p *Proxy) CutAll(reset bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.mu.open {
		l.end(reset)
	}
}

// Close ends the proxy and all its connections and waits for its goroutines.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.mu.closed = true
	p.mu.Unlock()
	p.cancel()
	err := p.listener.Close()
	p.CutAll(false)
	p.tasks.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return // Close, or a listener that is beyond use
		}
		p.mu.Lock()
		n, script := p.mu.accepted, p.mu.script
		p.mu.accepted++
		p.mu.Unlock()
		var faults []Fault
		if script != nil {
			faults = script(n)
		}
		p.tasks.Go(func() { p.forward(conn, faults) })
	}
}

// forward owns client and runs one connection to its end.
func (p *Proxy) forward(client net.Conn, faults []Fault) {
	network := "tcp"
	if strings.HasPrefix(p.target, "/") {
		network = "unix"
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	server, err := dialer.DialContext(p.ctx, network, p.target)
	if err != nil {
		client.Close()
		return
	}
	l := &link{client: client, server: server, gone: make(chan struct{})}
	p.mu.Lock()
	if p.mu.closed {
		l.end(false)
	}
	p.mu.open[l] = struct{}{}
	p.mu.Unlock()
	defer func() {
		l.end(false)
		p.mu.Lock()
		delete(p.mu.open, l)
		p.mu.Unlock()
	}()

	w := &wire{}
	var back sync.WaitGroup
	back.Go(func() { l.pump(client, server, newLane(w, ToClient, faults)) })
	l.pump(server, client, newLane(w, ToServer, faults))
	back.Wait()
}

// end closes both sides once; reset makes both peers see ECONNRESET.
func (l *link) end(reset bool) {
	l.once.Do(func() {
		close(l.gone)
		if reset {
			setLingerZero(l.client)
			setLingerZero(l.server)
		}
		l.client.Close()
		l.server.Close()
	})
}

// errHalfClosed ends a pump whose direction alone was closed.
var errHalfClosed = errors.New("half closed")

// pump copies src to dst through one lane until src ends, a fault ends it, or
// either side fails. An orderly end of src is passed on as a half close.
func (l *link) pump(dst, src net.Conn, lane *lane) {
	buf := make([]byte, 32<<10)
	if err := l.pass(dst, nil, lane); err != nil {
		return
	}
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if passErr := l.pass(dst, buf[:n], lane); passErr != nil {
				return
			}
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) && closeWrite(dst) == nil {
			return
		}
		l.end(errors.Is(err, syscall.ECONNRESET))
		return
	}
}

// pass writes p to dst with the faults that lie inside and right behind it.
func (l *link) pass(dst net.Conn, p []byte, lane *lane) error {
	for {
		n, f := lane.admit(p)
		if n > 0 {
			if _, err := dst.Write(p[:n]); err != nil {
				l.end(false)
				return err
			}
			p = p[n:]
		}
		if f != nil {
			if err := l.happen(dst, *f); err != nil {
				return err
			}
			continue
		}
		if len(p) == 0 {
			return nil
		}
	}
}

func (l *link) happen(dst net.Conn, f Fault) error {
	switch f.Action {
	case Cut, Reset:
		l.end(f.Action == Reset)
		return ErrInjected
	case HalfClose:
		_ = closeWrite(dst)
		return errHalfClosed
	case Stall:
		select {
		case <-f.Release:
			return nil
		case <-l.gone:
			return net.ErrClosed
		}
	}
	panic("bug: faultconn: " + f.String() + " cannot happen to a Proxy")
}
