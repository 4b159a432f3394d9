package fidelity

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/multipooler/multipooler/test/oracle"
	"github.com/multipooler/multipooler/test/pgtest"
)

// churn runs the marker oracle and the budget oracle together.
func (b *bed) churn(t *testing.T, cfg oracle.Config) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var watch sync.WaitGroup
	watch.Go(func() {
		r, err := oracle.Budget(ctx, oracle.BudgetConfig{
			AdminURL: b.server.AdminURL("postgres"), Limit: b.slots, Users: []string{"app"},
			Every: 2 * time.Millisecond, LogSince: b.server.LogSince,
		})
		if err != nil || !r.OK() {
			t.Error(r, err)
		}
		t.Log(r)
	})
	cfg.URL, cfg.AllowRefused = b.url, true
	r, err := oracle.Markers(t.Context(), cfg)
	stop()
	watch.Wait()
	t.Log(r)
	if err != nil || !r.OK() {
		t.Fatal(err)
	}
}

// ownServer starts a server that the test may restart, and a multipooler.
func ownServer(t *testing.T, slots int, args ...string) *bed {
	t.Helper()
	s := pgtest.Start(t, pgtest.Options{Databases: []string{"direct", "app"}, Settings: map[string]string{"fsync": "off"}})
	s.Exec(t, "alter database app connection limit "+strconv.Itoa(slots))
	b := &bed{server: s, slots: slots, direct: s.URL("app", "direct"), inside: s.URL("app", "app")}
	b.start(t, b.inside, args...)
	return b
}

// steps is how much each client does: some seconds.
func steps(most int) int {
	if testing.Short() {
		return most / 3
	}
	return most
}

func TestNobodyGetsWhatIsSomebodyElsesUnderCancelsAndDisconnects(t *testing.T) {
	b := newBed(t, 5, "--event-loops=4", "--acquire-timeout=5s")
	b.churn(t, oracle.Config{Seed: 51, Clients: 16, Steps: steps(150), FaultPercent: 25})
	b.rest(t)
	b.nothingLeaked(t)
}

func TestNobodyGetsWhatIsSomebodyElsesWhileTheServerGoesAndComes(t *testing.T) {
	b := ownServer(t, 5, "--event-loops=4", "--acquire-timeout=5s")
	b.churn(t, oracle.Config{
		Seed: 52, Clients: 16, Steps: steps(150), FaultPercent: 15, DisturbEvery: 500 * time.Millisecond,
		Disturb: func(ctx context.Context, n int) error {
			if n%4 == 3 {
				return b.server.Server.Restart(context.WithoutCancel(ctx), pgtest.Fast)
			}
			return b.storm(ctx)
		},
	})
	b.rest(t)
	b.nothingLeaked(t)
}

// storm ends all server connections at once, some times in a row.
func (b *bed) storm(ctx context.Context) error {
	for range 3 {
		err := b.server.Server.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'")
		if err != nil {
			return errors.Join(errors.New("storm"), err)
		}
	}
	return nil
}
