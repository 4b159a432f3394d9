package pooler

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/multipooler/multipooler/test/pgtest"
)

// The governor measures the whole process: here the test itself is the load.
func TestClientsSpreadOverTheLoopsUnderLoadAndGatherAfterwards(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--connpool-global-capacity", "2")
	var clients []*pgconn.PgConn
	for range 6 {
		clients = append(clients, connect(t, r.addressOf("app", pg.Password("app"), "app")))
	}
	second := r.workers[1]
	busy := time.Now()
	for spread := false; !spread; spread = second.n.Load() == 3 { // spins: more than 60 % of a core
		if time.Since(busy) > 20*time.Second {
			t.Fatalf("%d clients on the second loop after %v of load, want 3", second.n.Load(), time.Since(busy))
		}
	}
	for _, c := range clients {
		exec(t, c, "select 1")
	}
	quiet := time.Now()
	for second.n.Load() > 0 {
		if time.Since(quiet) > 20*time.Second {
			t.Fatalf("%d clients on the second loop after %v without load", second.n.Load(), time.Since(quiet))
		}
		time.Sleep(50 * time.Millisecond) // sleep: looking must not be load
	}
	if took := time.Since(quiet); took < time.Second {
		t.Errorf("gathered after %v: it must not flap", took)
	}
	for _, c := range clients {
		exec(t, c, "select 1")
	}
}
