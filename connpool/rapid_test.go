package connpool

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world is the shell and the server of the state machine test: it executes
// ops at random later moments and keeps its own books.
type world struct {
	t   *rapid.T
	a   *Arbiter[res]
	cfg Config
	now int64
	ops []Op[res]

	users   []string
	pools   map[string]*UserPool[res] // as a session remembers them, maybe forgotten by now
	queues  map[Key][]*Waiter[res]
	skips   map[*Waiter[res]]int
	dialing []*Conn[res]
	active  []*Conn[res]
	closing []*Conn[res] // terminated, EOF not yet seen
	parked  []*Conn[res]
	events  []*Conn[res] // parked, claimed by their loop
	held    int
	opened  int
	ended   int
	closed  bool
	drained bool // Drain was the last call
}

func newWorld(t *rapid.T) *world {
	cfg := Config{
		Capacity:        rapid.IntRange(1, 6).Draw(t, "capacity"),
		MaxIdle:         rapid.IntRange(-1, 4).Draw(t, "maxIdle"),
		MaxWaiters:      rapid.IntRange(1, 30).Draw(t, "maxWaiters"),
		MaxPools:        rapid.IntRange(2, 5).Draw(t, "maxPools"),
		MaxSkips:        rapid.IntRange(-1, 8).Draw(t, "maxSkips"),
		IdleTimeout:     time.Duration(rapid.IntRange(0, 20).Draw(t, "idle")) * time.Second,
		MaxLifetime:     time.Duration(rapid.IntRange(0, 40).Draw(t, "lifetime")) * time.Second,
		InactiveTimeout: 10 * time.Second,
		Rand:            func() uint64 { return 1 << 62 },
	}
	w := &world{
		t: t, a: New[res](cfg), cfg: cfg.withDefaults(), now: sec,
		users: []string{"a", "b", "c", "d"}, pools: map[string]*UserPool[res]{},
		queues: map[Key][]*Waiter[res]{}, skips: map[*Waiter[res]]int{},
	}
	w.cfg.MaxSkips = max(0, w.cfg.MaxSkips)
	return w
}

func (w *world) user() string { return rapid.SampledFrom(w.users).Draw(w.t, "user") }
func (w *world) loop() int    { return rapid.IntRange(0, 2).Draw(w.t, "loop") }

// pick takes a random member out of *list. When there is none the step is
// empty; it is not skipped, because rapid ends a run after a few skips.
func pick[T any](t *rapid.T, list *[]T, what string) (v T, ok bool) {
	if len(*list) == 0 {
		return v, false
	}
	i := rapid.IntRange(0, len(*list)-1).Draw(t, what)
	v = (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return v, true
}

func drop[T comparable](list *[]T, v T) bool {
	i := slices.Index(*list, v)
	if i < 0 {
		return false
	}
	*list = slices.Delete(*list, i, i+1)
	return true
}

// run books the ops of the last call.
func (w *world) run() {
	w.drained = false
	ops := slices.Clone(w.ops)
	w.ops = w.ops[:0]
	for _, op := range ops {
		switch op.Kind {
		case OpDial:
			w.held++
			w.opened++
			if limit := w.a.Stats().Effective; w.held > limit {
				w.t.Fatalf("dial with %d slots held of %d", w.held, limit)
			}
			w.dialing = append(w.dialing, op.Conn)
			n := 0
			for _, c := range w.dialing {
				if c.pool == op.Pool && c.State() == Dialing {
					n++
				}
			}
			if n > len(w.queues[op.Pool.Key()]) {
				w.t.Fatalf("%d dials for %d waiters", n, len(w.queues[op.Pool.Key()]))
			}
		case OpGrant:
			w.granted(op)
		case OpClose:
			if !drop(&w.parked, op.Conn) && slices.Contains(w.closing, op.Conn) {
				w.t.Fatalf("closed twice")
			}
			if !op.Conn.res.claimed() || op.Conn.res.Loop() != op.Loop {
				w.t.Fatalf("close of a connection that is not claimed for loop %d", op.Loop)
			}
			w.closing = append(w.closing, op.Conn)
		case OpFail:
			q := w.queues[op.Pool.Key()]
			if len(q) == 0 || q[0] != op.Waiter || op.Err == nil {
				w.t.Fatalf("fail out of order")
			}
			w.queues[op.Pool.Key()] = q[1:]
		}
	}
}

// granted checks the order of service: the oldest of the releasing loop, or
// the head, which is overtaken at most MaxSkips times.
func (w *world) granted(op Op[res]) {
	k := op.Pool.Key()
	q := w.queues[k]
	i := slices.Index(q, op.Waiter)
	if i < 0 {
		w.t.Fatalf("grant to somebody who does not wait")
	}
	if i > 0 {
		if w.skips[q[0]]++; w.skips[q[0]] > w.cfg.MaxSkips {
			w.t.Fatalf("the head was overtaken %d times", w.skips[q[0]])
		}
		from := op.Conn.res.Loop()
		for _, earlier := range q[:i] {
			if b := earlier.Borrow(); b.Loop == from || op.Waiter.Borrow().Loop != from {
				w.t.Fatalf("waiter %d of loop %d overtook one of loop %d at a release on loop %d", i, op.Waiter.Borrow().Loop, b.Loop, from)
			}
		}
	}
	w.queues[k] = slices.Delete(slices.Clone(q), i, i+1)
	op.Conn.res.giveTo(op.Loop)
	w.lent(op.Conn)
}

func (w *world) lent(c *Conn[res]) {
	drop(&w.parked, c)
	if slices.Contains(w.active, c) {
		w.t.Fatalf("connection %d has two owners", c.id)
	}
	w.active = append(w.active, c)
}

// settled books a connection that was given back: parked unless an op says
// otherwise.
func (w *world) settled(c *Conn[res]) {
	if !slices.ContainsFunc(w.ops, func(op Op[res]) bool { return op.Conn == c }) {
		if c.res.claimed() {
			w.t.Fatalf("connection %d was neither parked nor passed on", c.id)
		}
		w.parked = append(w.parked, c)
	}
	w.run()
}

func (w *world) get(*rapid.T) {
	u := w.user()
	p := w.pools[u]
	if p == nil || rapid.IntRange(0, 9).Draw(w.t, "look up") == 0 {
		p = w.a.Pool(Key{Target: "t", Database: "db", User: u})
		w.pools[u] = p
	}
	wt := &Waiter[res]{}
	b := Borrow{Settings: SettingsID(rapid.IntRange(0, 2).Draw(w.t, "settings")), Loop: w.loop()}
	c, err := w.a.Get(p, wt, b, w.now, &w.ops)
	switch {
	case c != nil:
		if c.pool.Key().User != u || c.res.Loop() != b.Loop {
			w.t.Fatalf("borrowed a connection of %v on loop %d", c.pool.Key(), c.res.Loop())
		}
		w.lent(c)
	case err == nil:
		k := wt.Pool().Key()
		w.queues[k] = append(w.queues[k], wt)
	case w.closed && !errors.Is(err, ErrClosed) && p != nil:
		w.t.Fatalf("closed: got %v", err)
	}
	w.run()
}

func (w *world) cancel(*rapid.T) {
	k := Key{Target: "t", Database: "db", User: w.user()}
	q := w.queues[k]
	wt, ok := pick(w.t, &q, "waiter")
	if !ok {
		return
	}
	w.queues[k] = q
	if !w.a.Cancel(wt) || w.a.Cancel(wt) {
		w.t.Fatalf("a queued waiter is cancelled once")
	}
}

func (w *world) put(*rapid.T) {
	c, ok := pick(w.t, &w.active, "active")
	if !ok {
		return
	}
	if rapid.Bool().Draw(w.t, "aligned") {
		c.SetSettings(c.Borrow().Settings)
	}
	w.a.Put(c, w.now, &w.ops)
	w.settled(c)
}

func (w *world) dialed(*rapid.T) {
	c, ok := pick(w.t, &w.dialing, "dialing")
	if !ok {
		return
	}
	w.a.Dialed(c, newFake(w.loop()), w.now, &w.ops)
	w.settled(c)
}

func (w *world) dialFailed(*rapid.T) {
	c, ok := pick(w.t, &w.dialing, "dialing")
	if !ok {
		return
	}
	w.held, w.ended = w.held-1, w.ended+1
	err := errors.New("refused")
	if rapid.IntRange(0, 3).Draw(w.t, "full") == 0 {
		err = sqlError("53300")
	}
	w.a.DialFailed(c, fmt.Errorf("dial: %w", err), w.now, &w.ops)
	w.run()
}

func (w *world) gone(*rapid.T) {
	c, ok := pick(w.t, &w.closing, "closing")
	if !ok {
		return
	}
	w.held, w.ended = w.held-1, w.ended+1
	w.a.Gone(c, w.now, &w.ops)
	w.run()
}

func (w *world) drain(*rapid.T) {
	lists := []*[]*Conn[res]{&w.active, &w.events}
	c, ok := pick(w.t, lists[rapid.IntRange(0, len(lists)-1).Draw(w.t, "state")], "connection")
	if !ok {
		return
	}
	w.a.Drain(c, w.now)
	w.drained = true
	w.closing = append(w.closing, c)
}

// abort drains a dial, which may still succeed or fail.
func (w *world) abort(*rapid.T) {
	c, ok := pick(w.t, &w.dialing, "dialing")
	if !ok {
		return
	}
	if c.State() == Dialing {
		w.a.Drain(c, w.now)
		w.drained = true
	}
	w.dialing = append(w.dialing, c)
}

// crash is a server connection that ends by itself.
func (w *world) crash(*rapid.T) {
	lists := []*[]*Conn[res]{&w.active, &w.events}
	c, ok := pick(w.t, lists[rapid.IntRange(0, len(lists)-1).Draw(w.t, "state")], "connection")
	if !ok {
		return
	}
	w.held, w.ended = w.held-1, w.ended+1
	w.a.Gone(c, w.now, &w.ops)
	w.run()
}

func (w *world) event(*rapid.T) {
	c, ok := pick(w.t, &w.parked, "parked")
	if !ok {
		return
	}
	if !c.res.TryClaim(c.res.Loop()) {
		w.t.Fatalf("a parked connection could not be claimed")
	}
	w.events = append(w.events, c)
}

func (w *world) unclaimed(*rapid.T) {
	c, ok := pick(w.t, &w.events, "event")
	if !ok {
		return
	}
	w.a.Unclaimed(c, w.now, &w.ops)
	w.settled(c)
}

func (w *world) pass(*rapid.T) {
	w.now += int64(rapid.IntRange(0, 300).Draw(w.t, "ms")) * ms
}

func (w *world) tick(*rapid.T) {
	w.now += int64(rapid.IntRange(0, 3000).Draw(w.t, "ms")) * ms
	w.a.Tick(w.loop(), w.now, &w.ops)
	w.run()
}

func (w *world) resize(*rapid.T) {
	w.a.SetCapacity(rapid.IntRange(1, 6).Draw(w.t, "capacity"), w.now, &w.ops)
	w.run()
}

func (w *world) shut(*rapid.T) {
	if rapid.IntRange(0, 49).Draw(w.t, "really") > 0 {
		return
	}
	w.closed = true
	w.a.Close(&w.ops)
	w.run()
}

func (w *world) check(*rapid.T) {
	audit(w.t, w.a, w.drained)
	s := w.a.Stats()
	waiting := 0
	for _, q := range w.queues {
		waiting += len(q)
	}
	want := Counts{
		Dialing: 0, Idle: len(w.parked) + len(w.events), Active: len(w.active),
	}
	for _, c := range w.dialing {
		if c.State() == Dialing {
			want.Dialing++
		}
	}
	want.Draining = len(w.closing) + len(w.dialing) - want.Dialing
	if s.Counts != want || s.Waiting != waiting || s.Held() != w.held || w.opened-w.ended != w.held {
		w.t.Fatalf("got %+v, want %+v, %d waiting, %d held", s, want, waiting, w.held)
	}
	if uint64(w.opened) != s.Totals.Dials {
		w.t.Fatalf("%d dials, counted %d", w.opened, s.Totals.Dials)
	}
}

// finish lets everything come to its end: each waiter is served as time goes
// on, and after Close nothing is held.
func (w *world) finish() {
	for range 10_000 {
		switch {
		case len(w.dialing) > 0:
			w.dialed(nil)
		case len(w.closing) > 0:
			w.gone(nil)
		case len(w.events) > 0:
			w.unclaimed(nil)
		case len(w.active) > 0:
			w.put(nil)
		case w.a.Stats().Waiting > 0:
			w.now += 6 * sec // past each back-off
			w.a.Tick(0, w.now, &w.ops)
			w.run()
		case !w.closed:
			w.closed = true
			w.a.Close(&w.ops)
			w.run()
		default:
			w.check(nil)
			if s := w.a.Stats(); s.Held() != 0 || len(w.parked) != 0 {
				w.t.Fatalf("at the end: %+v", s)
			}
			return
		}
		w.check(nil)
	}
	w.t.Fatalf("it does not end: %+v", w.a.Stats())
}

func TestTheArbiterKeepsItsPromisesUnderRandomSteps(t *testing.T) {
	for range 20 { // of 100 runs each, unless -rapid.checks says otherwise
		rapid.Check(t, randomSteps)
	}
}

func randomSteps(t *rapid.T) {
	w := newWorld(t)
	t.Repeat(map[string]func(*rapid.T){
		"get": w.get, "get again": w.get, "get more": w.get, "put": w.put, "put more": w.put,
		"cancel": w.cancel, "dialed": w.dialed, "dialed more": w.dialed, "dial failed": w.dialFailed,
		"abort": w.abort, "gone": w.gone, "gone more": w.gone, "drain": w.drain, "crash": w.crash,
		"event": w.event, "unclaimed": w.unclaimed, "tick": w.tick, "time passes": w.pass,
		"resize": w.resize, "close": w.shut, "": w.check,
	})
	w.finish()
}
