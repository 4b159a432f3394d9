package pooler

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/protocol"
)

// hostile is a server that answers every connection with what script does.
func hostile(t *testing.T, script func(conn net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			all.Go(func() {
				defer conn.Close()
				script(conn)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return ln.Addr().String()
}

// say sends p after the startup packet, and then waits for the other end.
func say(p []byte) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1024))
		_, _ = conn.Write(p)
		_, _ = io.Copy(io.Discard, conn)
	}
}

// repeat sends p for ever.
func repeat(p []byte) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1024))
		for {
			if _, err := conn.Write(p); err != nil {
				return
			}
		}
	}
}

func message(typ byte, body string) []byte {
	n := len(body) + 4
	return append([]byte{typ, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}

func TestAHostileServerCostsOneFailedDialAndNoDescriptor(t *testing.T) {
	const (
		authOK    = "\x00\x00\x00\x00"
		cleartext = "\x00\x00\x00\x03"
	)
	ok := message('R', authOK)
	for name, script := range map[string]func(net.Conn){
		"closes at once":          func(net.Conn) {},
		"says nothing":            say(nil),
		"talks nonsense":          say([]byte(strings.Repeat("\xff", 4096))),
		"answers like HTTP":       say([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")),
		"claims a huge message":   say([]byte{'S', 0x3f, 0xff, 0xff, 0xff}),
		"claims a negative one":   say([]byte{'S', 0xff, 0xff, 0xff, 0xff}),
		"claims a short one":      say([]byte{'S', 0, 0, 0, 3}),
		"is ready without auth":   say(message('Z', "I")),
		"says more than ready":    say(append(append(ok, message('Z', "I")...), 'D')),
		"sends rows":              say(append(ok, message('D', "\x00\x00")...)),
		"asks for ever":           repeat(message('R', cleartext)),
		"admits for ever":         repeat(ok),
		"reports for ever":        repeat(message('S', strings.Repeat("n", 1000)+"\x00v\x00")),
		"notices for ever":        repeat(message('N', "SNOTICE\x00\x00")),
		"has a broken error":      say(message('E', "S")),
		"has an empty error":      say(message('E', "")),
		"has a broken parameter":  say(append(ok, message('S', "x")...)),
		"has a broken key":        say(append(ok, message('K', "x")...)),
		"wants unknown auth":      say(message('R', "\x00\x00\x00\x63")),
		"has an empty auth":       say(message('R', "")),
		"has broken SASL methods": say(message('R', "\x00\x00\x00\x0aSCRAM-SHA-256")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, "postgres://app:secret@"+hostile(t, script)+"/app?connect_timeout=1&sslmode=disable", "--auth-type", "trust")
			d, err := r.open(r.targets[0], connpool.Key{Target: r.targets[0].cfg.Name, Database: "app", User: "app"})
			if err == nil {
				closeFD(d.fd)
				t.Fatal("the dial succeeded")
			}
			if _, ok := errors.AsType[*DialError](err); !ok {
				t.Errorf("got a %T: %v", err, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err = pgconn.Connect(ctx, r.addressOf("app", "x", "app"))
			if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Severity != "FATAL" || strings.Contains(e.Error(), "127.0.0.1") {
				t.Errorf("the client was told %v", err)
			}
			if n := r.Totals().Panics; n != 0 {
				t.Errorf("%d panics", n)
			}
			eventually(t, "the slot is free", func() bool { return r.targets[0].arb.Stats().Held() == 0 })
		})
	}
}

func TestAFullServerMakesClientsWaitAndIsAskedAgain(t *testing.T) {
	var mu sync.Mutex
	refuse := 2
	full := protocol.AppendErrorResponse(nil, &protocol.Error{Severity: "FATAL", Code: "53300", Message: "sorry, too many clients already"})
	welcome := append(message('R', "\x00\x00\x00\x00"), message('S', "server_version\x0017.0\x00")...)
	welcome = append(append(welcome, message('K', "\x00\x00\x00\x01\x00\x00\x00\x02")...), message('Z', "I")...)
	r := run(t, "postgres://app:secret@"+hostile(t, func(conn net.Conn) {
		mu.Lock()
		refuse--
		answer, stay := welcome, refuse < 0
		if !stay {
			answer = full
		}
		mu.Unlock()
		_, _ = conn.Read(make([]byte, 1024))
		_, _ = conn.Write(answer)
		if stay {
			_, _ = io.Copy(io.Discard, conn)
		}
	})+"/app?sslmode=disable", "--auth-type", "trust", "--acquire-timeout", "20s")
	c := connect(t, r.addressOf("app", "x", "app"))
	if got := c.ParameterStatus("server_version"); got != "17.0" {
		t.Errorf("got server_version %q", got)
	}
}
