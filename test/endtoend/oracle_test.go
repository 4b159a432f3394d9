package endtoend

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/oracle"
	"github.com/multipooler/multipooler/test/pgtest"
)

// A server with room for exactly the budget: an excess is an error there, not a
// sample that somebody missed.
func TestTheServerNeverSeesMoreConnectionsThanTheBudget(t *testing.T) {
	const capacity, clients, rounds = 6, 100, 12
	users := []pgtest.User{{Name: "app"}, {Name: "u1"}, {Name: "u2"}, {Name: "u3"}}
	s := pgtest.Start(t, pgtest.Options{
		Users: users, Databases: []string{"app", "d1", "d2"},
		// One for the budget oracle, one that only a superuser may have.
		Settings: map[string]string{"max_connections": strconv.Itoa(capacity + 2), "superuser_reserved_connections": "1"},
	})
	var lines []string
	passwords := map[string]string{}
	var names []string
	for _, u := range users {
		lines = append(lines, `"`+u.Name+`" "`+s.Password(u.Name)+`"`)
		passwords[u.Name] = s.Password(u.Name)
		names = append(names, u.Name)
	}
	in := mp.Start(t, mp.Options{
		Target: s.URL("app", "app"), Passwords: passwords,
		Args: []string{slots(capacity), "--auth-file=" + userlist(t, lines...), "--acquire-timeout=30s", "--event-loops=2", "--connpool-user-regular-max-lifetime=300ms"},
	})

	watched, stop := context.WithCancel(t.Context())
	defer stop()
	type verdict struct {
		oracle.BudgetReport
		err error
	}
	result := make(chan verdict, 1)
	go func() {
		r, err := oracle.Budget(watched, oracle.BudgetConfig{
			AdminURL: s.AdminURL("postgres"), Limit: capacity, Users: names, Every: 2 * time.Millisecond, LogSince: s.LogSince,
		})
		result <- verdict{r, err}
	}()

	var done, faults atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		rng := rand.New(rand.NewPCG(7, uint64(i)))
		all.Go(func() {
			for round := range rounds {
				user, db := names[rng.IntN(len(names))], []string{"app", "d1", "d2"}[rng.IntN(3)]
				err := churn(t.Context(), in.URL(user, db, "default_query_exec_mode=exec"), rng, fmt.Sprintf("%d-%d", i, round), &faults)
				if err != nil {
					t.Errorf("client %d as %s in %s: %v", i, user, db, err)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	stop()
	r := <-result
	t.Log(r.BudgetReport)
	if r.err != nil || !r.OK() {
		t.Errorf("%v", r.err)
	}
	if done.Load() != clients*rounds || faults.Load() == 0 || r.Peak < capacity || r.Samples < 20 {
		t.Errorf("%d sessions, %d faults, a peak of %d in %d samples: nothing was tried", done.Load(), faults.Load(), r.Peak, r.Samples)
	}
	if got := in.Metric(t, "multipooler_server_connects_total", `result="failed"`); got != 0 {
		t.Errorf("%v connects failed", got)
	}
}

// churn is one session of a client that may end in any way.
func churn(ctx context.Context, url string, rng *rand.Rand, marker string, faults *atomic.Int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for range 1 + rng.IntN(4) {
		var got string
		if err := conn.QueryRow(ctx, "SELECT $1::text", marker).Scan(&got); err != nil || got != marker {
			return fmt.Errorf("got %q: %w", got, err)
		}
	}
	switch rng.IntN(5) {
	case 0: // a pinned session that leaves
		_, err = conn.Exec(ctx, "SET work_mem = '5MB'")
	case 1: // gone in a transaction
		_, err = conn.Exec(ctx, "BEGIN")
		faults.Add(1)
		conn.PgConn().Conn().Close()
	case 2: // gone in a statement
		conn.PgConn().Frontend().SendQuery(&pgproto3.Query{String: "SELECT pg_sleep(0.02)"})
		err = conn.PgConn().Frontend().Flush()
		faults.Add(1)
		conn.PgConn().Conn().Close()
	}
	return err
}

func TestNobodyGetsWhatIsSomebodyElses(t *testing.T) {
	for _, loops := range []string{"2", "4"} {
		t.Run(loops+" loops", func(t *testing.T) {
			in, _ := front(t, slots(5), "--event-loops="+loops, "--acquire-timeout=30s")
			r, err := oracle.Markers(t.Context(), oracle.Config{URL: in.URL("app", "app"), Clients: 24, Steps: 60, FaultPercent: 20})
			t.Log(r)
			if err != nil || !r.OK() {
				t.Error(err)
			}
			if r.Bytes < 1<<20 || r.Events["cancelled"] == 0 {
				t.Error("nothing was tried")
			}
		})
	}
}
