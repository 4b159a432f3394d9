//go:build linux

package eventloop

import (
	"sync"
	"sync/atomic"
)

// Task is work for a loop's goroutine. Store it in something that exists
// anyway and posting allocates nothing.
type Task interface{ Run(l *Loop) }

// TaskFunc makes a Task of a function, for rare work: the conversion allocates.
type TaskFunc func(l *Loop)

// Run calls f.
func (f TaskFunc) Run(l *Loop) { f(l) }

// maxKeptMail is the capacity from which an emptied queue is given back, so
// that one burst does not hold its memory for ever.
const maxKeptMail = 4 << 10

// mailbox is a FIFO of tasks, filled by any goroutine and emptied in one go by
// the loop. It has no bound of its own: each poster keeps at most a few tasks
// per conn in flight.
type mailbox struct {
	mu struct {
		sync.Mutex
		in     []Task
		closed bool
	}
	spare []Task       // the loop's: emptied backing array for the next swap
	n     atomic.Int32 // len(mu.in), written under mu
}

func (m *mailbox) put(t Task) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return false
	}
	m.mu.in = append(m.mu.in, t)
	m.n.Store(int32(len(m.mu.in)))
	return true
}

// take empties the queue. The result is valid until recycle.
func (m *mailbox) take() []Task {
	if m.n.Load() == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	tasks := m.mu.in
	m.mu.in, m.spare = m.spare, nil
	m.n.Store(0)
	return tasks
}

func (m *mailbox) recycle(tasks []Task) {
	clear(tasks)
	if cap(tasks) <= maxKeptMail {
		m.spare = tasks[:0]
	}
}

func (m *mailbox) close() {
	m.mu.Lock()
	m.mu.closed = true
	m.mu.Unlock()
}

// Post queues t for the loop and wakes it if it is parked. Tasks run in the
// order of their posting. False means that the loop has ended and t will never
// run; true means that it will.
func (l *Loop) Post(t Task) bool {
	if !l.mail.put(t) {
		return false
	}
	l.wake()
	return true
}
