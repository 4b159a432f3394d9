package oracle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// BudgetConfig says which server connections count and how many there may be.
type BudgetConfig struct {
	// AdminURL of the server itself, not of the proxy. The watcher's own
	// connection is not counted; limit the server to Limit plus one (and what
	// the test itself opens), so that an excess is an error there as well.
	AdminURL string
	Limit    int
	// Users and Applications count only backends whose user and
	// application_name are in the list; empty lists count all.
	Users, Applications []string
	// Every is the time between two samples (at least 1 ms, which is also the default).
	Every time.Duration
	// ServerLog is the file the server logs into, read from the end it has at
	// the start. LogSince does the same for a log that is not a file. Either
	// may be left out.
	ServerLog string
	LogSince  func(offset int) (text string, next int)
}

// Excess is one moment with more server connections than allowed.
type Excess struct {
	At    time.Time
	Count int
	Who   string // "pid user application state" of each, at most 2 KB
}

// BudgetReport of a watch.
type BudgetReport struct {
	Limit    int
	Samples  int
	Peak     int
	Excesses []Excess // the first 20
	Bad      int      // samples over the limit, all of them
	Refusals []string // lines of the server's log that say that it was full; the first 20
	Full     int      // such lines, all of them
}

// OK means that the budget was never exceeded, as far as samples and log can tell.
func (r BudgetReport) OK() bool { return r.Bad == 0 && r.Full == 0 }

func (r BudgetReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "budget: peak %d of %d in %d samples, %d over it, %d refusals in the server's log\n",
		r.Peak, r.Limit, r.Samples, r.Bad, r.Full)
	for _, e := range r.Excesses {
		fmt.Fprintf(&b, "EXCESS %s %d: %s\n", e.At.Format("15:04:05.000"), e.Count, e.Who)
	}
	for _, l := range r.Refusals {
		b.WriteString("REFUSED " + l + "\n")
	}
	return b.String()
}

// maxExamples bounds what a report quotes.
const maxExamples = 20

// fullServer are PostgreSQL's messages for a connection it has no room for
// (53300), in the words of versions 12 to 18.
var fullServer = []string{
	"sorry, too many clients already",
	"remaining connection slots are reserved",
	"too many connections for role",
	"too many connections for database",
}

// Budget samples the server until ctx ends, and reports. It uses the caller's
// goroutine. The error is that of a watch which could not be done; a server
// that is away for a while (restarts) is reconnected to.
func Budget(ctx context.Context, cfg BudgetConfig) (BudgetReport, error) {
	cfg.Every = max(cfg.Every, time.Millisecond)
	r := BudgetReport{Limit: cfg.Limit}
	var from int
	if cfg.ServerLog != "" {
		cfg.LogSince = fileSince(cfg.ServerLog)
	}
	if cfg.LogSince != nil {
		_, from = cfg.LogSince(0)
	}
	pc, err := pgconn.ParseConfig(cfg.AdminURL)
	if err != nil {
		return r, fmt.Errorf("budget oracle: %w", err)
	}
	pc.RuntimeParams["application_name"] = "budget oracle"
	for first := true; ctx.Err() == nil; first = false {
		err := r.watch(ctx, pc, cfg)
		if err != nil && first && r.Samples == 0 && ctx.Err() == nil {
			return r, fmt.Errorf("budget oracle: %w", err)
		}
		if isFull(err) {
			r.refused("to the budget oracle itself: " + err.Error())
		}
		wait(ctx, 20*time.Millisecond)
	}
	if cfg.LogSince != nil {
		text, _ := cfg.LogSince(from)
		for line := range strings.Lines(text) {
			for _, m := range fullServer {
				if strings.Contains(line, m) {
					r.refused(strings.TrimSpace(line))
				}
			}
		}
	}
	if r.Samples == 0 {
		return r, errors.New("budget oracle: not one sample was taken")
	}
	return r, nil
}

func isFull(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "53300"
}

func (r *BudgetReport) refused(line string) {
	r.Full++
	if len(r.Refusals) < maxExamples {
		r.Refusals = append(r.Refusals, line)
	}
}

// budgetSQL counts in one snapshot. backend_type leaves out the server's own workers.
const budgetSQL = `select count(*), coalesce(left(string_agg(
	pid || ' ' || coalesce(usename, '') || ' ' || application_name || ' ' || coalesce(state, ''), ', '), 2000), '')
	from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()`

// watch samples over one connection until it fails or ctx ends.
func (r *BudgetReport) watch(ctx context.Context, pc *pgconn.Config, cfg BudgetConfig) error {
	conn, err := pgconn.ConnectConfig(ctx, pc)
	if err != nil {
		return err
	}
	defer func() {
		timed, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		_ = conn.Close(timed)
	}()
	sql, args := budgetSQL, [][]byte(nil)
	for _, filter := range []struct {
		column string
		in     []string
	}{{"usename", cfg.Users}, {"application_name", cfg.Applications}} {
		if len(filter.in) > 0 {
			args = append(args, []byte(arrayLiteral(filter.in)))
			sql += " and " + filter.column + " = any($" + strconv.Itoa(len(args)) + "::text[])"
		}
	}
	if _, err := conn.Prepare(ctx, "budget", sql, nil); err != nil {
		return err
	}
	tick := time.NewTicker(cfg.Every)
	defer tick.Stop()
	for {
		res := conn.ExecPrepared(ctx, "budget", args, nil, nil).Read()
		if res.Err != nil {
			return res.Err
		}
		n, err := strconv.Atoi(string(res.Rows[0][0]))
		if err != nil {
			return err
		}
		r.sample(n, string(res.Rows[0][1]))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *BudgetReport) sample(n int, who string) {
	r.Samples++
	r.Peak = max(r.Peak, n)
	if n <= r.Limit {
		return
	}
	r.Bad++
	// One example per stretch of equal counts.
	if last := len(r.Excesses) - 1; last >= 0 && r.Excesses[last].Count == n {
		return
	}
	if len(r.Excesses) < maxExamples {
		r.Excesses = append(r.Excesses, Excess{time.Now(), n, who})
	}
}

func arrayLiteral(values []string) string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = `"` + quote.Replace(v) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

// fileSince reads a log file from an offset; one that cannot be read is empty.
func fileSince(path string) func(int) (string, int) {
	return func(offset int) (string, int) {
		all, err := os.ReadFile(path)
		if err != nil || offset > len(all) {
			return "", offset
		}
		return string(all[offset:]), len(all)
	}
}
