//go:build linux

package eventloop

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTimersFireInOrderAndNotEarly(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fired := make(chan int, 9)
	do(t, l, func() {
		start := l.Now()
		for i, ms := range []int64{12, 3, 7, 3 + 2, 1} {
			at := start + ms*int64(time.Millisecond)
			l.Arm(&Timer{F: func(now int64) {
				if now < at || Now() < at {
					t.Errorf("timer %d is %v early", i, time.Duration(at-now))
				}
				fired <- i
			}}, at)
		}
	})
	for _, want := range []int{4, 1, 3, 2, 0} {
		if got := <-fired; got != want {
			t.Errorf("timer %d fired, want %d", got, want)
		}
	}
}

func TestATimerThatIsPushedOutLeavesTheRuntimeAlone(t *testing.T) {
	l := startLoop(t, 0, Config{})
	tm := &Timer{F: func(int64) { t.Error("fired") }}
	do(t, l, func() { l.Arm(tm, l.Now()+int64(time.Hour)) })
	var deadline int64
	do(t, l, func() {
		deadline = l.deadline
		for i := range int64(100) {
			l.Arm(tm, l.Now()+int64(time.Hour)+i)
			l.Disarm(tm)
		}
		if tm.Armed() {
			t.Error("armed after Disarm")
		}
		l.Arm(tm, l.Now()+int64(2*time.Hour))
	})
	do(t, l, func() {
		if deadline == 0 || l.deadline != deadline {
			t.Errorf("the deadline moved from %d to %d", deadline, l.deadline)
		}
		l.Forget(tm)
		if tm.Armed() || l.timers.len() != 0 {
			t.Error("the timer is still held")
		}
	})
}

func TestArmingATimerAgainAllocatesNothing(t *testing.T) {
	l := &Loop{}
	tm := &Timer{F: func(int64) {}}
	l.Arm(tm, 1)
	if allocs := testing.AllocsPerRun(100, func() {
		l.Disarm(tm)
		l.Arm(tm, 5)
		l.now = 10
		l.runTimers()
		l.Arm(tm, 20)
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestDisarmedTimersAreLetGo(t *testing.T) {
	l := &Loop{}
	timers := make([]Timer, 10*compactTimers)
	for i := range timers {
		l.Arm(&timers[i], int64(1000+i))
	}
	for i := range timers {
		if i%10 != 0 {
			l.Disarm(&timers[i])
		}
	}
	if n := l.timers.len(); n > len(timers)/2 {
		t.Errorf("%d of %d timers are held, %d are armed", n, len(timers), len(timers)/10)
	}
}

// The heap with its lazy moves behaves as a plain list of times does.
func TestTimersBehaveAsAListOfTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &Loop{now: 1}
		const n = 200
		var timers [n]Timer
		want := map[int]int64{}
		for i := range timers {
			timers[i].F = func(now int64) {
				if at, ok := want[i]; !ok || at > now {
					t.Fatalf("timer %d fired at %d, want %d (%v)", i, now, at, ok)
				}
				delete(want, i)
			}
		}
		index := rapid.IntRange(0, n-1)
		t.Repeat(map[string]func(*rapid.T){
			"arm": func(t *rapid.T) {
				for range 20 {
					i, at := index.Draw(t, "timer"), l.now+rapid.Int64Range(0, 50).Draw(t, "in")
					l.Arm(&timers[i], at)
					want[i] = at
				}
			},
			"disarm": func(t *rapid.T) {
				for range 20 {
					i := index.Draw(t, "timer")
					l.Disarm(&timers[i])
					delete(want, i)
				}
			},
			"forget": func(t *rapid.T) {
				i := index.Draw(t, "timer")
				l.Forget(&timers[i])
				delete(want, i)
			},
			"advance": func(t *rapid.T) {
				l.now += rapid.Int64Range(0, 20).Draw(t, "by")
				l.runTimers()
				for i, at := range want {
					if at <= l.now {
						t.Fatalf("timer %d is due at %d and has not fired at %d", i, at, l.now)
					}
				}
			},
			"": func(t *rapid.T) {
				armed, idle := 0, 0
				for i := range timers {
					if _, ok := want[i]; timers[i].Armed() != ok {
						t.Fatalf("timer %d: armed %v, want %v", i, timers[i].Armed(), ok)
					}
				}
				for i, tm := range l.timers.h {
					if int(tm.idx) != i || i > 0 && l.timers.h[(i-1)/2].key > tm.key {
						t.Fatal("the heap is broken")
					}
					if tm.at == 0 {
						idle++
					} else {
						armed++
					}
				}
				if armed != len(want) || idle != l.timers.idle {
					t.Fatalf("%d armed (want %d), %d idle (counted %d)", armed, len(want), idle, l.timers.idle)
				}
			},
		})
	})
}
