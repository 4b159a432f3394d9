package endtoend

import (
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

// untilRunning waits until the server runs n statements that contain text.
func untilRunning(tb testing.TB, s *pgtest.Server, text string, n int) {
	tb.Helper()
	admin := s.Admin(tb)
	mp.Eventually(tb, limitOfRest, text+" runs", func() bool {
		var running int
		err := admin.QueryRow(tb.Context(), "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state = 'active' AND query LIKE '%' || $1 || '%'", text).Scan(&running)
		return err == nil && running == n
	})
}

func TestARunningAndAQueuedStatementAreCancelled(t *testing.T) {
	in, s := front(t, slots(1), trusting)
	running, queued := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	running.send(&pgproto3.Query{String: "SELECT pg_sleep(60), 'a cancelled one'"})
	untilRunning(t, s, "a cancelled one", 1)
	queued.send(&pgproto3.Query{String: "SELECT 'queued'"})
	mp.Eventually(t, limitOfRest, "a client waits", func() bool { return in.Metric(t, "multipooler_pool_waiting") == 1 })

	if err := queued.cancel(t.Context(), in.Addr()); err != nil {
		t.Error(err)
	}
	if got := queued.reply(); got != "E(ERROR 57014) Z(I)" {
		t.Errorf("queued: %s", got)
	}
	untilRunning(t, s, "a cancelled one", 1) // not the other one's
	if err := running.cancel(t.Context(), in.Addr()); err != nil {
		t.Error(err)
	}
	if got := running.reply(); got != "T E(ERROR 57014) Z(I)" && got != "E(ERROR 57014) Z(I)" {
		t.Errorf("running: %s", got)
	}
	for name, r := range map[string]*raw{"running": running, "queued": queued} {
		if got := r.value("SELECT 'alive'"); got != "alive" {
			t.Errorf("%s: %s", name, got)
		}
	}
	for result, want := range map[string]float64{"sent": 1, "dequeued": 1} {
		if got := in.Metric(t, "multipooler_cancels_total", `result="`+result+`"`); got != want {
			t.Errorf("%v cancels were %s", got, result)
		}
	}
}

func TestACancelWithAWrongKeyDoesNothing(t *testing.T) {
	in, s := front(t, slots(1), trusting)
	r := loginRaw(t, in.Addr())
	r.send(&pgproto3.Query{String: "SELECT pg_sleep(0.3), 'not cancelled'"})
	untilRunning(t, s, "not cancelled", 1)
	for i := range 4 {
		wrong := *r
		wrong.key = pgproto3.BackendKeyData{ProcessID: r.key.ProcessID, SecretKey: append([]byte(nil), r.key.SecretKey...)}
		wrong.key.SecretKey[i] ^= 1
		if err := wrong.cancel(t.Context(), in.Addr()); err != nil {
			t.Error(err)
		}
	}
	if got := r.reply(); !strings.Contains(got, "D(|not cancelled)") {
		t.Error(got)
	}
	if got := in.Metric(t, "multipooler_cancels_total", `result="unknown_key"`); got != 4 {
		t.Errorf("%v unknown keys", got)
	}
}

// On one server connection each statement follows another client's: a cancel
// that comes late has every chance to hit the wrong one. The clients that cancel
// aim at the end of a statement that they know to be running.
func TestALateCancelNeverHitsAnotherClient(t *testing.T) {
	in, _ := front(t, slots(1), trusting)
	const cancelling, victims, each = 3, 8, 60
	var cancelled, late, done atomic.Int64
	stop := make(chan struct{})
	var all, still sync.WaitGroup
	for i := range cancelling {
		r := loginRaw(t, in.Addr())
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				got, err := aimedCancel(r, in.Addr(), time.Duration(rng.IntN(1500))*time.Microsecond)
				switch {
				case err != nil:
					t.Error(err)
					return
				case strings.Contains(got, "57014"):
					cancelled.Add(1)
				case strings.HasSuffix(got, "Z(I)") && !strings.Contains(got, "E("):
					late.Add(1)
				default:
					t.Errorf("a cancelling client got %s", got)
					return
				}
			}
		})
	}
	for i := range victims {
		r := loginRaw(t, in.Addr())
		still.Go(func() {
			for n := range each {
				want := strconv.Itoa(i) + "/" + strconv.Itoa(n)
				if got := r.query("SELECT '" + want + "', pg_sleep(0.001)"); !strings.Contains(got, "D("+want+"|)") {
					t.Errorf("client %d got %s", i, got)
					return
				}
				done.Add(1)
			}
		})
	}
	still.Wait()
	close(stop)
	all.Wait()
	sent := in.Metric(t, "multipooler_cancels_total", `result="sent"`)
	if done.Load() != victims*each || cancelled.Load() < 5 || late.Load() < 5 || sent < 20 {
		t.Errorf("%d statements were done, %d cancelled, %d cancels sent: nothing was tried", done.Load(), cancelled.Load(), int(sent))
	}
	t.Logf("%d statements done, %d cancelled, %d cancels late, %d sent", done.Load(), cancelled.Load(), late.Load(), int(sent))
}

// aimedCancel runs a statement of a millisecond and cancels it after a while.
func aimedCancel(r *raw, addr string, after time.Duration) (reply string, err error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := r.trySend(parse("", "SELECT 1"), bind(""), execute, flush); err != nil {
		return "", err
	}
	for range 4 { // from now on the slot is ours, until the Sync
		if got := r.next(); strings.HasPrefix(got, "E") {
			return r.reply(), nil
		}
	}
	if err := r.trySend(parse("", "SELECT pg_sleep(0.001)"), bind(""), execute, syncNow); err != nil {
		return "", err
	}
	var sent sync.WaitGroup
	sent.Go(func() {
		<-time.After(after)
		_ = sendCancel(conn, r.key)
	})
	reply = r.reply()
	sent.Wait() // a cancel of ours may still hit ourselves
	return reply, nil
}
