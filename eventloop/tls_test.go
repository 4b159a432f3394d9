//go:build linux

package eventloop

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var testCert = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"server"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
})

func tlsConfigs(version uint16) (server, client *tls.Config) {
	server = &tls.Config{Certificates: []tls.Certificate{testCert()}, MinVersion: version, MaxVersion: version}
	leaf, err := x509.ParseCertificate(testCert().Certificate[0])
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	client = &tls.Config{RootCAs: roots, ServerName: "server", MinVersion: version, MaxVersion: version}
	return server, client
}

// tlsSide says which side of the handshake the loop has.
type tlsSide struct {
	name    string
	version uint16
	server  bool
}

var tlsSides = []tlsSide{
	{"1.2 server", tls.VersionTLS12, true},
	{"1.2 client", tls.VersionTLS12, false},
	{"1.3 server", tls.VersionTLS13, true},
	{"1.3 client", tls.VersionTLS13, false},
}

// shake does both sides of a handshake: peer's with the standard library alone.
func (s tlsSide) shake(t testing.TB, fd int, peer net.Conn) (*TLS, *tls.Conn) {
	t.Helper()
	serverCfg, clientCfg := tlsConfigs(s.version)
	var other *tls.Conn
	if s.server {
		other = tls.Client(peer, clientCfg)
	} else {
		other = tls.Server(peer, serverCfg)
	}
	errs := make(chan error, 1)
	go func() { errs <- other.Handshake() }()
	var mine *TLS
	var err error
	if s.server {
		mine, err = HandshakeServer(t.Context(), fd, nil, serverCfg)
	} else {
		mine, err = HandshakeClient(t.Context(), fd, nil, clientCfg, nil)
	}
	if err = errors.Join(err, <-errs); err != nil {
		t.Fatal(err)
	}
	return mine, other
}

func (s tlsSide) attach(t testing.TB, l *Loop, h Handler) (*Conn, *tls.Conn) {
	t.Helper()
	fd, peer := tcpPair(t)
	mine, other := s.shake(t, fd, peer)
	return attachTLSConn(t, l, fd, h, mine), other
}

func attachTLSConn(t testing.TB, l *Loop, fd int, h Handler, mine *TLS) (c *Conn) {
	t.Helper()
	do(t, l, func() {
		var err error
		if c, err = l.Attach(fd, h, mine); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestFiftyMegabytesOfTLSAreIdenticalInBothDirections(t *testing.T) {
	want := pattern(50 << 20)
	for _, side := range tlsSides {
		t.Run(side.name, func(t *testing.T) {
			l := startLoop(t, 0, Config{})
			got := make([]byte, 0, len(want))
			sent := 0
			ended := make(chan error, 1)
			send := func(c *Conn) {
				for sent < len(want) && !c.Congested() {
					n := min(100_000, len(want)-sent)
					c.Write(want[sent : sent+n])
					sent += n
				}
				if sent == len(want) {
					c.CloseWrite()
				}
			}
			c, peer := side.attach(t, l, &funcs{
				received: func(_ *Conn, p []byte) int { got = append(got, p...); return len(p) },
				drained:  send,
				ended:    func(_ *Conn, err error) { ended <- err },
			})
			do(t, l, func() { send(c) })
			var back []byte
			var err error
			var reader sync.WaitGroup
			reader.Go(func() { back, err = io.ReadAll(peer) })
			if _, err := peer.Write(want); err != nil {
				t.Error(err)
			}
			reader.Wait() // up to our close_notify
			peer.Close()
			if e := <-ended; e != io.EOF {
				t.Errorf("Ended(%v)", e)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the loop got %d bytes, or others", len(got))
			}
			if !bytes.Equal(back, want) || err != nil {
				t.Errorf("the peer got %d bytes, %v", len(back), err)
			}
		})
	}
}

// drip sends its bytes one by one.
type drip struct{ net.Conn }

func (d drip) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := d.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

func TestTLSThatArrivesByteByByte(t *testing.T) {
	for _, side := range tlsSides {
		l := startLoop(t, 0, Config{})
		fd, raw := tcpPair(t)
		mine, peer := side.shake(t, fd, drip{raw})
		attachTLSConn(t, l, fd, &funcs{received: echo}, mine)
		for _, n := range []int{1, 10, 1000, 17_000} {
			go func() { _, _ = peer.Write(pattern(n)) }()
			if got := readAll(t, peer, n); !bytes.Equal(got, pattern(n)) {
				t.Errorf("%s: echo of %d bytes differs", side.name, n)
			}
		}
	}
}

func TestWritesOfOneCallShareARecord(t *testing.T) {
	l := startLoop(t, 0, Config{})
	c, peer := tlsSides[2].attach(t, l, &funcs{})
	do(t, l, func() {
		for range 30 {
			c.Write([]byte("0123456789"))
		}
	})
	p := make([]byte, 1000) // Read returns one record at most
	if n, err := peer.Read(p); n < 160 || err != nil {
		t.Errorf("the first record has %d bytes (%v)", n, err)
	}
}

func TestWhatTheHandshakeReadAheadIsDelivered(t *testing.T) {
	l := startLoop(t, 0, Config{})
	serverCfg, clientCfg := tlsConfigs(tls.VersionTLS13)
	fd, raw := tcpPair(t)
	peer := tls.Client(raw, clientCfg)
	sent := make(chan error, 1)
	go func() {
		_, err := peer.Write([]byte("hello")) // in one flight with the client's Finished, or close to it
		sent <- err
	}()
	// What a loop would have read before it found out that this is TLS.
	hello := readAll(t, readerFD(fd), 100)
	mine, err := HandshakeServer(t.Context(), fd, hello, serverCfg)
	if err = errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
	// If the handshake did not take it, take it: epoll is to have nothing to report.
	p := make([]byte, 1000)
	if n, err := unix.Read(fd, p); err == nil {
		mine.link.in = p[:n]
	}
	got := make(chan string, 1)
	attachTLSConn(t, l, fd, &funcs{received: func(_ *Conn, p []byte) int { got <- string(p); return len(p) }}, mine)
	if s := <-got; s != "hello" {
		t.Errorf("got %q", s)
	}
}

type readerFD int

func (fd readerFD) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(fd), p)
		if err != unix.EAGAIN {
			return n, err
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
			return 0, err
		}
	}
}

func TestAPausedTLSConnKeepsItsPlaintext(t *testing.T) {
	for _, side := range tlsSides {
		l := startLoop(t, 0, Config{})
		events := make(chan string, 9)
		c, peer := side.attach(t, l, &funcs{
			received: func(c *Conn, p []byte) int { c.PauseRead(); events <- string(p); return 1 },
			ended:    func(_ *Conn, err error) { events <- err.Error() },
		})
		_, _ = peer.Write([]byte("abc"))
		peer.Close()
		for _, want := range []string{"abc", "bc", "c", "EOF"} {
			if got := <-events; got != want {
				t.Errorf("%s: got %q, want %q", side.name, got, want)
			}
			if len(events) != 0 {
				t.Errorf("%s: %q while paused", side.name, <-events)
			}
			do(t, l, func() { c.ResumeRead() })
		}
	}
}

func TestClosingTellsTheTLSPeer(t *testing.T) {
	for _, side := range tlsSides {
		l := startLoop(t, 0, Config{})
		c, peer := side.attach(t, l, &funcs{})
		do(t, l, func() { c.Write([]byte("bye")); c.Close() })
		raw, err := io.ReadAll(peer.NetConn())
		if err != nil || len(raw) < 40 {
			t.Errorf("%s: got %d bytes, %v", side.name, len(raw), err)
		}
		// The same through crypto/tls, which knows the alert from a cut.
		c, peer = side.attach(t, l, &funcs{})
		do(t, l, func() { c.Write([]byte("bye")); c.Close() })
		if got, err := io.ReadAll(peer); string(got) != "bye" || err != nil {
			t.Errorf("%s: got %q, %v", side.name, got, err)
		}
	}
}

func TestACutTLSRecordIsNotAnOrderlyEnd(t *testing.T) {
	l := startLoop(t, 0, Config{})
	ended := make(chan error, 1)
	_, peer := tlsSides[2].attach(t, l, &funcs{ended: func(_ *Conn, err error) { ended <- err }})
	_, _ = peer.NetConn().Write([]byte{23, 3, 3, 0, 100, 1, 2, 3})
	_ = peer.NetConn().(*net.TCPConn).CloseWrite()
	if err := <-ended; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Ended(%v), want %v", err, io.ErrUnexpectedEOF)
	}
}

func TestGarbageOnATLSConnEndsItWithAnAlert(t *testing.T) {
	l := startLoop(t, 0, Config{})
	ended := make(chan error, 1)
	_, peer := tlsSides[2].attach(t, l, &funcs{ended: func(_ *Conn, err error) { ended <- err }})
	_, _ = peer.NetConn().Write(append([]byte{23, 3, 3, 0, 100}, make([]byte, 100)...))
	if err := <-ended; err == nil || errors.Is(err, io.EOF) {
		t.Errorf("Ended(%v)", err)
	}
	if _, err := peer.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the peer reads %v, want the alert", err)
	}
}

func TestATLSConnMovesBetweenLoops(t *testing.T) {
	a, b := startLoop(t, 0, Config{}), startLoop(t, 1, Config{})
	got := make(chan string, 1)
	c, peer := tlsSides[3].attach(t, a, &funcs{received: func(c *Conn, p []byte) int {
		got <- fmt.Sprintf("%s on %d", p, c.Loop().ID())
		c.Write(p)
		return len(p)
	}})
	for i := range 6 {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		do(t, from, c.Park)
		if !c.TryClaim(to.ID()) {
			t.Fatal("not claimed")
		}
		do(t, to, func() {
			if err := to.Adopt(c); err != nil {
				t.Error(err)
			}
		})
		_, _ = peer.Write([]byte("x"))
		if s, want := <-got, fmt.Sprintf("x on %d", to.ID()); s != want {
			t.Errorf("got %q, want %q", s, want)
		}
		readAll(t, peer, 1)
		do(t, to, func() {})
	}
}

func TestADetachedTLSConnGoesOnInAGoroutine(t *testing.T) {
	for _, side := range tlsSides {
		l := startLoop(t, 0, Config{})
		type handed struct {
			nc   net.Conn
			rest []byte
			err  error
		}
		got := make(chan handed, 1)
		_, peer := side.attach(t, l, &funcs{received: func(c *Conn, p []byte) int {
			c.Write(p[:1])
			c.Consume(1)
			nc, rest, err := c.DetachConn()
			got <- handed{nc, rest, err}
			return 0
		}})
		_, _ = peer.Write([]byte("abc"))
		h := <-got
		if string(h.rest) != "bc" || h.err != nil {
			t.Fatalf("%s: rest %q, %v", side.name, h.rest, h.err)
		}
		go func() {
			_, _ = h.nc.Write([]byte("from a goroutine"))
			_, _ = io.Copy(h.nc, h.nc)
			h.nc.Close()
		}()
		_, _ = peer.Write([]byte(" and back"))
		_ = peer.CloseWrite()
		if all, err := io.ReadAll(peer); string(all) != "afrom a goroutine and back" || err != nil {
			t.Errorf("%s: got %q, %v", side.name, all, err)
		}
	}
}

func TestASessionTicketThatArrivesInTheLoopIsUsed(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		l := startLoop(t, 0, Config{})
		serverCfg, clientCfg := tlsConfigs(version)
		clientCfg.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		for i := range 2 {
			fd, raw := tcpPair(t)
			peer := tls.Server(raw, serverCfg)
			go func() { _, _ = peer.Write([]byte("x")) }()
			mine, err := HandshakeClient(t.Context(), fd, nil, clientCfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := mine.ConnectionState().DidResume, i == 1; got != want {
				t.Errorf("version %x, handshake %d: resumed %v", version, i, got)
			}
			done := make(chan bool, 1)
			attachTLSConn(t, l, fd, &funcs{received: func(c *Conn, p []byte) int { done <- true; return len(p) }}, mine)
			<-done
		}
	}
}

func TestAHandshakeEndsWithItsContextAndLeavesTheDescriptor(t *testing.T) {
	serverCfg, _ := tlsConfigs(tls.VersionTLS13)
	fd, peer := tcpPair(t)
	defer unix.Close(fd)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 1)
	go func() {
		_, err := HandshakeServer(ctx, fd, []byte{22, 3, 1}, serverCfg)
		errs <- err
	}()
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := unix.Write(fd, []byte("still ours")); err != nil {
		t.Error(err)
	}
	if got := readAll(t, peer, 10); string(got) != "still ours" {
		t.Errorf("got %q", got)
	}
}

func TestAPreparedConfigIsNotCopiedAgain(t *testing.T) {
	serverCfg, _ := tlsConfigs(tls.VersionTLS13)
	serverCfg.Renegotiation = tls.RenegotiateFreelyAsClient
	prepared := PrepareTLS(serverCfg)
	if prepared == serverCfg || serverCfg.DynamicRecordSizingDisabled {
		t.Error("the caller's configuration was changed")
	}
	if !prepared.DynamicRecordSizingDisabled || prepared.Renegotiation != tls.RenegotiateNever || PrepareTLS(prepared) != prepared {
		t.Error("not prepared, or prepared twice")
	}
}

// An idle TLS client that has run a few small queries costs what crypto/tls
// keeps, and nothing of ours but the Conn and the TLS.
func TestMemoryOfAnIdleTLSClient(t *testing.T) {
	const n = 200
	l := startLoop(t, 0, Config{})
	serverCfg, clientCfg := tlsConfigs(tls.VersionTLS13)
	serverCfg = PrepareTLS(serverCfg)
	var fds []int
	var peers []net.Conn
	for range n {
		fd, peer := tcpPair(t)
		fds, peers = append(fds, fd), append(peers, peer)
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	kept := make([]*Conn, 0, n)
	for i, fd := range fds {
		peer := tls.Client(peers[i], clientCfg)
		go func() { _, _ = peer.Write(make([]byte, 100)) }()
		mine, err := HandshakeServer(t.Context(), fd, nil, serverCfg)
		if err != nil {
			t.Fatal(err)
		}
		c := attachTLSConn(t, l, fd, &funcs{received: echo}, mine)
		readAll(t, peer, 100)
		kept = append(kept, c)
	}
	per := (heap() - before) / n
	t.Logf("%d bytes per idle TLS client", per)
	if per > 12<<10 {
		t.Errorf("%d bytes per idle TLS client, want at most 12 KiB", per)
	}
	do(t, l, func() {
		for _, c := range kept {
			c.Close()
		}
	})
}
