package fidelity

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// What the oracles of this folder have found once, without luck.

// session opens a connection that ends with the test.
func (b *bed) session(t *testing.T) *pgconn.PgConn {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer stop()
		_ = conn.Close(ctx)
	})
	return conn
}

// value runs a simple query and returns its last value.
func value(t *testing.T, conn *pgconn.PgConn, sql string) string {
	t.Helper()
	res, err := conn.Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatal(sql, err)
	}
	last := res[len(res)-1].Rows
	if len(last) == 0 {
		return ""
	}
	return string(last[len(last)-1][0])
}

// The statement stays in a server connection that nobody uses any more, while
// the session goes on in another one: the pool lends the one that came back last.
func TestAnUnnamedStatementThatWasEndedElsewhereIsGone(t *testing.T) {
	const where = "select pg_backend_pid()"
	for _, tt := range []struct {
		name, next, want string
	}{
		{"by a query", "", "SQLSTATE 26000"},
		{"by another statement", "select 'second'", "second"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, 2, "--event-loops=1")
			c, other := b.session(t), b.session(t)
			one := value(t, c, "begin; "+where)
			two := value(t, other, "begin; "+where)
			value(t, c, "commit")
			prepare(t, c, "select 'first'") // in one, the only one that is free
			value(t, other, "commit")

			if tt.next != "" {
				prepare(t, c, tt.next)
			} else if got := value(t, c, where); got != two {
				t.Fatalf("in %s, want %s: the pool chooses in another way now, so must this test", got, two)
			}
			if got := value(t, other, "begin; "+where); got != two {
				t.Fatalf("in %s, want %s: the pool chooses in another way now, so must this test", got, two)
			}
			r := c.ExecPrepared(t.Context(), "", nil, nil, nil).Read() // in one
			got := fmt.Sprint(r.Err)
			if len(r.Rows) == 1 {
				got = string(r.Rows[0][0])
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %s", got, tt.want)
			}
			if got := value(t, c, where); got != one {
				t.Errorf("in %s, want %s: nothing was proven", got, one)
			}
		})
	}
}

func prepare(t *testing.T, conn *pgconn.PgConn, sql string) {
	t.Helper()
	if _, err := conn.Prepare(t.Context(), "", sql, nil); err != nil {
		t.Fatal(err)
	}
}

// serverBuffer is PostgreSQL's: what does not fit goes out without a Flush.
const serverBuffer = 8192

func TestAFlushBringsTheEndOfAReplyThatHasBegun(t *testing.T) {
	b := newBed(t, 1)
	hijacked, err := b.session(t).Hijack()
	if err != nil {
		t.Fatal(err)
	}
	conn := hijacked.Conn
	defer conn.Close()
	// ParseComplete, BindComplete, the DataRow's header, CommandComplete.
	const around, header, tail = 5 + 5 + 11, 5, 5 + len("SELECT 1\x00")
	for cut := header; cut < tail; cut++ { // bytes of CommandComplete in the first buffer
		size := serverBuffer - around - cut
		sql := fmt.Sprintf("select repeat('x', %d)", size)
		write(t, conn, &pgproto3.Parse{Query: sql}, &pgproto3.Bind{}, &pgproto3.Execute{})
		read(t, conn, serverBuffer-cut)
		write(t, conn, &pgproto3.Flush{})
		read(t, conn, tail)
		write(t, conn, &pgproto3.Sync{})
		read(t, conn, len("Z....I"))
	}
}

func write(t *testing.T, conn net.Conn, all ...pgproto3.FrontendMessage) {
	t.Helper()
	var p []byte
	var err error
	for _, m := range all {
		if p, err = m.Encode(p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Write(p); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, conn net.Conn, n int) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if k, err := io.ReadFull(conn, make([]byte, n)); err != nil {
		t.Fatalf("%d of %d bytes: %v", k, n, err)
	}
}

func TestACancelHitsNothingThatIsSentAfterItsEnd(t *testing.T) {
	b := newBed(t, 2, "--pool-mode=session", "--event-loops=4")
	c := b.session(t)
	for range 200 {
		cancelled := make(chan error, 1)
		go func() { cancelled <- c.CancelRequest(t.Context()) }()
		_, _ = c.Exec(t.Context(), "select 1").ReadAll() // may be cancelled
		if err := <-cancelled; err != nil {
			t.Fatal(err)
		}
		for range 3 {
			value(t, c, "select 2")
		}
	}
}
