package connpool

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stress is a shell of several loops, each a goroutine with a mailbox, that
// borrow, hold, return, cancel and lose connections as fast as they can. Each
// connection has an owner word, swapped at each hand-over: two owners at once
// end the test, whatever the race detector sees.
type stress struct {
	t     *testing.T
	a     *Arbiter[res]
	clock atomic.Int64
	loops []*stressLoop
	dials sync.WaitGroup

	mu    sync.Mutex
	conns map[*Conn[res]]bool // each one ever dialled; true: its end was reported
}

type stressLoop struct {
	s     *stress
	id    int
	inbox chan any
	rng   *rand.Rand
	ops   []Op[res]

	parked   []*Conn[res] // connections this loop has parked, or knows to be: for events
	sessions []*stressSession
}

// stressSession is a client: it borrows, works for a few turns of its loop,
// returns.
type stressSession struct {
	Waiter[res]
	loop  *stressLoop
	pool  *UserPool[res]
	conn  *Conn[res]
	state int // 0 idle, 1 waiting, 2 working
	todo  int
}

const stressOwner = 1_000_000 // a loop's own owner ids start here, sessions' at 1

func (s *stress) now() int64 { return s.clock.Add(int64(time.Microsecond)) }

// swap passes the owner word on and insists on who had it.
func (s *stress) swap(r res, from, to int64, what string) {
	if !r.owner.CompareAndSwap(from, to) {
		s.t.Errorf("%s: owner is %d, want %d", what, r.owner.Load(), from)
		panic("two owners")
	}
}

func (s *stress) end(c *Conn[res]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[c] {
		s.t.Errorf("connection %d ended twice", c.ID())
	}
	s.conns[c] = true
}

type stressTask func(l *stressLoop)

// exec executes the ops of the loop's last call.
func (l *stressLoop) exec() {
	ops := l.ops
	l.ops = nil
	for _, op := range ops {
		switch op.Kind {
		case OpDial:
			l.s.mu.Lock()
			l.s.conns[op.Conn] = false
			l.s.mu.Unlock()
			fails := l.rng.IntN(20) == 0
			l.s.dials.Go(func() {
				l.s.loops[op.Loop].inbox <- stressTask(func(l *stressLoop) { l.dialed(op.Conn, fails) })
			})
		case OpGrant:
			r := op.Conn.Resource()
			l.s.swap(r, 0, -1, "grant")
			r.giveTo(op.Loop)
			s := op.Waiter.Owner.(*stressSession)
			if s.loop == l {
				s.granted(op.Conn)
			} else {
				s.loop.inbox <- stressTask(func(*stressLoop) { s.granted(op.Conn) })
			}
		case OpClose:
			l.s.swap(op.Conn.Resource(), 0, -2, "close")
			if op.Loop == l.id {
				l.terminate(op.Conn)
			} else {
				l.s.loops[op.Loop].inbox <- stressTask(func(l *stressLoop) { l.terminate(op.Conn) })
			}
		case OpFail:
			s := op.Waiter.Owner.(*stressSession)
			failed := stressTask(func(*stressLoop) { s.state = 0 })
			if s.loop == l {
				failed(l)
			} else {
				s.loop.inbox <- failed
			}
		}
	}
}

func (l *stressLoop) dialed(c *Conn[res], fails bool) {
	if fails {
		l.s.end(c)
		l.s.a.DialFailed(c, errors.New("refused"), l.s.now(), &l.ops)
	} else {
		r := newFake(l.id)
		l.parked = append(l.parked, c)
		l.s.a.Dialed(c, r, l.s.now(), &l.ops)
	}
	l.exec()
}

// terminate sees the server's EOF at once.
func (l *stressLoop) terminate(c *Conn[res]) {
	l.s.swap(c.Resource(), -2, -3, "terminate")
	l.s.end(c)
	l.s.a.Gone(c, l.s.now(), &l.ops)
	l.exec()
}

func (s *stressSession) granted(c *Conn[res]) {
	s.loop.s.swap(c.Resource(), -1, 1, "granted")
	s.work(c)
}

func (s *stressSession) work(c *Conn[res]) {
	s.conn, s.state = c, 2
}

// step is one turn of a session.
func (s *stressSession) step() {
	l, a := s.loop, s.loop.s.a
	switch s.state {
	case 0:
		if s.todo == 0 {
			return
		}
		s.todo--
		s.state = 1
		c, err := a.Get(s.pool, &s.Waiter, Borrow{Loop: l.id, Settings: SettingsID(l.rng.IntN(2))}, l.s.now(), &l.ops)
		switch {
		case c != nil:
			l.s.swap(c.Resource(), 0, 1, "get")
			s.work(c)
		case err != nil:
			s.state = 0
		}
	case 1:
		if l.rng.IntN(50) == 0 && a.Cancel(&s.Waiter) {
			s.state = 0
		}
	case 2:
		c := s.conn
		s.conn, s.state = nil, 0
		if l.rng.IntN(40) == 0 { // the connection is in doubt
			l.s.swap(c.Resource(), 1, -2, "drain")
			a.Drain(c, l.s.now())
			l.terminate(c)
			return
		}
		c.SetSettings(c.Borrow().Settings)
		l.parked = append(l.parked, c)
		l.s.swap(c.Resource(), 1, 0, "put")
		a.Put(c, l.s.now(), &l.ops)
	}
	l.exec()
}

// event is a message on one of the connections that were parked here.
func (l *stressLoop) event() {
	if len(l.parked) == 0 {
		return
	}
	i := l.rng.IntN(len(l.parked))
	c := l.parked[i]
	l.parked[i] = l.parked[len(l.parked)-1]
	l.parked = l.parked[:len(l.parked)-1]
	r := c.Resource()
	if r.Loop() != l.id || !r.TryClaim(l.id) {
		return
	}
	l.s.swap(r, 0, stressOwner+int64(l.id), "event")
	if l.rng.IntN(4) == 0 { // it was the server's farewell
		l.s.end(c)
		l.s.a.Gone(c, l.s.now(), &l.ops)
	} else {
		l.parked = append(l.parked, c)
		l.s.swap(r, stressOwner+int64(l.id), 0, "unclaimed")
		l.s.a.Unclaimed(c, l.s.now(), &l.ops)
	}
	l.exec()
}

func (l *stressLoop) busy() bool {
	for _, s := range l.sessions {
		if s.todo > 0 || s.state != 0 {
			return true
		}
	}
	return false
}

// run turns until stop; before that it tells, once, that its sessions are done.
func (l *stressLoop) run(stop <-chan struct{}, idle *sync.WaitGroup) {
	told := false
	for turn := 0; ; turn++ {
		for drained := false; !drained; {
			select {
			case m := <-l.inbox:
				m.(stressTask)(l)
			default:
				drained = true
			}
		}
		for _, s := range l.sessions {
			s.step()
		}
		if turn%7 == 0 {
			l.event()
		}
		if turn%100 == 0 {
			l.s.clock.Add(int64(10 * time.Millisecond))
			l.s.a.Tick(l.id, l.s.now(), &l.ops)
			l.exec()
		}
		if l.id == 0 && turn%500 == 0 && !told {
			l.s.a.SetCapacity(2+l.rng.IntN(6), l.s.now(), &l.ops)
			l.exec()
		}
		if !told && !l.busy() {
			told = true
			idle.Done()
		}
		select {
		case <-stop:
			return
		default:
		}
	}
}

func TestEachConnectionHasOneOwnerUnderStressAndIsAccountedForAtTheEnd(t *testing.T) {
	const loops, sessions, borrows = 3, 6, 1500
	s := &stress{t: t, conns: map[*Conn[res]]bool{}}
	s.clock.Store(sec)
	s.a = New[res](Config{
		Capacity: 6, MaxLifetime: time.Second, IdleTimeout: 100 * time.Millisecond,
		SwitchAfter: time.Millisecond, RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond,
		InactiveTimeout: 10 * time.Millisecond,
	})
	for id := range loops {
		l := &stressLoop{s: s, id: id, inbox: make(chan any, 1<<12), rng: rand.New(rand.NewPCG(uint64(id), 7))}
		for i := range sessions {
			k := Key{Target: "t", Database: "db", User: string(rune('a' + i%3))}
			ses := &stressSession{loop: l, pool: s.a.Pool(k), todo: borrows}
			ses.Owner = ses
			l.sessions = append(l.sessions, ses)
		}
		s.loops = append(s.loops, l)
	}
	stop := make(chan struct{})
	var running, idle sync.WaitGroup
	idle.Add(loops)
	for _, l := range s.loops {
		running.Go(func() { l.run(stop, &idle) })
	}
	idle.Wait()
	var ops []Op[res]
	s.a.Close(&ops)
	closing := s.loops[0]
	closing.inbox <- stressTask(func(l *stressLoop) { l.ops = append(l.ops, ops...); l.exec() })
	for s.a.Stats().Held() > 0 { // the loops work it off; a lost connection hangs here until the test's deadline
		runtime.Gosched()
	}
	close(stop)
	running.Wait()
	s.dials.Wait()

	audit(t, s.a, false)
	for c, ended := range s.conns {
		if !ended {
			t.Errorf("connection %d was lost in state %v", c.ID(), c.State())
		}
	}
	st := s.a.Stats()
	if st.Held() != 0 || st.Totals.Dials != uint64(len(s.conns)) {
		t.Fatalf("at the end: %+v, %d connections seen", st, len(s.conns))
	}
	t.Logf("%+v", st.Totals)
}
