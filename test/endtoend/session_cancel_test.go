package endtoend

import (
	"context"
	"math/rand/v2"
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
// that comes late has every chance to hit the wrong one.
func TestALateCancelNeverHitsAnotherClient(t *testing.T) {
	in, _ := front(t, slots(1), trusting)
	const cancelling, victims = 6, 8
	var cancelled, done atomic.Int64
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
				if r.trySend(&pgproto3.Query{String: "SELECT pg_sleep(0.0003)"}) != nil {
					t.Error("a cancelling client was cut")
					return
				}
				var sent sync.WaitGroup
				wait := time.Duration(rng.IntN(3000)) * time.Microsecond
				sent.Go(func() {
					select {
					case <-time.After(wait):
						_ = r.cancel(context.Background(), in.Addr())
					case <-stop:
					}
				})
				got := r.reply()
				sent.Wait() // a cancel of ours may still hit ourselves
				switch {
				case strings.Contains(got, "57014"):
					cancelled.Add(1)
				case !strings.HasSuffix(got, "Z(I)") || strings.Contains(got, "E("):
					t.Errorf("a cancelling client got %s", got)
					return
				}
			}
		})
	}
	for i := range victims {
		r := loginRaw(t, in.Addr())
		still.Go(func() {
			for n := range 150 {
				want := strconv.Itoa(i) + "/" + strconv.Itoa(n)
				if got := r.query("SELECT '" + want + "', pg_sleep(0.0005)"); !strings.Contains(got, "D("+want+"|)") {
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
	if done.Load() != victims*150 || cancelled.Load() < 5 {
		t.Errorf("%d statements were done and %d cancelled: nothing was tried", done.Load(), cancelled.Load())
	}
	t.Logf("%d statements done, %d cancelled", done.Load(), cancelled.Load())
}
