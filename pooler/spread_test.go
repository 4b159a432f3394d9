package pooler

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/test/oracle"
	"github.com/multipooler/multipooler/test/pgtest"
	"github.com/multipooler/multipooler/test/pgtest/testcert"
)

// A light load stays on one loop, whatever --event-loops says: a test that only
// starts more of them never lends a server connection from one to another. So
// the governor's decision is made here, all the time, and clients are moved
// while they pin, copy, cancel and vanish.
func TestNobodyGetsWhatIsSomebodyElsesOnManyLoops(t *testing.T) {
	const loops = 4
	pg := pgtest.Start(t, pgtest.Options{TLS: true})
	ca, err := testcert.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Server("localhost")
	if err != nil {
		t.Fatal(err)
	}
	for _, sslmode := range []string{"disable", "require"} { // on both sides
		t.Run("sslmode "+sslmode, func(t *testing.T) {
			r := run(t, pg.URL("app", "app", "sslmode="+sslmode), "--event-loops", "4", "--connpool-global-capacity", "5", "--acquire-timeout", "30s",
				"--tls-cert", pair.CertFile, "--tls-key", pair.KeyFile)
			done := make(chan struct{})
			var busy [loops]int // moments at which each loop had clients
			var mover sync.WaitGroup
			mover.Go(func() {
				again := time.NewTicker(5 * time.Millisecond)
				defer again.Stop()
				for {
					r.active.Store(loops)
					for i, w := range r.workers {
						if w.n.Load() > 0 {
							busy[i]++
						}
					}
					w := r.workers[rand.IntN(loops)]
					w.loop.Post(task(func(*eventloop.Loop) { w.shed(int(w.n.Load())/2 + 1) }))
					select {
					case <-again.C:
					case <-done:
						return
					}
				}
			})
			rep, err := oracle.Markers(t.Context(), oracle.Config{
				URL:     r.addressOf("app", pg.Password("app"), "app") + "?sslmode=" + sslmode,
				Clients: 24, Steps: 40, FaultPercent: 20,
			})
			close(done)
			mover.Wait()
			t.Log(rep)
			if err != nil || !rep.OK() {
				t.Error(err)
			}
			s := r.targets[0].arb.Stats()
			t.Logf("%d borrows, %d of a connection of another loop; loops had clients at %v moments", s.Totals.Gets, s.Totals.CrossLoop, busy)
			if s.Totals.CrossLoop < 20 || slices.Contains(busy[:], 0) {
				t.Error("the loops were not used together: nothing was tried")
			}
			if n := r.Totals().Panics; n != 0 {
				t.Errorf("%d panics", n)
			}
			eventually(t, "all slots are back", func() bool {
				c := r.targets[0].arb.Stats().Counts
				return c.Active+c.Dialing+c.Draining == 0
			})
		})
	}
}
