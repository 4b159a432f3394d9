package pooler

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/multipooler/multipooler/admin"
	"github.com/multipooler/multipooler/session"
)

// Labels of the login and connect counters.
const (
	loginOK = iota
	loginFailed
	loginTimeout
	loginTooMany
	loginTLSFailed
	numLoginResults
)

var loginNames = [numLoginResults]string{"ok", "failed", "timeout", "too_many", "tls_failed"}

const (
	connectOK = iota
	connectFailed
	numConnectResults
)

var connectNames = [numConnectResults]string{"ok", "failed"}

// endReasons are all reasons of a client's end, for the counter's labels.
var endReasons = []session.EndReason{
	session.EndClientTerminate, session.EndClientGone, session.EndProtocol, session.EndServerGone,
	session.EndServerFatal, session.EndLoginRefused, session.EndIdleTransaction, session.EndIdle,
	session.EndStalled, session.EndShutdown, session.EndKilled, session.EndBug, session.EndStatementMode,
}

// stats are the process-wide counters. All fields are written by loops and
// goroutines and read by scrapes.
type stats struct {
	logins          [numLoginResults]atomic.Uint64
	connects        [numConnectResults]atomic.Uint64
	closes          [numCloseReasons]atomic.Uint64
	cancels         [numCancelResults]atomic.Uint64
	ends            [16]atomic.Uint64 // by index in endReasons
	pins            [32]atomic.Int64  // now, by bit
	acquireTimeouts atomic.Uint64
	cancelling      atomic.Int64
	panics          atomic.Uint64
}

func (s *stats) ended(reason session.EndReason) {
	if i := slices.Index(endReasons, reason); i >= 0 {
		s.ends[i].Add(1)
	}
}

// counts is a set of counters by label.
func counts(names []string, value func(i int) uint64) admin.Counts {
	c := make(admin.Counts, len(names))
	for i, name := range names {
		c[name] = value(i)
	}
	return c
}

// serverSet is every server connection after its login, for the console and for
// the end of the process.
type serverSet struct {
	mu     sync.Mutex
	all    map[*serverConn]struct{}
	ending bool
	empty  *emptied
}

func (s *serverSet) add(sc *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[*serverConn]struct{})
	}
	s.all[sc] = struct{}{}
}

func (s *serverSet) remove(sc *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, sc)
	if s.ending && len(s.all) == 0 {
		s.empty.signal()
	}
}

// closing makes empty fire when the last one has gone.
func (s *serverSet) closing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	if len(s.all) == 0 {
		s.empty.signal()
	}
}

// Totals implements admin.Source.
func (p *Pooler) Totals() admin.Totals {
	st := &p.stats
	t := admin.Totals{
		LoggingIn:       int(p.loggingIn.Load()),
		Panics:          st.panics.Load(),
		Logins:          counts(loginNames[:], func(i int) uint64 { return st.logins[i].Load() }),
		Connects:        counts(connectNames[:], func(i int) uint64 { return st.connects[i].Load() }),
		ServerCloses:    counts(closeReasonNames[:], func(i int) uint64 { return st.closes[i].Load() }),
		Cancels:         counts(cancelResultNames[:], func(i int) uint64 { return st.cancels[i].Load() }),
		Pins:            counts(session.PinNames(), func(i int) uint64 { return uint64(max(st.pins[i].Load(), 0)) }),
		AcquireTimeouts: st.acquireTimeouts.Load(),
		AcquireRejected: admin.Counts{},
		ReloadFailed:    p.reloadFailed.Load(),
		ConfigLoaded:    time.UnixMilli(p.configLoaded.Load()),
	}
	ends := make(admin.Counts, len(endReasons))
	for i, r := range endReasons {
		ends[string(r)] = st.ends[i].Load()
	}
	t.Disconnects = ends
	for _, w := range p.workers {
		t.Acquire.Add(w.acquire.Snapshot())
	}
	var refused, down uint64
	for _, tg := range p.targets {
		s := tg.arb.Stats()
		t.Slots.Capacity += s.Capacity
		t.Slots.Dialing += s.Dialing
		t.Slots.Idle += s.Idle
		t.Slots.Active += s.Active
		t.Slots.Draining += s.Draining
		t.Slots.Free += max(s.Capacity-s.Held(), 0)
		refused += s.Totals.Refused
		down += s.Totals.FailedFast
	}
	t.AcquireRejected["queue_full"] = refused
	t.AcquireRejected["server_down"] = down
	return t
}
