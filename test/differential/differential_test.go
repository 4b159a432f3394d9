package differential

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"pgregory.net/rapid"

	"github.com/multipooler/multipooler/test/faultconn"
	"github.com/multipooler/multipooler/test/pgtest"
)

// twins are two databases of one server.
func twins(t testing.TB) (s *pgtest.Server, left, right string) {
	s = pgtest.Start(t, pgtest.Options{Databases: []string{"left", "right"}, Settings: map[string]string{"max_connections": "100"}})
	return s, s.URL("app", "left"), s.URL("app", "right")
}

func through(t testing.TB, base, addr string) string {
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = addr
	return u.String()
}

func TestPostgreSQLDoesNotDifferFromItself(t *testing.T) {
	_, left, right := twins(t)
	for seed := range uint64(3) {
		err := Run(t.Context(), Config{Direct: left, Proxy: right, State: true, Clients: 4, Steps: 40, Seed: seed + 1})
		if err != nil {
			t.Fatal(err)
		}
	}
	leaks, err := LeakedState(t.Context(), left, right, 5)
	if err != nil || len(leaks) != 0 {
		t.Fatal(leaks, err)
	}
}

func TestAFragmentedStreamDoesNotDiffer(t *testing.T) {
	s, left, right := twins(t)
	p, err := faultconn.Listen(s.Addr(), func(int) []faultconn.Fault {
		return []faultconn.Fault{
			{At: faultconn.BeforeByte(faultconn.ToServer, 0), Action: faultconn.Fragment, Size: 7},
			{At: faultconn.BeforeByte(faultconn.ToClient, 0), Action: faultconn.Fragment, Size: 11},
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := Run(t.Context(), Config{Direct: left, Proxy: through(t, right, p.Addr()), State: true, Clients: 2, Steps: 8, Seed: 5}); err != nil {
		t.Fatal(err)
	}
}

// rewriting is a proxy whose server says new for old.
func rewriting(t *testing.T, addr, old, replacement string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		tasks.Wait()
	})
	tasks.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", addr)
			if err != nil {
				client.Close()
				return
			}
			tasks.Go(func() {
				_, _ = io.Copy(server, client)
				server.Close()
			})
			tasks.Go(func() {
				defer client.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := server.Read(buf)
					if err != nil {
						return
					}
					if _, err := client.Write(bytes.ReplaceAll(buf[:n], []byte(old), []byte(replacement))); err != nil {
						return
					}
				}
			})
		}
	})
	return ln.Addr().String()
}

func TestADifferenceIsCutDownToWhatItNeeds(t *testing.T) {
	s, left, right := twins(t)
	// The notice of client 1 comes out as somebody else's.
	addr := rewriting(t, s.Addr(), "notice of client 1", "notice of client 9")
	err := Run(t.Context(), Config{Direct: left, Proxy: through(t, right, addr), Clients: 3, Steps: 150, Seed: 1})
	m, ok := errors.AsType[*Mismatch](err)
	if !ok {
		t.Fatal("no mismatch:", err)
	}
	if m.Client != 1 || !m.Minimised || len(m.Log) != 1 || !strings.Contains(m.Problem, "notice of client 9") {
		t.Fatal(m)
	}
	if !strings.Contains(m.Error(), "seed 1, client 1") || !strings.Contains(m.Error(), "raise notice") {
		t.Fatal(m)
	}
}

func TestAHangNamesTheMessage(t *testing.T) {
	s, left, right := twins(t)
	p, err := faultconn.Listen(s.Addr(), func(n int) []faultconn.Fault {
		if n == 0 { // the set-up
			return nil
		}
		return []faultconn.Fault{{At: faultconn.BeforeMessage(faultconn.ToClient, 40), Action: faultconn.Stall}}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	err = Run(t.Context(), Config{Direct: left, Proxy: through(t, right, p.Addr()), Clients: 1, Seed: 3, Hang: 500 * time.Millisecond, NoMinimise: true})
	if err == nil || !strings.Contains(err.Error(), "hang: no further message") || !strings.Contains(err.Error(), "proxy, at message") {
		t.Fatal(err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	_, left, right := twins(t)
	stopped := errors.New("stopped by the test")
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	time.AfterFunc(time.Second, func() { stop(stopped) })
	if err := Run(ctx, Config{Direct: left, Proxy: right, State: true, Clients: 4, Steps: 1000, Reconnect: true}); !errors.Is(err, stopped) {
		t.Fatal(err)
	}
}

func TestWhatASessionCarriesIsListed(t *testing.T) {
	s := pgtest.Shared(t)
	conn, err := pgconn.Connect(t.Context(), s.URL("app", "app"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), `set work_mem = '5MB'; prepare st as select 1; select pg_advisory_lock(7);
		declare hc cursor with hold for select 1; listen ch; create temp table tmp (a int)`).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	got, err := carried(t.Context(), conn)
	want := []string{"advisory lock 0:7", "channel ch", "cursor hc", "prepared statement st", "setting work_mem = 5120", "temporary r tmp"}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestEqualSeedsGiveEqualScripts(t *testing.T) {
	text := func(seed uint64) (all string) {
		for _, sec := range generate(rand.New(rand.NewPCG(seed, 0)), 0, 50, true) {
			for _, st := range sec.steps {
				all += st.String() + "\n"
			}
		}
		return all
	}
	if seven, again := text(7), text(7); seven != again || seven == text(8) {
		t.Fatal("scripts do not follow their seeds")
	}
}

func TestTheEndOfAReplyIsKnown(t *testing.T) {
	parse, bind, exec := &pgproto3.Parse{}, &pgproto3.Bind{}, &pgproto3.Execute{}
	sync, flush, q := &pgproto3.Sync{}, &pgproto3.Flush{}, &pgproto3.Query{}
	data, done := &pgproto3.CopyData{}, &pgproto3.CopyDone{}
	type messages = []pgproto3.FrontendMessage
	for _, c := range []struct {
		name    string
		sent    messages
		replies string
	}{
		{"query", messages{q, q}, "TDCZEZ"},
		{"batch", messages{parse, bind, exec, sync}, "12CZ"},
		{"error skips to the Sync", messages{parse, bind, exec, sync, parse, sync}, "EZ1Z"},
		{"flush", messages{parse, bind, flush}, "12"},
		{"unflushed", messages{parse, bind}, ""},
		{"error before a flush", messages{parse, bind, exec, flush}, "E"},
		{"rows and suspension", messages{bind, exec, exec, sync}, "2DDsDCZ"},
		{"copy waits for data", messages{q}, "G"},
		{"copy in one go", messages{q, data, done}, "GCZ"},
		{"copy refused", messages{q, data, done, q}, "EZIZ"},
		{"a Sync inside COPY is swallowed", messages{parse, bind, exec, sync, data, done, sync}, "12GCZ"},
		{"copy out", messages{q}, "HdddcCZ"},
	} {
		var tr tracker
		for _, m := range c.sent {
			tr.sent(m)
		}
		for i, r := range []byte(c.replies) {
			if tr.complete() {
				t.Errorf("%s: complete before reply %d", c.name, i)
			}
			if !tr.received(r) {
				t.Errorf("%s: reply %d (%c) is not due", c.name, i, r)
			}
		}
		if !tr.complete() {
			t.Errorf("%s: not complete: %v", c.name, tr)
		}
	}
	var tr tracker
	if tr.received('Z') {
		t.Error("a ReadyForQuery that nobody asked for is due")
	}
}

// The harness against PostgreSQL itself, over drawn seeds: a difference here is
// a fault of the generator or the tracker.
func TestAnySeedMayBeRun(t *testing.T) {
	if testing.Short() {
		t.Skip("TestPostgreSQLDoesNotDifferFromItself runs three seeds")
	}
	_, left, right := twins(t)
	checked := 0
	rapid.Check(t, func(rt *rapid.T) {
		if checked++; checked > 8 { // a run costs a second
			return
		}
		cfg := Config{Direct: left, Proxy: right, State: true, Clients: 2, Steps: 15, NoMinimise: true}
		cfg.Seed = rapid.Uint64Min(1).Draw(rt, "seed")
		if err := Run(t.Context(), cfg); err != nil {
			rt.Fatal(err)
		}
	})
}
