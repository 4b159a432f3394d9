package admin

import (
	"sync/atomic"
	"time"
)

// latencyBounds are the upper bounds of the acquire histogram: 100 µs to 10 s,
// three per decade (1, 2.5, 5).
var latencyBounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	1 * time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	1 * time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second,
}

// Latency is a histogram snapshot. Counts[i] are the observations in
// (bound i-1, bound i], the last entry those above 10 s.
type Latency struct {
	Counts [len(latencyBounds) + 1]uint64
	Sum    time.Duration
}

// Count is the number of observations.
func (l *Latency) Count() uint64 {
	var n uint64
	for _, c := range l.Counts {
		n += c
	}
	return n
}

// Add merges the snapshot of another recorder into l.
func (l *Latency) Add(o Latency) {
	for i, c := range o.Counts {
		l.Counts[i] += c
	}
	l.Sum += o.Sum
}

// LatencyRecorder counts durations. Observe is wait-free and allocates
// nothing; keep one per event loop so that loops do not share its cache lines,
// and merge the snapshots. The zero value is ready.
//
// Fields are written by Observe (atomic add) and read by Snapshot; a snapshot
// taken during an Observe may miss its half, the next one has it.
type LatencyRecorder struct {
	counts [len(latencyBounds) + 1]atomic.Uint64
	sum    atomic.Int64
}

// Observe records one duration; negative ones count as 0.
func (r *LatencyRecorder) Observe(d time.Duration) {
	d = max(d, 0)
	i := 0
	for i < len(latencyBounds) && d > latencyBounds[i] {
		i++
	}
	r.counts[i].Add(1)
	r.sum.Add(int64(d))
}

// Snapshot reads the counters.
func (r *LatencyRecorder) Snapshot() Latency {
	var l Latency
	for i := range r.counts {
		l.Counts[i] = r.counts[i].Load()
	}
	l.Sum = time.Duration(r.sum.Load())
	return l
}
