package oracle

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/multipooler/multipooler/test/faultconn"
	"github.com/multipooler/multipooler/test/pgtest"
)

// A direct PostgreSQL is what the oracle must find nothing wrong with. Whether a
// cancel or a cut meets a running statement is the machine's choice, so that a
// run which missed some is followed by another.
func TestADirectServerHasNoViolations(t *testing.T) {
	const runs = 8
	s := pgtest.Shared(t)
	missing := map[string]bool{}
	for _, op := range operations(false) {
		if !strings.HasPrefix(op.name, "gone") {
			missing["finished operation "+op.name] = true
		}
	}
	for _, e := range []string{"abandoned", "cancelled", "cut", "timed out"} {
		missing["client that was "+e] = true
	}
	for n := 0; n < runs && len(missing) > 0; n++ {
		r, err := Markers(t.Context(), Config{URL: s.URL("app", "app"), Clients: 12, Steps: 60})
		t.Log(r)
		if err != nil || !r.OK() {
			t.Fatal(err)
		}
		for op := range r.Operations {
			delete(missing, "finished operation "+op)
		}
		for e := range r.Events {
			delete(missing, "client that was "+e)
		}
	}
	for what := range missing {
		t.Errorf("no %s in %d runs", what, runs)
	}
}

func TestARestartedServerHasNoViolations(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	r, err := Markers(t.Context(), Config{
		URL: s.URL("app", "app"), Clients: 6, Steps: 80, DisturbEvery: 300 * time.Millisecond,
		Disturb: func(ctx context.Context, n int) error {
			if n >= 3 {
				return nil
			}
			return s.Server.Restart(ctx, []pgtest.Mode{pgtest.Fast, pgtest.Immediate}[n%2])
		},
	})
	t.Log(r)
	if err != nil || !r.OK() {
		t.Fatal(err)
	}
	if r.Events["disturbed"] == 0 {
		t.Error("the server was never restarted")
	}
}

// switcheroo forwards to addr and, on every connection, replaces what old says
// in the server's bytes by new: a pooler that mixes two clients up.
func switcheroo(t *testing.T, addr, old, replacement string) string {
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

func through(t *testing.T, base, addr string) string {
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = addr
	return u.String()
}

func TestForeignValuesAreFoundWithTheirOwner(t *testing.T) {
	s := pgtest.Shared(t)
	addr := switcheroo(t, s.Addr(), "m0001", "m0002")
	r, err := Markers(t.Context(), Config{URL: through(t, s.URL("app", "app"), addr), Clients: 3, Steps: 40, FaultPercent: -1})
	if err != nil {
		t.Fatal(err)
	}
	if r.Bad < 20 {
		t.Fatalf("only %d violations:\n%s", r.Bad, r)
	}
	for _, v := range r.Violations {
		if !strings.HasPrefix(v, "client 1,") {
			t.Errorf("the wrong client complains: %s", v)
		}
	}
	if !strings.Contains(r.String(), "marker of client 2") {
		t.Errorf("the owner is not named:\n%s", r)
	}
}

func TestAConnectionLostWithoutReasonIsAViolation(t *testing.T) {
	s := pgtest.Shared(t)
	p, err := faultconn.Listen(s.Addr(), func(n int) []faultconn.Fault {
		if n < 2 { // the set-up and the only client
			return nil
		}
		return []faultconn.Fault{{At: faultconn.BeforeMessage(faultconn.ToClient, 40), Action: faultconn.Reset}}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r, err := Markers(t.Context(), Config{URL: through(t, s.URL("app", "app"), p.Addr()), Clients: 3, Steps: 20, FaultPercent: -1})
	if err != nil && !strings.Contains(err.Error(), "final audit") {
		t.Fatal(err)
	}
	if r.Bad == 0 {
		t.Fatalf("nothing was found:\n%s", r)
	}
}

func TestAHangIsReported(t *testing.T) {
	s := pgtest.Shared(t)
	p, err := faultconn.Listen(s.Addr(), func(n int) []faultconn.Fault {
		if n != 1 {
			return nil
		}
		return []faultconn.Fault{{At: faultconn.BeforeMessage(faultconn.ToClient, 25), Action: faultconn.Stall}}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r, err := Markers(t.Context(), Config{
		URL: through(t, s.URL("app", "app"), p.Addr()), Clients: 1, Steps: 30, FaultPercent: -1, Hang: 300 * time.Millisecond, Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Bad != 1 || !strings.Contains(r.Violations[0], "no reply within 300ms") {
		t.Fatalf("got\n%s", r)
	}
}

func TestTheDifferenceNamesPlaceAndOwner(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a, b := newMarker(rng, 3), newMarker(rng, 0xbeef)
	if len(a) != markerLen || owner([]byte("xx"+b+"yy")) != "48879" || owner([]byte("mfoo")) != "unknown" {
		t.Fatalf("markers %s and %s", a, b)
	}
	if d := difference(payload(a, 1000), payload(a, 1000)); d != "" {
		t.Errorf("equal values differ: %s", d)
	}
	got := append(payload(a, 500), payload(b, 500)...)
	if d := difference(got, payload(a, 1000)); !strings.Contains(d, "differing from byte 500") {
		t.Errorf("got %s", d)
	}
	if d := difference(payload(a, 10), payload(a, 11)); !strings.Contains(d, "got 10 bytes, want 11, differing from byte 10") {
		t.Errorf("got %s", d)
	}
}

func TestTheBudgetOracleSeesPeakAndRefusals(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{Settings: map[string]string{
		"max_connections": "6", "superuser_reserved_connections": "1",
	}})
	ctx, stop := context.WithCancel(t.Context())
	type result struct {
		BudgetReport
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := Budget(ctx, BudgetConfig{AdminURL: s.AdminURL("postgres"), Limit: 2, Users: []string{"app"}, LogSince: s.LogSince})
		done <- result{r, err}
	}()
	admin := s.Admin(t)
	// sampled waits for a sample that begins after now.
	sampled := func() {
		t.Helper()
		var now time.Time
		if err := admin.QueryRow(ctx, "select clock_timestamp()").Scan(&now); err != nil {
			t.Fatal(err)
		}
		const sql = "select exists (select from pg_stat_activity where application_name = 'budget oracle' and query like '%string_agg%' and query_start > $1)"
		for seen := false; !seen; {
			if err := admin.QueryRow(ctx, sql, now).Scan(&seen); err != nil {
				t.Fatal(err)
			}
		}
	}
	sampled()
	var conns []*pgconn.PgConn
	for {
		c, err := pgconn.Connect(ctx, s.URL("app", "app"))
		if err != nil {
			if sqlState(err) != "53300" {
				t.Error(err)
			}
			break
		}
		conns = append(conns, c)
	}
	sampled()
	sampled() // so that the one before has ended
	for _, c := range conns {
		c.Close(ctx)
	}
	stop()
	r := <-done
	t.Log(r.BudgetReport)
	if r.err != nil || r.Peak != len(conns) || r.Bad == 0 || r.Full == 0 || r.OK() {
		t.Errorf("%d connections were open at once: %v", len(conns), r.err)
	}
	if len(r.Excesses) == 0 || !strings.Contains(r.Excesses[0].Who, " app ") {
		t.Errorf("nobody is named: %v", r.Excesses)
	}
}

func TestAWatchThatCannotConnectIsAnError(t *testing.T) {
	_, err := Budget(t.Context(), BudgetConfig{AdminURL: "postgres://u@127.0.0.1:1/d?sslmode=disable&connect_timeout=1"})
	if err == nil || errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
