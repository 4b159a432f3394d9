//go:build linux

package eventloop

import "time"

// timerGrain is what a wake-up for timers is rounded up to: timers that are
// due within the same grain share one.
const timerGrain = int64(time.Millisecond)

// compactTimers is how many disarmed timers a heap holds before it may be
// rebuilt without them.
const compactTimers = 64

// epoch makes Now comparable between all loops and goroutines of the process.
var epoch = time.Now()

// Now is the monotonic clock of all loops, in nanoseconds. Loop.Now is cheaper
// on a loop.
func Now() int64 { return int64(time.Since(epoch)) }

// Timer calls F on the loop once its time has come, never early, late by up to
// a millisecond and the length of a turn. Embed it in what it is for. Arming
// later and disarming are a store; F may arm it again.
//
// A timer belongs to the loop it was last armed on until it has fired or
// Forget was called there: call Forget before its owner moves to another loop
// or ends, else the heap holds on to it until its old time has come.
type Timer struct {
	F func(now int64)

	at   int64 // when to fire; 0 = disarmed
	key  int64 // place in the heap; key <= at, or the timer is disarmed
	loop *Loop // in whose heap it is; nil = in none
	idx  int32
}

// Armed reports whether the timer will fire.
func (t *Timer) Armed() bool { return t.at != 0 }

// Arm makes t fire at the given time (of Now), instead of an earlier setting.
func (l *Loop) Arm(t *Timer, at int64) {
	if t.loop != nil && t.loop != l {
		panic("bug: timer armed on a second loop without Forget on the first")
	}
	at = max(at, 1)
	if t.at == 0 && t.loop != nil {
		l.timers.idle--
	}
	t.at = at
	switch {
	case t.loop == nil:
		t.loop, t.key = l, at
		l.timers.push(t)
	case at < t.key:
		t.key = at
		l.timers.up(int(t.idx))
	}
}

// Disarm keeps t from firing. It stays in the heap until its time, so that
// arming it again is cheap; see Forget.
func (l *Loop) Disarm(t *Timer) {
	if t.at == 0 {
		return
	}
	if t.loop != l {
		panic("bug: timer disarmed on another loop than it was armed on")
	}
	t.at = 0
	l.timers.idle++
	if l.timers.idle > compactTimers && l.timers.idle > len(l.timers.h)/2 {
		l.timers.compact()
	}
}

// Forget disarms t and takes it out of the loop at once. It is then free to be
// armed on another loop.
func (l *Loop) Forget(t *Timer) {
	if t.loop == nil {
		return
	}
	if t.loop != l {
		panic("bug: timer forgotten on another loop than it was armed on")
	}
	if t.at == 0 {
		l.timers.idle--
	}
	t.at, t.loop = 0, nil
	l.timers.remove(int(t.idx))
}

// runTimers fires what is due. A timer that F arms for a time already past
// waits for the next turn.
func (l *Loop) runTimers() {
	for due := l.timers.len(); due > 0 && l.timers.len() > 0; due-- {
		t := l.timers.h[0]
		if t.key > l.now {
			return
		}
		switch {
		case t.at == 0: // disarmed meanwhile
			l.timers.idle--
			t.loop = nil
			l.timers.remove(0)
		case t.at > l.now: // pushed out meanwhile
			t.key = t.at
			l.timers.down(0)
		default:
			t.at, t.loop = 0, nil
			l.timers.remove(0)
			t.F(l.now)
			l.flushDirty()
		}
	}
}

// armDeadline makes the wait end in time for the earliest timer. The runtime's
// timer is touched only when that is earlier than what it is set to.
func (l *Loop) armDeadline() {
	if l.timers.len() == 0 {
		return
	}
	key := l.timers.h[0].key
	if l.deadline != 0 && l.deadline <= key+timerGrain {
		return
	}
	l.deadline = (key/timerGrain + 1) * timerGrain
	if err := l.file.SetReadDeadline(epoch.Add(time.Duration(l.deadline))); err != nil {
		panic("bug: deadline on the epoll descriptor: " + err.Error())
	}
}

// deadlinePassed clears the deadline that ended a wait.
func (l *Loop) deadlinePassed() {
	l.deadline = 0
	if err := l.file.SetReadDeadline(time.Time{}); err != nil {
		panic("bug: deadline on the epoll descriptor: " + err.Error())
	}
}

// timerHeap is a binary min-heap on key; each timer knows its place.
type timerHeap struct {
	h    []*Timer
	idle int // disarmed ones among h
}

func (q *timerHeap) len() int { return len(q.h) }

func (q *timerHeap) push(t *Timer) {
	t.idx = int32(len(q.h))
	q.h = append(q.h, t)
	q.up(int(t.idx))
}

func (q *timerHeap) remove(i int) {
	last := len(q.h) - 1
	if i != last {
		q.h[i] = q.h[last]
		q.h[i].idx = int32(i)
	}
	q.h[last] = nil
	q.h = q.h[:last]
	if i != last {
		q.up(i)
		q.down(i)
	}
}

func (q *timerHeap) swap(i, j int) {
	q.h[i], q.h[j] = q.h[j], q.h[i]
	q.h[i].idx, q.h[j].idx = int32(i), int32(j)
}

func (q *timerHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if q.h[parent].key <= q.h[i].key {
			return
		}
		q.swap(i, parent)
		i = parent
	}
}

func (q *timerHeap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(q.h) {
			return
		}
		if r := child + 1; r < len(q.h) && q.h[r].key < q.h[child].key {
			child = r
		}
		if q.h[i].key <= q.h[child].key {
			return
		}
		q.swap(i, child)
		i = child
	}
}

// compact drops the disarmed timers. Its cost is paid by the disarmings since
// the last time, at least half the heap's length of them.
func (q *timerHeap) compact() {
	kept := q.h[:0]
	for _, t := range q.h {
		if t.at == 0 {
			t.loop = nil
			continue
		}
		t.idx = int32(len(kept))
		kept = append(kept, t)
	}
	clear(q.h[len(kept):])
	q.h, q.idle = kept, 0
	for i := len(kept)/2 - 1; i >= 0; i-- {
		q.down(i)
	}
}
