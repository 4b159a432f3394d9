package faultconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// echo is a server that sends back what it gets and ends with its client.
func echo(t *testing.T) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
	})
	return ln.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	conn, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	t.Cleanup(func() { conn.Close() })
	return conn
}

func proxy(t *testing.T, faults ...Fault) *Proxy {
	p, err := Listen(echo(t), func(int) []Fault { return faults })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestTheProxyForwardsWithoutFaults(t *testing.T) {
	p, err := ListenUnix(t.TempDir(), 5432, echo(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if filepath.Base(p.Addr()) != ".s.PGSQL.5432" {
		t.Errorf("listens on %s", p.Addr())
	}
	conn := dial(t, p.Addr())
	want := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	go func() {
		_, _ = conn.Write(want)
		_ = closeWrite(conn)
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d of %d bytes came back, %v", len(got), len(want), err)
	}
}

func TestTheProxyCutsBehindTheBytesItLetThrough(t *testing.T) {
	p := proxy(t, Fault{At: BeforeByte(ToClient, 4), Action: Cut})
	conn := dial(t, p.Addr())
	_, _ = conn.Write([]byte("abcdef"))
	// The two bytes that never arrive make the kernel answer with a reset in
	// some runs; what was let through is what counts.
	got, err := io.ReadAll(conn)
	if string(got) != "abcd" || (err != nil && !errors.Is(err, syscall.ECONNRESET)) {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestTheProxyResets(t *testing.T) {
	p := proxy(t, Fault{At: BeforeMessage(ToServer, 1), Action: Reset})
	conn := dial(t, p.Addr())
	_, _ = conn.Write(startup())
	if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("got %v, want a reset", err)
	}
}

func TestTheProxyStallsOneDirectionUntilReleased(t *testing.T) {
	release := make(chan struct{})
	p := proxy(t, Fault{At: BeforeByte(ToClient, 3), Action: Stall, Release: release})
	conn := dial(t, p.Addr())
	_, _ = conn.Write([]byte("abcdef"))
	buf := make([]byte, 6)
	if _, err := io.ReadFull(conn, buf[:3]); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(buf[3:]); err == nil {
		t.Fatalf("%d bytes came through a stall", n)
	}
	close(release)
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(conn, buf[3:]); err != nil || string(buf) != "abcdef" {
		t.Fatalf("%q, %v", buf, err)
	}
}

func TestClosingTheProxyEndsStalledConnections(t *testing.T) {
	p := proxy(t, Fault{At: BeforeByte(ToServer, 0), Action: Stall})
	conn := dial(t, p.Addr())
	_, _ = conn.Write([]byte("x"))
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	if p.Open() != 0 {
		t.Errorf("%d connections are left", p.Open())
	}
}

func TestEachConnectionHasItsOwnScript(t *testing.T) {
	p := proxy(t)
	p.SetScript(func(n int) []Fault {
		if n == 1 {
			return []Fault{{At: BeforeByte(ToServer, 0), Action: HalfClose}}
		}
		return nil
	})
	for n := range 3 {
		conn := dial(t, p.Addr())
		_, _ = conn.Write([]byte("hello"))
		if n == 1 {
			if got, _ := io.ReadAll(conn); len(got) != 0 {
				t.Errorf("connection 1 got %q", got)
			}
			continue
		}
		buf := make([]byte, 5)
		if _, err := io.ReadFull(conn, buf); err != nil {
			t.Errorf("connection %d: %v", n, err)
		}
		conn.Close()
	}
	if p.Accepted() != 3 {
		t.Errorf("accepted %d", p.Accepted())
	}
	p.CutAll(true)
}
