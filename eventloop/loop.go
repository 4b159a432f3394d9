//go:build linux

package eventloop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLoopStopped ends the conns of a loop whose Run has been told to return.
var ErrLoopStopped = errors.New("event loop stopped")

const (
	maxEvents = 128 // fetched per wait
	maxID     = 1<<16 - 1

	// A loop that never runs out of work gives its processor up after this
	// long: Go preempts it only after 10 ms, and logins and dials wait for it.
	maxHold = int64(time.Millisecond)
)

// Loop is one epoll instance with its conns, timers and mailbox.
type Loop struct {
	id  int
	cfg Config

	epoll struct { // see ctl
		sync.Mutex
		fd     int
		closed bool
	}
	file   *os.File // the epoll descriptor, in Go's netpoller
	raw    syscall.RawConn
	pollFn func(fd uintptr) bool // pollOrPark, made once
	wakeFD int

	mail   mailbox
	parked atomic.Bool // see "No lost wake-up"
	stop   atomic.Bool
	ended  bool // conns are being ended: nothing new is taken

	now    int64
	gate   int  // see direct.go; 0 = none
	direct bool // it waits without the netpoller
	busy   int  // short waits in a row

	deadline int64 // what the runtime's timer is set to; 0 = not
	heldFrom int64 // since when the loop has not parked
	slept    bool  // the last wait parked
	timers   timerHeap
	fetched  int
	events   [maxEvents]unix.EpollEvent

	// The delivery that is running, for Conn.Consume and for calls that take
	// the conn away in the middle of it.
	cur struct {
		c    *Conn // nil = none, or c has left
		p    []byte
		off  int
		keep *keepBuf // p aliases it; nil = p aliases a buffer of the loop
		left bool     // c has left; keep is to be freed after the call
	}
	calls uint64 // of handlers

	rbuf  []byte // what read fills
	pbuf  []byte // plaintext of TLS conns; nil until the first one
	tout  []byte // ciphertext on its way out
	plain []byte // scattered plaintext brought together for one record

	pend    []pending // conns written to since the last flush
	scratch []byte    // copies of small writes, until the next flush
	iov     [maxSegments]unix.Iovec
	msg     unix.Msghdr
	segs    [maxSegments][]byte

	ready   []*Conn // scheduled, see schedule
	spare   []*Conn
	watches map[int32]func() // see Watch
	muted   []*Conn          // claimed for this loop and not yet adopted; taken off epoll by an event
}

// New makes a loop. id must be unique among the loops that exchange conns.
// Run must be called to end it.
func New(id int, cfg Config) (*Loop, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if id < 0 || id > maxID {
		return nil, fmt.Errorf("loop id %d: want 0 to %d", id, maxID)
	}
	l := &Loop{
		id: id, cfg: cfg,
		rbuf:    make([]byte, cfg.ReadBuffer),
		scratch: make([]byte, 0, scratchSize),
		now:     Now(),
	}
	l.pollFn = l.pollOrPark
	l.epoll.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	if err := l.openGate(); err != nil {
		unix.Close(l.epoll.fd)
		return nil, err
	}
	if l.raw, err = l.file.SyscallConn(); err != nil {
		l.file.Close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if err := l.file.SetReadDeadline(time.Time{}); err != nil {
		l.file.Close()
		return nil, fmt.Errorf("epoll in the netpoller: %w", err)
	}
	if l.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		l.file.Close()
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	// Edge-triggered and never read: each write is one event.
	if e := l.ctl(unix.EPOLL_CTL_ADD, int32(l.wakeFD), unix.EPOLLIN|unix.EPOLLET, 0); e != 0 {
		unix.Close(l.wakeFD)
		l.file.Close()
		return nil, fmt.Errorf("add eventfd to epoll: %w", e)
	}
	return l, nil
}

// ID is what New was given.
func (l *Loop) ID() int { return l.id }

// Now is the time of the last wake-up, see the function Now.
func (l *Loop) Now() int64 { return l.now }

// Run runs the loop on the calling goroutine until ctx ends. It then runs the
// tasks that were posted, ends all conns that the loop still owns with
// ErrLoopStopped, and returns nil. It can be called once.
func (l *Loop) Run(ctx context.Context) error {
	undo := context.AfterFunc(ctx, func() {
		l.stop.Store(true)
		l.wake()
	})
	defer undo()
	l.now = Now()
	l.heldFrom = l.now
	for !l.stop.Load() {
		since := l.now
		switch {
		case len(l.ready) > 0:
			l.fetched = l.poll()
			l.now = Now()
		case l.direct:
			l.waitDirect()
			l.now = Now()
		default:
			l.armDeadline()
			l.wait()
			l.now = Now()
			l.judgeWait(since)
		}
		if l.slept {
			l.slept, l.heldFrom = false, l.now
		}
		for i := range l.fetched {
			ev := &l.events[i]
			l.dispatch(int(ev.Fd), uint32(ev.Pad), ev.Events)
		}
		l.runTasks()
		l.runTimers()
		l.runReady()
		hold := maxHold
		if l.direct {
			hold = directHold
		}
		if l.now-l.heldFrom > hold {
			l.heldFrom = l.now
			runtime.Gosched()
		}
	}
	l.shutdown()
	return nil
}

// wait fetches events, and parks the goroutine while there is nothing to do.
func (l *Loop) wait() {
	err := l.raw.Read(l.pollFn)
	if err == nil {
		return
	}
	l.parked.Store(false)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		panic("bug: wait on the epoll descriptor: " + err.Error())
	}
	l.deadlinePassed()
	l.fetched = l.poll()
}

// pollOrPark is called by the netpoller's Read: true ends the wait, false parks
// the goroutine until the epoll descriptor turns readable.
func (l *Loop) pollOrPark(uintptr) bool {
	if l.fetched = l.poll(); l.fetched > 0 {
		if l.parked.Load() {
			l.parked.Store(false)
		}
		return true
	}
	l.parked.Store(true)
	if l.mail.n.Load() > 0 || l.stop.Load() {
		l.parked.Store(false)
		return true
	}
	l.slept = true
	return false
}

// wake ends the wait of a parked loop. It must come after the store that the
// loop is to see.
func (l *Loop) wake() {
	if !l.parked.Load() || !l.parked.CompareAndSwap(true, false) {
		return
	}
	l.epoll.Lock() // against the end of the loop, which closes the eventfd
	defer l.epoll.Unlock()
	if !l.epoll.closed {
		sysWake(l.wakeFD)
	}
}

func (l *Loop) runTasks() {
	tasks := l.mail.take()
	if tasks == nil {
		return
	}
	for _, t := range tasks {
		t.Run(l)
		l.flushDirty()
	}
	l.mail.recycle(tasks)
}

// shutdown runs what was posted and ends what is owned. Conns that are parked
// here are claimed first; one that somebody else has claimed is theirs.
func (l *Loop) shutdown() {
	l.mail.close()
	for l.mail.n.Load() > 0 {
		l.runTasks()
	}
	l.ended = true
	conns.each(func(c *Conn) {
		if c.loop.Load() != l {
			return
		}
		w := c.word.Load()
		switch w.state() {
		case parked:
			if !c.word.CompareAndSwap(w, w.with(owned, l.id)) {
				return
			}
		case owned:
		default:
			return
		}
		l.end(c, ErrLoopStopped)
	})
	l.epoll.Lock()
	defer l.epoll.Unlock()
	l.epoll.closed = true
	l.file.Close() // the gate, or the epoll itself
	if l.gate != 0 {
		unix.Close(l.epoll.fd)
	}
	unix.Close(l.wakeFD)
}
