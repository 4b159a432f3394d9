// Package oracle judges a pooler from outside, over nothing but its clients'
// connections and the server's own views.
//
// Markers runs many clients that ask for values only they know (a marker names
// its client and 128 random bits), keep session state only they should see,
// and are cancelled, timed out and cut at random moments meanwhile. Every byte,
// notice, error and notification a client gets must be its own; one foreign
// value is a Violation. Budget watches pg_stat_activity and the server's log
// for more server connections than allowed.
//
// Both take addresses, know nothing of multipooler, and give the same verdict
// on a direct PostgreSQL, which is how they are tested themselves. Markers owns
// one goroutine per client, one more per client while a fault is under way, and
// one for Disturb; Budget uses the caller's. All have ended when they return.
package oracle

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// maxViolations bounds the violations kept as text; all are counted.
const maxViolations = 50

// Config of Markers. The zero value of a field means its default.
type Config struct {
	// URL of the proxy under test (or of a PostgreSQL).
	URL string
	// Clients at once (16), and operations per client (100).
	Clients, Steps int
	// MaxValue is the largest single value in bytes (300 << 10).
	MaxValue int
	// Seed of all choices; 0 draws one. It is in the Report. Choices are
	// reproducible, the interleaving of clients is not.
	Seed uint64
	// FaultPercent of the operations are cancelled, timed out or cut (15);
	// negative means none.
	FaultPercent int
	// NoState leaves out session state (SET, temporary tables, locks, LISTEN,
	// prepared statements, held cursors), for statement mode.
	NoState bool
	// AllowRefused accepts 53300 (the pool is exhausted) as an answer.
	AllowRefused bool
	// Hang is how long any one operation may take without a fault (30 s).
	Hang time.Duration
	// Disturb is called again and again, DisturbEvery apart (1 s), while the
	// clients work: restart the server, reload, drain a loop. While it is set,
	// lost connections and the errors of a server that goes away or comes up
	// (57P01, 57P02, 57P03, class 08) are expected.
	Disturb      func(ctx context.Context, n int) error
	DisturbEvery time.Duration
}

func (c *Config) fill() {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Clients, 16)
	def(&c.Steps, 100)
	def(&c.MaxValue, 300<<10)
	def(&c.FaultPercent, 15)
	for c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	if c.Hang == 0 {
		c.Hang = 30 * time.Second
	}
	if c.DisturbEvery == 0 {
		c.DisturbEvery = time.Second
	}
}

// Report of a run.
type Report struct {
	Seed       uint64
	Took       time.Duration
	Operations map[string]int // finished with everything verified, by name
	Events     map[string]int // cancelled, cut, timed out, refused, lost, connects
	Bytes      int64          // verified
	Bad        int            // violations, all of them
	Violations []string       // the first maxViolations
}

// OK means that nothing was wrong.
func (r Report) OK() bool { return r.Bad == 0 }

func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "markers: seed %d, %.1f MB verified in %s, %d violations\n",
		r.Seed, float64(r.Bytes)/1e6, r.Took.Round(time.Millisecond), r.Bad)
	for _, counts := range []map[string]int{r.Operations, r.Events} {
		for i, k := range slices.Sorted(maps.Keys(counts)) {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s %d", k, counts[k])
		}
		b.WriteString("\n")
	}
	for _, v := range r.Violations {
		b.WriteString("VIOLATION " + v + "\n")
	}
	return b.String()
}

// run is what the clients of one Markers call share.
type run struct {
	cfg        Config
	conn       *pgconn.Config
	table      string // unlogged, for COPY and transactions
	searchPath string // of a session that has not set it

	mu     sync.Mutex
	report Report
	ghosts []string // markers of work that was never committed
}

// Markers runs cfg to its end and reports. An error means that the run itself
// could not be done (no connection for the set-up, ctx over); what a client
// saw wrong is in the Report.
func Markers(ctx context.Context, cfg Config) (Report, error) {
	cfg.fill()
	pc, err := pgconn.ParseConfig(cfg.URL)
	if err != nil {
		return Report{}, fmt.Errorf("oracle: %w", err)
	}
	r := &run{cfg: cfg, conn: pc, table: fmt.Sprintf("oracle_%016x", cfg.Seed)}
	r.report = Report{Seed: cfg.Seed, Operations: map[string]int{}, Events: map[string]int{}}
	start := time.Now()
	if err := r.setUp(ctx); err != nil {
		return r.report, fmt.Errorf("oracle: set up: %w", err)
	}

	working, stop := context.WithCancel(ctx)
	defer stop()
	var disturber sync.WaitGroup
	if cfg.Disturb != nil {
		disturber.Go(func() { r.disturb(working) })
	}
	var clients sync.WaitGroup
	for id := range cfg.Clients {
		clients.Go(func() { newClient(r, id).work(working) })
	}
	clients.Wait()
	stop()
	disturber.Wait()

	err = r.tearDown(ctx)
	r.report.Took = time.Since(start)
	if ctx.Err() != nil {
		return r.report, fmt.Errorf("oracle: %w", context.Cause(ctx))
	}
	if err != nil {
		return r.report, fmt.Errorf("oracle: final audit: %w", err)
	}
	return r.report, nil
}

func (r *run) setUp(ctx context.Context) error {
	conn, err := pgconn.ConnectConfig(ctx, r.conn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	res, err := conn.Exec(ctx, "select current_setting('search_path'), current_schema()").ReadAll()
	if err != nil {
		return err
	}
	r.searchPath = string(res[0].Rows[0][0])
	r.table = string(res[0].Rows[0][1]) + "." + r.table
	_, err = conn.Exec(ctx, "create unlogged table "+r.table+" (marker text, n int, payload text)").ReadAll()
	return err
}

// tearDown audits the table (work of clients that died uncommitted must not be
// there, nor anything else: every finished operation removed its rows) and drops it.
func (r *run) tearDown(ctx context.Context) error {
	var left []*pgconn.Result
	var err error
	for range 50 { // a disturbed server may be on its way back
		if left, err = r.clear(ctx); err == nil || ctx.Err() != nil {
			break
		}
		wait(ctx, 200*time.Millisecond)
	}
	if err != nil {
		return err
	}
	ghosts := make(map[string]bool, len(r.ghosts))
	for _, g := range r.ghosts {
		ghosts[g] = true
	}
	for _, row := range left[0].Rows {
		if ghosts[string(row[0])] {
			r.violation("client %s: %s rows of a transaction that its client never committed are there", owner(row[0]), row[1])
		}
	}
	return nil
}

// clear drops the table and returns what was in it.
func (r *run) clear(ctx context.Context) ([]*pgconn.Result, error) {
	conn, err := pgconn.ConnectConfig(ctx, r.conn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	return conn.Exec(ctx, "select marker, count(*) from "+r.table+" group by 1; drop table "+r.table).ReadAll()
}

func (r *run) disturb(ctx context.Context) {
	for n := 0; wait(ctx, r.cfg.DisturbEvery); n++ {
		r.event("disturbed")
		if err := r.cfg.Disturb(ctx, n); err != nil && ctx.Err() == nil {
			r.violation("disturbance %d: %v", n, err)
			return
		}
	}
}

func (r *run) violation(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Bad++
	if len(r.report.Violations) < maxViolations {
		r.report.Violations = append(r.report.Violations, fmt.Sprintf(format, args...))
	}
}

func (r *run) event(name string) {
	r.mu.Lock()
	r.report.Events[name]++
	r.mu.Unlock()
}

func (r *run) done(op string, bytes int64) {
	r.mu.Lock()
	r.report.Operations[op]++
	r.report.Bytes += bytes
	r.mu.Unlock()
}

// wait lets d pass and reports whether ctx still lives.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
