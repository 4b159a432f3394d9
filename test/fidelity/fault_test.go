package fidelity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/multipooler/multipooler/test/differential"
	"github.com/multipooler/multipooler/test/faultconn"
	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/oracle"
	"github.com/multipooler/multipooler/test/pgtest"
)

// A lane is a database with a server proxy and a client proxy of its own, in
// which one conversation after the other meets its fault. Each lane is a target
// of the one multipooler, with two slots: the conversation's and that of a
// client that is in the middle of its work all the time.
//
//	talker ── front ── multipooler ── back ── PostgreSQL
const (
	lanes     = 4
	laneSlots = 2
	stallTime = 20 * time.Millisecond
)

type lane struct {
	name        string
	front, back *faultconn.Proxy
	url         *url.URL // through front
	plain       string   // through multipooler without front
	direct      string
}

// arena is a multipooler with its lanes.
type arena struct {
	in     *mp.Instance
	server *pgtest.Server
	lanes  []*lane
	admin  *pgx.Conn
}

// newArena starts everything. zombies is how many server connections more than
// the slots a lane's database has room for: those that PostgreSQL still has
// after multipooler was told that they have ended.
func newArena(t *testing.T, zombies int) *arena {
	t.Helper()
	a := &arena{server: pgtest.Shared(t)}
	a.admin = a.server.Admin(t)
	config := "targets:\n"
	for i := range lanes {
		l := &lane{name: fmt.Sprintf("lane_%d_%d", beds.Add(1), i)}
		a.server.Exec(t, fmt.Sprintf("create database %s owner app connection limit %d", l.name, laneSlots+zombies))
		l.direct = a.server.URL("app", l.name)
		conn := pgtest.Connect(t, l.direct)
		if _, err := conn.Exec(t.Context(), "create table faults (a int)"); err != nil {
			t.Fatal(err)
		}
		conn.Close(t.Context())
		l.back = proxy(t, a.server.Addr())
		config += fmt.Sprintf("- {name: %s, url: %q, databases: [%s], connpool_global_capacity: %d}\n",
			l.name, at(t, l.direct, l.back.Addr()), l.name, laneSlots)
		a.lanes = append(a.lanes, l)
	}
	a.in = mp.Start(t, mp.Options{Config: config, Secrets: []string{pgtest.DefaultPassword}, Args: []string{"--event-loops=4", "--acquire-timeout=60s"}})
	for _, l := range a.lanes {
		l.front = proxy(t, a.in.Addr())
		l.plain = at(t, l.direct, a.in.Addr())
		var err error
		if l.url, err = url.Parse(at(t, l.direct, l.front.Addr())); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func proxy(t *testing.T, target string) *faultconn.Proxy {
	t.Helper()
	p, err := faultconn.Listen(target, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// next makes f happen to the next connection through p, and to no other.
func next(p *faultconn.Proxy, f faultconn.Fault) {
	var once sync.Once
	p.SetScript(func(int) (faults []faultconn.Fault) {
		once.Do(func() { faults = []faultconn.Fault{f} })
		return faults
	})
}

// bystander is a client in the middle of a transaction, which must not notice
// anything. It ends with ctx.
func (l *lane) bystander(ctx context.Context, t *testing.T) (stop func()) {
	t.Helper()
	conn, err := pgx.Connect(ctx, l.plain+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "begin"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		again := time.NewTicker(10 * time.Millisecond)
		defer again.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			timed, stop := context.WithTimeout(context.WithoutCancel(ctx), patience)
			var got int
			if err := conn.QueryRow(timed, fmt.Sprintf("select %d", i)).Scan(&got); err != nil || got != i {
				t.Errorf("%s: a client that has nothing to do with the faults: got %d, want %d, %v", l.name, got, i, err)
				stop()
				return
			}
			stop()
			<-again.C
		}
	})
	return func() {
		cancel()
		done.Wait()
		conn.Close(context.WithoutCancel(ctx))
	}
}

// golden is what the conversation hears from PostgreSQL itself, and how many
// messages pass in it.
func (l *lane) golden(t *testing.T) talker {
	t.Helper()
	u, err := url.Parse(l.direct)
	if err != nil {
		t.Fatal(err)
	}
	want, err := talk(u, conversation)
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// meet runs the conversation while f waits for it on p.
func (l *lane) meet(t *testing.T, p *faultconn.Proxy, f faultconn.Fault, want talker) {
	if f.Action == faultconn.Stall {
		release := make(chan struct{})
		f.Release = release
		timer := time.AfterFunc(stallTime, func() { close(release) })
		defer func() {
			if timer.Stop() { // the conversation was over sooner: nothing may stay stalled behind it
				close(release)
			}
		}()
	}
	next(p, f)
	got, err := talk(l.url, conversation)
	for i, m := range got.heard {
		if i >= len(want.heard) || !bytes.Equal(m, want.heard[i]) {
			if _, ok := errors.AsType[*saidError](err); !ok || i != len(got.heard)-1 {
				t.Errorf("%s: message %d is %.200q, PostgreSQL's is %.200q", f, i, m, want.heard[min(i, len(want.heard)-1)])
				return
			}
		}
	}
	if !acceptable(f, err) {
		t.Errorf("%s: %v", f, err)
	}
}

// acceptable tells whether err may follow from f.
func acceptable(f faultconn.Fault, err error) bool {
	if err == nil {
		return true // the boundary was not reached, or nobody had to notice
	}
	if f.Action == faultconn.Stall || errors.Is(err, os.ErrDeadlineExceeded) {
		return false // nothing was lost; or a hang
	}
	if s, ok := errors.AsType[*saidError](err); ok {
		return strings.HasPrefix(s.code, "08") || strings.HasPrefix(s.code, "57P")
	}
	return true
}

// each runs do for every fault at every boundary between as many messages as
// passed, in all lanes at once, one fault per lane at a time.
func (a *arena) each(t *testing.T, passed [2]int64, do func(l *lane, f faultconn.Fault)) {
	t.Helper()
	step := int64(1)
	if testing.Short() {
		step = 3
	}
	// All of them first: a lane that fails leaves the rest to the others.
	faults := make(chan faultconn.Fault, 4*(passed[0]+passed[1]))
	for _, action := range []faultconn.Action{faultconn.Cut, faultconn.Reset, faultconn.HalfClose, faultconn.Stall} {
		for direction, n := range passed {
			for i := int64(0); i < n; i += step {
				faults <- faultconn.Fault{At: faultconn.BeforeMessage(faultconn.Direction(direction), i), Action: action}
			}
		}
	}
	close(faults)
	var all sync.WaitGroup
	for _, l := range a.lanes {
		all.Go(func() {
			for f := range faults {
				if t.Failed() {
					return
				}
				do(l, f)
			}
		})
	}
	all.Wait()
}

// backends is how many server connections a lane's database has.
func (a *arena) backends(t *testing.T, l *lane) (n int) {
	t.Helper()
	err := a.admin.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = $1", l.name).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ledger is what multipooler must have as much of after the faults as before.
type ledger struct{ goroutines, files float64 }

// atRest waits until no slot is in use and nobody waits, and counts.
func (a *arena) atRest(t *testing.T, what string, ok func(now ledger) bool) (now ledger) {
	t.Helper()
	mp.Eventually(t, patience, what, func() bool {
		for _, state := range []string{"active", "dialing", "draining"} {
			if a.in.Metric(t, "multipooler_slots", `state="`+state+`"`) != 0 {
				return false
			}
		}
		if a.in.Metric(t, "multipooler_pool_waiting") != 0 || a.in.Metric(t, "multipooler_clients_logging_in") != 0 ||
			a.in.Metric(t, "multipooler_clients") != 0 {
			return false
		}
		idle := a.in.Metric(t, "multipooler_slots", `state="idle"`)
		now = ledger{a.in.Metric(t, "go_goroutines"), a.in.Metric(t, "process_open_fds") - idle}
		return ok(now)
	})
	return now
}

// audit runs the faults of f between two looks at what multipooler has.
func (a *arena) audit(t *testing.T, f func(want talker)) {
	t.Helper()
	want := a.lanes[0].golden(t)
	for _, l := range a.lanes {
		if _, err := talk(l.url, conversation); err != nil {
			t.Fatal(err)
		}
	}
	before := a.atRest(t, "at rest before the faults", func(ledger) bool { return true })
	var stops []func()
	for _, l := range a.lanes {
		stops = append(stops, l.bystander(t.Context(), t))
	}
	f(want)
	for _, stop := range stops {
		stop()
	}
	var last ledger
	a.atRest(t, "as many goroutines and descriptors as before", func(now ledger) bool {
		if now != last {
			last = now
			t.Logf("before %+v, now %+v", before, now)
		}
		return now.goroutines <= before.goroutines && now.files <= before.files
	})
	a.poolsAreEmpty(t)
	for _, l := range a.lanes {
		if leaks, err := differential.LeakedState(t.Context(), a.server.URL("app", "app"), l.plain, laneSlots); err != nil || len(leaks) != 0 {
			t.Errorf("%s: left behind: %q, %v", l.name, leaks, err)
		}
	}
}

// poolsAreEmpty asks the console.
func (a *arena) poolsAreEmpty(t *testing.T) {
	t.Helper()
	conn := pgtest.Connect(t, a.lanes[0].console())
	rows, err := conn.Query(t.Context(), "show pools", pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for rows.Next() {
		n++
		row, err := rows.Values()
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range rows.FieldDescriptions() {
			switch d.Name {
			case "cl_active", "cl_waiting", "sv_active", "sv_login", "cl_pinned", "sv_draining":
				if row[i] != int64(0) {
					t.Errorf("SHOW POOLS: %v: %s is %v", row[0], d.Name, row[i])
				}
			}
		}
	}
	if rows.Err() != nil || n < lanes {
		t.Errorf("SHOW POOLS: %d rows, %v", n, rows.Err())
	}
	conn.Close(t.Context())
}

func (l *lane) console() string {
	u, err := url.Parse(l.plain)
	if err != nil {
		panic("bug: " + err.Error())
	}
	u.Path = "/multipooler"
	return u.String()
}

func TestAFaultOfAClientIsNobodyElses(t *testing.T) {
	a := newArena(t, 0)
	a.audit(t, func(want talker) {
		// The server itself is watched: two connections per lane, never more.
		ctx, stop := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() {
			r, err := oracle.Budget(ctx, oracle.BudgetConfig{
				AdminURL: a.server.AdminURL("postgres"), Limit: lanes * laneSlots, Users: []string{"app"},
				Every: 5 * time.Millisecond, LogSince: a.server.LogSince,
			})
			if err != nil || !r.OK() {
				t.Error(r, err)
			}
		})
		a.each(t, want.passed, func(l *lane, f faultconn.Fault) { l.meet(t, l.front, f, want) })
		stop()
		watch.Wait()
	})
}

func TestAFaultOfAServerConnectionIsNobodyElses(t *testing.T) {
	a := newArena(t, 1)
	var mu sync.Mutex
	a.audit(t, func(want talker) {
		// Messages that a client's login does not have: SSLRequest, alignment.
		passed := want.passed
		passed[faultconn.ToServer] += 2
		passed[faultconn.ToClient] += 4
		a.each(t, passed, func(l *lane, f faultconn.Fault) {
			l.meet(t, l.back, f, want)
			mp.Eventually(t, patience, f.String()+": the server connection has ended", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return a.backends(t, l) == 1 // the bystander's
			})
		})
	})
}
