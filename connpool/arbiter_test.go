package connpool

import (
	"errors"
	"testing"
	"time"
)

func TestAConnectionIsDialedOnceAndUsedAgain(t *testing.T) {
	r := newRig(t, Config{Capacity: 2})
	p := r.pool("a")
	c := r.open(p, Borrow{Loop: 1})
	r.put(c)
	r.expect()
	if c.Resource().claimed() {
		t.Fatal("an idle connection must be parked")
	}
	if got := r.get(p, Borrow{Loop: 1}); got != c {
		t.Fatalf("got connection %d, want %d", got.ID(), c.ID())
	}
	if s := r.a.Stats(); s.Totals.Dials != 1 || s.Totals.CrossLoop != 0 || s.Active != 1 {
		t.Fatalf("got %+v", s)
	}
}

func TestWaitersAreServedInOrder(t *testing.T) {
	r := newRig(t, Config{Capacity: 1})
	p := r.pool("a")
	c := r.open(p, Borrow{})
	var ws []*Waiter[res]
	for range 5 {
		ws = append(ws, r.wait(p, Borrow{}))
	}
	r.expect()
	for i, w := range ws {
		r.put(c)
		if op := r.expect(OpGrant)[0]; op.Waiter != w || op.Conn != c {
			t.Fatalf("release %d went to the wrong waiter", i)
		}
	}
}

func TestAWaiterOfTheReleasingLoopOvertakesAtMostEightTimes(t *testing.T) {
	r := newRig(t, Config{Capacity: 1})
	p := r.pool("a")
	c := r.open(p, Borrow{Loop: 0})
	far := r.wait(p, Borrow{Loop: 1})
	for range 10 {
		r.wait(p, Borrow{Loop: 0})
	}
	for i := range DefaultMaxSkips {
		r.put(c)
		if r.expect(OpGrant)[0].Waiter == far {
			t.Fatalf("the far waiter was served after %d skips", i)
		}
	}
	r.put(c)
	if op := r.expect(OpGrant)[0]; op.Waiter != far || op.Loop != 1 {
		t.Fatal("the far waiter was overtaken a ninth time")
	}
	if s := p.Stats(); s.Totals.CrossLoop != 1 {
		t.Fatalf("cross-loop borrows: got %d, want 1", s.Totals.CrossLoop)
	}
}

func TestTheHeldSlotsNeverPassTheCapacity(t *testing.T) {
	r := newRig(t, Config{Capacity: 2})
	p := r.pool("a")
	r.wait(p, Borrow{})
	r.wait(p, Borrow{})
	r.wait(p, Borrow{})
	ops := r.expect(OpDial, OpDial)
	r.a.Drain(ops[0].Conn, r.now) // still holds its slot
	r.take()
	r.gone(ops[0].Conn)
	r.expect(OpDial)
}

func TestIdleChoicePrefersSettingsThenLoop(t *testing.T) {
	type idle struct {
		settings SettingsID
		loop     int
	}
	for _, tt := range []struct {
		name string
		idle []idle // in order of release
		busy int    // index that its loop is looking at; -1 none
		want int
	}{
		{"newest of equals", []idle{{1, 1}, {1, 1}}, -1, 1},
		{"both match", []idle{{1, 1}, {1, 0}, {0, 1}, {0, 0}}, -1, 0},
		{"settings before loop", []idle{{1, 0}, {0, 1}, {0, 0}}, -1, 0},
		{"loop before nothing", []idle{{0, 1}, {0, 0}}, -1, 0},
		{"anything", []idle{{0, 0}, {2, 0}}, -1, 1},
		{"steps over a busy one", []idle{{0, 1}, {1, 1}}, 1, 0},
		{"second of the same quality", []idle{{0, 0}, {0, 0}}, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Config{Capacity: 8})
			p := r.pool("a")
			var cs []*Conn[res]
			for _, i := range tt.idle {
				c := r.open(p, Borrow{Loop: i.loop})
				c.SetSettings(i.settings)
				cs = append(cs, c)
			}
			for _, c := range cs {
				r.put(c)
			}
			if tt.busy >= 0 {
				cs[tt.busy].res.TryClaim(cs[tt.busy].res.Loop())
			}
			if got := r.get(p, Borrow{Settings: 1, Loop: 1}); got != cs[tt.want] {
				t.Fatalf("got connection %d, want %d", got.ID(), cs[tt.want].ID())
			}
		})
	}
}

func TestAnEventOnAnIdleConnectionLosesNoWakeUp(t *testing.T) {
	r := newRig(t, Config{Capacity: 1})
	p := r.pool("a")
	c := r.open(p, Borrow{})
	r.put(c)
	if !c.res.TryClaim(0) {
		t.Fatal("its loop could not claim a parked connection")
	}
	w := r.wait(p, Borrow{Loop: 1}) // walks away from the claimed one
	r.expect()
	r.a.Unclaimed(c, r.now, &r.ops)
	if op := r.expect(OpGrant)[0]; op.Waiter != w || op.Loop != 1 {
		t.Fatal("the waiter that missed the connection was not served")
	}
}

func TestAnEventOnAnIdleConnectionThatNobodyMissedParksItAgain(t *testing.T) {
	r := newRig(t, Config{Capacity: 1})
	c := r.open(r.pool("a"), Borrow{})
	r.put(c)
	c.res.TryClaim(0)
	r.a.Unclaimed(c, r.now, &r.ops)
	r.expect()
	if c.res.claimed() || c.State() != Idle {
		t.Fatal("not parked")
	}
}

func TestAnIdleConnectionThatDiesFreesItsSlotForAWaiter(t *testing.T) {
	r := newRig(t, Config{Capacity: 1})
	p := r.pool("a")
	c := r.open(p, Borrow{})
	r.put(c)
	c.res.TryClaim(0)
	r.wait(p, Borrow{})
	r.gone(c)
	r.expect(OpDial)
}

func TestTheLongestIdleConnectionOfAnotherPoolMakesRoom(t *testing.T) {
	r := newRig(t, Config{Capacity: 2})
	old, young := r.open(r.pool("a"), Borrow{}), r.open(r.pool("b"), Borrow{})
	r.put(old)
	r.now += sec
	r.put(young)
	w := r.wait(r.pool("c"), Borrow{})
	op := r.expect(OpClose)[0]
	if op.Conn != old || !old.res.claimed() || old.State() != Draining {
		t.Fatal("the wrong connection was closed")
	}
	r.gone(old)
	dial := r.expect(OpDial)[0]
	r.dialed(dial.Conn, 0)
	if r.expect(OpGrant)[0].Waiter != w {
		t.Fatal("the slot did not reach the waiter")
	}
}

func TestOneWaiterClosesOnlyOneConnection(t *testing.T) {
	r := newRig(t, Config{Capacity: 3})
	for _, c := range []*Conn[res]{r.open(r.pool("a"), Borrow{}), r.open(r.pool("a"), Borrow{}), r.open(r.pool("a"), Borrow{})} {
		r.put(c)
	}
	r.wait(r.pool("b"), Borrow{})
	r.expect(OpClose)
	r.tick(0)
	r.expect()
	r.wait(r.pool("b"), Borrow{})
	r.expect(OpClose)
}

func TestAReleaseStaysWithItsPoolUntilAnotherHasWaitedClearlyLonger(t *testing.T) {
	r := newRig(t, Config{Capacity: 1})
	a, b := r.pool("a"), r.pool("b")
	c := r.open(a, Borrow{})
	r.now += sec
	r.wait(b, Borrow{})
	own := r.wait(a, Borrow{})
	r.now += 50 * ms
	r.put(c)
	if r.expect(OpGrant)[0].Waiter != own {
		t.Fatal("want the own waiter first")
	}
	r.wait(a, Borrow{})
	r.now += 51 * ms
	r.put(c)
	r.expect(OpClose)
	r.gone(c)
	if op := r.expect(OpDial)[0]; op.Pool != b {
		t.Fatalf("the slot went to %v", op.Pool.Key())
	}
}

func TestCancelOwnsTheOutcomeOnlyWhileQueued(t *testing.T) {
	r := newRig(t, Config{Capacity: 1})
	p := r.pool("a")
	c := r.open(p, Borrow{})
	w1, w2 := r.wait(p, Borrow{}), r.wait(p, Borrow{})
	if !r.a.Cancel(w1) || r.a.Cancel(w1) {
		t.Fatal("want true, then false")
	}
	r.put(c)
	if r.expect(OpGrant)[0].Waiter != w2 {
		t.Fatal("the cancelled waiter was served")
	}
	if r.a.Expire(w2) {
		t.Fatal("a granted waiter was expired")
	}
	w3 := r.wait(p, Borrow{})
	if !r.a.Expire(w3) || p.Stats().Totals.Timeouts != 1 {
		t.Fatal("the timeout was not counted")
	}
}

func TestAFullQueueRefusesWithNumbersAndKnob(t *testing.T) {
	r := newRig(t, Config{Capacity: 1, MaxWaiters: 1})
	p := r.pool("a")
	r.open(p, Borrow{})
	r.wait(p, Borrow{})
	_, _, err := r.tryGet(p, Borrow{})
	refused, ok := errors.AsType[*RefusedError](err)
	if !ok || refused.SQLState() != "53300" {
		t.Fatalf("got %v", err)
	}
	want := `too many waiting borrows of this user (user "a", database "db"): 1 of at most 1, 1 of 1 server connections in use; raise --connpool-max-waiters or lower the concurrency`
	if err.Error() != want {
		t.Fatalf("got  %s\nwant %s", err, want)
	}
}

func TestAFailedDialFailsTheWaitersOfADeadPoolAndThenFailsFast(t *testing.T) {
	r := newRig(t, Config{Capacity: 2})
	p := r.pool("a")
	down := errors.New("connection refused")
	w1, w2, w3 := r.wait(p, Borrow{}), r.wait(p, Borrow{}), r.wait(p, Borrow{})
	dials := r.expect(OpDial, OpDial)
	r.dialFailed(dials[0].Conn, down)
	r.expect() // the other dial may still work
	r.dialFailed(dials[1].Conn, down)
	for i, op := range r.expect(OpFail, OpFail, OpFail) {
		if op.Waiter != []*Waiter[res]{w1, w2, w3}[i] || op.Err != down {
			t.Fatalf("op %d: %+v", i, op)
		}
	}
	r.now += int64(DefaultRetryMin) - 1
	if _, _, err := r.tryGet(p, Borrow{}); err != down {
		t.Fatalf("got %v, want the proof", err)
	}
	r.now++
	r.wait(p, Borrow{})
	r.wait(p, Borrow{})
	probe := r.expect(OpDial)[0] // one probe, not a storm
	r.dialFailed(probe.Conn, down)
	r.expect(OpFail, OpFail)
	r.now += 2*int64(DefaultRetryMin) - 1
	if _, _, err := r.tryGet(p, Borrow{}); err != down {
		t.Fatalf("got %v, want the back-off to have doubled", err)
	}
	r.now++
	r.wait(p, Borrow{})
	r.wait(p, Borrow{})
	r.dialed(r.expect(OpDial)[0].Conn, 0)
	r.expect(OpGrant, OpDial) // it works again: dials for all
}

func TestAFailedDialKeepsTheWaitersOfALivePoolAndRetries(t *testing.T) {
	r := newRig(t, Config{Capacity: 2})
	p := r.pool("a")
	c := r.open(p, Borrow{})
	w := r.wait(p, Borrow{})
	r.dialFailed(r.expect(OpDial)[0].Conn, errors.New("reset"))
	r.expect()
	if at, ok := r.a.RetryAt(); !ok || at != r.now+int64(DefaultRetryMin) {
		t.Fatalf("retry at %d, %v", at-r.now, ok)
	}
	r.tick(0)
	r.expect()
	r.now += int64(DefaultRetryMin)
	r.tick(0)
	r.expect(OpDial)
	r.put(c)
	if r.expect(OpGrant)[0].Waiter != w {
		t.Fatal("a release must serve the waiter meanwhile")
	}
}

func TestAFullServerLowersTheCapacityForAWhileAndKeepsTheWaiters(t *testing.T) {
	r := newRig(t, Config{Capacity: 10})
	p := r.pool("a")
	c := r.open(p, Borrow{})
	r.wait(p, Borrow{})
	r.dialFailed(r.expect(OpDial)[0].Conn, sqlError("53300"))
	r.expect()
	if s := r.a.Stats(); s.Effective != 1 || s.Capacity != 10 || s.Waiting != 1 {
		t.Fatalf("got %+v", s)
	}
	r.now += int64(DefaultRefusalHold) - 1
	r.tick(0)
	r.expect()
	r.now++
	r.tick(0)
	r.expect(OpDial)
	_ = c
}

func TestAServerThatIsFullOfOthersIsProbedWithOneSlot(t *testing.T) {
	r := newRig(t, Config{Capacity: 10})
	p := r.pool("a")
	r.wait(p, Borrow{})
	r.dialFailed(r.expect(OpDial)[0].Conn, sqlError("53300"))
	r.expect()
	r.wait(p, Borrow{}) // not failed fast: waiting helps
	r.now += int64(DefaultRetryMin)
	r.tick(0)
	r.expect(OpDial)
}

func TestLifetimeIsJitteredDownwardsAndEndsAtAReleaseOrATick(t *testing.T) {
	r := newRig(t, Config{Capacity: 3, MaxLifetime: 100 * time.Second, Rand: func() uint64 { return 1 << 63 }})
	p := r.pool("a")
	c, d := r.open(p, Borrow{}), r.open(p, Borrow{})
	r.put(d)
	r.now += 95*sec - 1 // half of the spread of 10 s
	r.tick(0)
	r.put(c)
	r.expect()
	c = r.get(p, Borrow{})
	r.now++
	r.put(c)
	if r.expect(OpClose)[0].Conn != c {
		t.Fatal("the lifetime was not honoured at the release")
	}
	r.tick(1)
	r.expect() // not its loop
	r.tick(0)
	if r.expect(OpClose)[0].Conn != d {
		t.Fatal("the lifetime was not honoured at the tick")
	}
}

func TestIdleTimeoutClosesExactlyInTime(t *testing.T) {
	r := newRig(t, Config{Capacity: 2, IdleTimeout: time.Minute})
	c := r.open(r.pool("a"), Borrow{})
	r.put(c)
	r.now += 60*sec - 1
	r.tick(0)
	r.expect()
	r.now++
	c.res.TryClaim(0)
	r.tick(0)
	r.expect() // its loop is at it: walk away
	r.a.Unclaimed(c, r.now, &r.ops)
	r.expect()
	r.tick(0)
	r.expect(OpClose)
}

func TestShrinkClosesIdleOnesFirstAndTheOthersAtRelease(t *testing.T) {
	r := newRig(t, Config{Capacity: 4, MaxIdle: 2})
	p := r.pool("a")
	var cs []*Conn[res]
	for range 4 {
		cs = append(cs, r.open(p, Borrow{}))
	}
	r.put(cs[0])
	r.a.SetCapacity(2, r.now, &r.ops)
	if r.expect(OpClose)[0].Conn != cs[0] {
		t.Fatal("the idle one goes first")
	}
	w := r.wait(p, Borrow{})
	r.put(cs[1])
	if r.expect(OpClose)[0].Conn != cs[1] {
		t.Fatal("over capacity, a release closes even when somebody waits")
	}
	r.gone(cs[0])
	r.gone(cs[1])
	r.expect()
	r.put(cs[2])
	if r.expect(OpGrant)[0].Waiter != w {
		t.Fatal("at capacity, a release serves")
	}
	r.put(cs[2])
	r.expect()
	r.put(cs[3])
	r.expect(OpClose) // MaxIdle has followed: 1
	r.a.SetCapacity(4, r.now, &r.ops)
	r.expect()
}

func TestGrowingDialsForThoseWhoWait(t *testing.T) {
	r := newRig(t, Config{Capacity: 1})
	p := r.pool("a")
	r.open(p, Borrow{})
	r.wait(p, Borrow{})
	r.wait(p, Borrow{})
	r.expect()
	r.a.SetCapacity(10, r.now, &r.ops)
	r.expect(OpDial, OpDial)
}

func TestReconfigureTakesOverBoundsAndTimeouts(t *testing.T) {
	r := newRig(t, Config{Capacity: 3, MaxWaiters: 1})
	p := r.pool("a")
	a, b := r.open(p, Borrow{}), r.open(p, Borrow{})
	r.put(a)
	r.put(b)
	r.a.Reconfigure(Config{Capacity: 2, MaxIdle: 1, MaxWaiters: 2, IdleTimeout: time.Second}, r.now, &r.ops)
	if r.expect(OpClose)[0].Conn != a {
		t.Fatal("of two idle ones one may stay, the longest idle goes")
	}
	r.gone(a)
	r.now += int64(time.Second)
	r.tick(0)
	if r.expect(OpClose)[0].Conn != b {
		t.Fatal("the new idle timeout is over")
	}
	r.gone(b)
	r.open(p, Borrow{})
	r.open(p, Borrow{})
	r.wait(p, Borrow{})
	r.wait(p, Borrow{})
	if _, _, err := r.tryGet(p, Borrow{}); err == nil {
		t.Fatal("a third waiter")
	}
	r.expect()
}

func TestAFreeSlotIsNotLeftToWaitForADrain(t *testing.T) {
	r := newRig(t, Config{Capacity: 1})
	c := r.open(r.pool("a"), Borrow{})
	r.put(c)
	r.wait(r.pool("b"), Borrow{})
	r.expect(OpClose) // its slot is on the way to b
	r.a.SetCapacity(2, r.now, &r.ops)
	r.expect(OpDial)
	r.gone(c)
	r.expect()
}

func TestCloseFailsWaitersAndClosesEachConnectionOnItsWay(t *testing.T) {
	r := newRig(t, Config{Capacity: 3})
	p := r.pool("a")
	active, idle := r.open(p, Borrow{}), r.open(p, Borrow{})
	r.wait(p, Borrow{})
	dialing := r.expect(OpDial)[0].Conn
	r.put(idle)
	r.expect(OpGrant)
	r.put(idle)
	r.wait(r.pool("b"), Borrow{})
	r.expect(OpClose)
	r.a.Close(&r.ops)
	if r.expect(OpFail)[0].Err != ErrClosed {
		t.Fatal("want ErrClosed")
	}
	if _, _, err := r.tryGet(p, Borrow{}); err != ErrClosed {
		t.Fatalf("got %v", err)
	}
	r.put(active)
	r.expect(OpClose)
	r.dialed(dialing, 0)
	r.expect(OpClose)
	for _, c := range []*Conn[res]{active, idle, dialing} {
		r.gone(c)
	}
	r.expect()
	if s := r.a.Stats(); s.Held() != 0 || !s.Closed {
		t.Fatalf("got %+v", s)
	}
}

func TestADialThatWasDrainedIsClosedWhenItSucceedsAnyway(t *testing.T) {
	r := newRig(t, Config{Capacity: 1})
	r.wait(r.pool("a"), Borrow{})
	c := r.expect(OpDial)[0].Conn
	r.a.Drain(c, r.now)
	r.dialed(c, 0)
	r.expect(OpClose)
	r.gone(c)
	r.expect(OpDial)
}
