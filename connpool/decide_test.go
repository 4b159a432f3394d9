package connpool

import (
	"testing"
	"time"
)

func TestWhatBecomesOfAFreedConnection(t *testing.T) {
	const after = 100 * time.Millisecond
	long := time.Second
	own := claim{waiting: 1, arrived: 20, waited: 50 * time.Millisecond}
	other := claim{waiting: 1, arrived: 10, waited: after + 1}
	with := func(f freed, change func(*freed)) freed {
		change(&f)
		return f
	}
	both := freed{held: long, own: own, other: other}
	for _, tt := range []struct {
		name string
		f    freed
		want decision
	}{
		{"nobody wants it", freed{held: long}, keepIdle},
		{"nobody wants it, fresh", freed{}, keepIdle},
		{"enough are idle", freed{idleFull: true}, closeForGood},
		{"enough are idle, but somebody waits", freed{idleFull: true, own: own}, giveToWaiter},
		{"own waiter", freed{own: own}, giveToWaiter},
		{"other waiter only, just arrived", freed{other: claim{waiting: 1, arrived: 30}}, closeForOther},
		{"other waiter only, fresh connection", freed{held: 0, other: other}, closeForOther},
		{"both, the other clearly longer", both, closeForOther},
		{"both, the other exactly at the limit", with(both, func(f *freed) { f.other.waited = after }), giveToWaiter},
		{"both, the other came later", with(both, func(f *freed) { f.other.arrived = 21 }), giveToWaiter},
		{"both, the connection has served its user too briefly", with(both, func(f *freed) { f.held = after - 1 }), giveToWaiter},
		{"both, the connection has served just long enough", with(both, func(f *freed) { f.held = after }), closeForOther},
		{"both, a slot is on its way to the other", with(both, func(f *freed) { f.other.incoming = 1 }), giveToWaiter},
		{"shutting down", with(both, func(f *freed) { f.closing = true }), closeForGood},
		{"too old", with(both, func(f *freed) { f.expired = true }), closeForGood},
		{"over capacity", with(both, func(f *freed) { f.over = true }), closeForGood},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := decide(tt.f, after); got != tt.want {
				t.Fatalf("got %d, want %d", got, tt.want)
			}
		})
	}
}
