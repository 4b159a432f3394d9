//go:build linux

package eventloop

import (
	"sync"
	"testing"
)

type numbered struct {
	poster, n int
	seen      *[8]int
	t         *testing.T
	done      *sync.WaitGroup
}

func (m *numbered) Run(*Loop) {
	if m.seen[m.poster] != m.n {
		m.t.Errorf("poster %d: task %d ran when %d was due", m.poster, m.n, m.seen[m.poster])
	}
	m.seen[m.poster]++
	m.done.Done()
}

func TestTasksOfManyPostersAllRunInEachPostersOrder(t *testing.T) {
	l := startLoop(t, 0, Config{})
	var seen [8]int
	var done, posters sync.WaitGroup
	const each = 5000
	done.Add(len(seen) * each)
	for p := range seen {
		posters.Go(func() {
			for n := range each {
				if !l.Post(&numbered{p, n, &seen, t, &done}) {
					t.Error("refused")
				}
			}
		})
	}
	posters.Wait()
	done.Wait()
}

// pingpong bounces a task between two loops. Each bounce finds the other loop
// parked or about to park: one lost wake-up and it stops for ever.
type pingpong struct {
	loops [2]*Loop
	left  int
	done  chan bool
}

func (p *pingpong) Run(l *Loop) {
	if p.left--; p.left == 0 {
		close(p.done)
		return
	}
	p.loops[1-l.ID()].Post(p)
}

func TestAPostAlwaysWakesTheLoop(t *testing.T) {
	loops := [2]*Loop{startLoop(t, 0, Config{}), startLoop(t, 1, Config{})}
	var balls []*pingpong
	for range 2 {
		p := &pingpong{loops: loops, left: 20_000, done: make(chan bool)}
		balls = append(balls, p)
		loops[0].Post(p)
	}
	for _, p := range balls {
		<-p.done
	}
}

func TestPostingAllocatesNothing(t *testing.T) {
	l := startLoop(t, 0, Config{})
	done := make(chan bool)
	task := &signal{done}
	if allocs := testing.AllocsPerRun(1000, func() {
		l.Post(task)
		<-done
	}); allocs != 0 {
		t.Errorf("%v allocations per Post", allocs)
	}
}

type signal struct{ done chan bool }

func (s *signal) Run(*Loop) { s.done <- true }

func TestAcceptedTasksRunThoughTheLoopIsStopping(t *testing.T) {
	l, err := New(0, Config{})
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	l.Post(TaskFunc(func(l *Loop) {
		ran++
		l.stop.Store(true)
		if !l.Post(TaskFunc(func(*Loop) { ran++ })) {
			t.Error("refused while running")
		}
	}))
	if err := l.Run(t.Context()); err != nil || ran != 2 {
		t.Errorf("%d tasks ran, %v", ran, err)
	}
}
