package endtoend

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
)

func TestAClientIdleInATransactionIsEnded(t *testing.T) {
	in, _ := front(t, slots(1), trusting, "--connpool-user-reserved-inactivity-timeout=300ms")
	idle, other := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	idle.query("BEGIN")
	start := time.Now()
	if got := idle.reply(); got != "E(FATAL 25P03) EOF" || time.Since(start) < 250*time.Millisecond {
		t.Errorf("after %v: %s", time.Since(start), got)
	}
	if got := other.value("SELECT 'free'"); got != "free" {
		t.Error(got)
	}
	// A statement that runs longer than that is not idle, nor is a client
	// outside a transaction, nor one that goes on in time.
	busy := loginRaw(t, in.Addr())
	busy.query("BEGIN")
	for range 4 {
		if got := busy.query("SELECT pg_sleep(0.2)"); !strings.HasSuffix(got, "Z(T)") {
			t.Fatal(got)
		}
	}
	if got := busy.query("SELECT pg_sleep(0.5); COMMIT"); !strings.HasSuffix(got, "Z(I)") {
		t.Error(got)
	}
	if got := other.value("SELECT pg_sleep(0.4) IS NULL"); got != "f" {
		t.Error(got)
	}
	if got := busy.value("SELECT 1"); got != "1" {
		t.Error(got)
	}
}

func TestWaitingForASlotEndsAtTheTimeoutAndTheSessionGoesOn(t *testing.T) {
	in, _ := front(t, slots(1), "--acquire-timeout=400ms")
	holder, waiter := connect(t, in.URL("app", "app")), connect(t, in.URL("app", "app"))
	do(t, holder, "BEGIN")
	for range 2 {
		start := time.Now()
		_, err := waiter.Exec(limited(t, rawLimit), "SELECT 1")
		took := time.Since(start)
		pg := pgError(t, err)
		if pg.Code != "53300" || took < 380*time.Millisecond || took > 5*time.Second {
			t.Fatalf("after %v: %v", took, err)
		}
		if !strings.Contains(pg.Message, "400ms") || !strings.Contains(pg.Hint, "--connpool-global-capacity") || !strings.Contains(pg.Detail, "code=DB_POOL_EXHAUSTED") ||
			!strings.Contains(pg.Detail, "capacity=1") {
			t.Errorf("the error does not name limit, value and knob: %+v", pg)
		}
	}
	do(t, holder, "COMMIT")
	if got := one(t, waiter, "SELECT 'goes on'"); got != "goes on" {
		t.Error(got)
	}
	if got := in.Metric(t, "multipooler_acquire_timeouts_total"); got != 2 {
		t.Errorf("%v timeouts", got)
	}
	if got := in.Metric(t, "db_connection_acquire_timeout_total"); got != 2 {
		t.Errorf("%v timeouts", got)
	}
}

func pgError(tb testing.TB, err error) *pgconn.PgError {
	tb.Helper()
	for e := err; e != nil; {
		if pg, ok := e.(*pgconn.PgError); ok {
			return pg
		}
		u, ok := e.(interface{ Unwrap() error })
		if !ok {
			if many, isMany := e.(interface{ Unwrap() []error }); isMany && len(many.Unwrap()) > 0 {
				e = many.Unwrap()[0]
				continue
			}
			break
		}
		e = u.Unwrap()
	}
	tb.Fatalf("not an answer of PostgreSQL: %v", err)
	return nil
}

func TestTheQueueIsBoundedAndServedInOrder(t *testing.T) {
	in, _ := front(t, slots(1), trusting, "--connpool-max-waiters=3", "--event-loops=1")
	holder := loginRaw(t, in.Addr())
	holder.query("CREATE TABLE IF NOT EXISTS queue_order (id serial, who int)")
	holder.query("BEGIN")
	var waiters []*raw
	for i := range 3 {
		r := loginRaw(t, in.Addr())
		r.send(&pgproto3.Query{String: "INSERT INTO queue_order (who) VALUES (" + string(rune('0'+i)) + ")"})
		waiters = append(waiters, r)
		mp.Eventually(t, limitOfRest, "it waits", func() bool { return in.Metric(t, "multipooler_pool_waiting") == float64(i+1) })
	}
	late := loginRaw(t, in.Addr())
	start := time.Now()
	if got := late.query("SELECT 1"); got != "E(ERROR 53300) Z(I)" || time.Since(start) > 3*time.Second {
		t.Errorf("after %v: %s", time.Since(start), got)
	}
	if got := in.Metric(t, "multipooler_acquire_rejected_total", `reason="queue_full"`); got != 1 {
		t.Errorf("%v refused", got)
	}
	waiters[1].hangUp() // leaves the queue at once
	mp.Eventually(t, limitOfRest, "two wait", func() bool { return in.Metric(t, "multipooler_pool_waiting") == 2 })
	holder.query("COMMIT")
	for _, i := range []int{0, 2} {
		if got := waiters[i].reply(); got != "C(INSERT 0 1) Z(I)" {
			t.Errorf("waiter %d: %s", i, got)
		}
	}
	if got := late.value("SELECT string_agg(who::text, ',' ORDER BY id) FROM queue_order"); got != "0,2" {
		t.Errorf("served in the order %s", got)
	}
	late.query("DROP TABLE queue_order")
}

func TestIdleAndTooManyClientsAreEnded(t *testing.T) {
	in, _ := front(t, slots(1), "--client-idle-timeout=300ms", "--max-clients=2")
	first, second := connect(t, in.URL("app", "app")), connect(t, in.URL("app", "app"))
	if err := refused(t, in.URL("app", "app")); err.Code != "53300" || !strings.Contains(err.Hint+err.Detail, "--max-clients") {
		t.Errorf("%+v", err)
	}
	for _, c := range []*pgx.Conn{first, second} {
		_, err := c.WaitForNotification(limited(t, limitOfRest))
		if pg := pgError(t, err); pg.Code != "57P05" {
			t.Error(err)
		}
	}
	mp.Eventually(t, limitOfRest, "nobody is there", func() bool {
		return in.Metric(t, "multipooler_client_disconnects_total", `reason="client_idle_timeout"`) == 2
	})
	connect(t, in.URL("app", "app"))
}

// refused is the error of a login that must fail.
func refused(tb testing.TB, url string) *pgconn.PgError {
	tb.Helper()
	conn, err := pgx.Connect(limited(tb, rawLimit), url)
	if err == nil {
		conn.Close(tb.Context())
		tb.Fatal("the login succeeded")
	}
	return pgError(tb, err)
}
