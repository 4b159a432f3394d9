package admin

import (
	"context"
	"sync"
	"time"
)

// plus adds the counters of two pools.
func (a Stats) plus(b Stats) Stats {
	return Stats{
		Assignments:     a.Assignments + b.Assignments,
		Transactions:    a.Transactions + b.Transactions,
		Queries:         a.Queries + b.Queries,
		BytesReceived:   a.BytesReceived + b.BytesReceived,
		BytesSent:       a.BytesSent + b.BytesSent,
		TransactionTime: a.TransactionTime + b.TransactionTime,
		QueryTime:       a.QueryTime + b.QueryTime,
		WaitTime:        a.WaitTime + b.WaitTime,
		ClientParses:    a.ClientParses + b.ClientParses,
		ServerParses:    a.ServerParses + b.ServerParses,
		Binds:           a.Binds + b.Binds,
	}
}

// minus is what happened between two looks at the same counters. A counter
// that went back was started anew: all it has happened since.
func (a Stats) minus(b Stats) Stats {
	sub := func(x, y uint64) uint64 {
		if x < y {
			return x
		}
		return x - y
	}
	subTime := func(x, y time.Duration) time.Duration {
		if x < y {
			return x
		}
		return x - y
	}
	return Stats{
		Assignments:     sub(a.Assignments, b.Assignments),
		Transactions:    sub(a.Transactions, b.Transactions),
		Queries:         sub(a.Queries, b.Queries),
		BytesReceived:   sub(a.BytesReceived, b.BytesReceived),
		BytesSent:       sub(a.BytesSent, b.BytesSent),
		TransactionTime: subTime(a.TransactionTime, b.TransactionTime),
		QueryTime:       subTime(a.QueryTime, b.QueryTime),
		WaitTime:        subTime(a.WaitTime, b.WaitTime),
		ClientParses:    sub(a.ClientParses, b.ClientParses),
		ServerParses:    sub(a.ServerParses, b.ServerParses),
		Binds:           sub(a.Binds, b.Binds),
	}
}

// poolKey identifies a user pool.
type poolKey struct{ database, user string }

// sample is the counters of every pool at one moment.
type sample struct {
	at    time.Time
	pools map[poolKey]Stats
}

func takeSample(at time.Time, pools []PoolRow) *sample {
	s := &sample{at: at, pools: make(map[poolKey]Stats, len(pools))}
	for _, p := range pools {
		s.pools[p.key()] = p.Stats
	}
	return s
}

// averages keeps the last two samples, a period apart. Averages are taken
// from the older one to now, so that they always cover between one and two
// periods: PgBouncer's way. Without Run they cover the time since the start.
type averages struct {
	mu struct {
		sync.Mutex
		older, newer *sample
	}
}

func (a *averages) init(now time.Time) {
	start := &sample{at: now}
	a.mu.older, a.mu.newer = start, start
}

func (a *averages) add(s *sample) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.older, a.mu.newer = a.mu.newer, s
}

func (a *averages) base() *sample {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.older
}

// Run takes a sample of the counters every period, for the averages of SHOW
// STATS. It returns when ctx ends.
func (c *Console) Run(ctx context.Context) {
	tick := time.NewTicker(c.period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.averages.add(takeSample(c.now(), c.source.Pools()))
		}
	}
}

// databaseStats are the counters of one database: since the start, and since
// the sample that averages are taken from.
type databaseStats struct {
	total, recent Stats
}

// byDatabase sums the pools of each database.
func byDatabase(pools []PoolRow, base *sample) map[string]databaseStats {
	all := make(map[string]databaseStats)
	for _, p := range pools {
		d := all[p.Database]
		d.total = d.total.plus(p.Stats)
		d.recent = d.recent.plus(p.Stats.minus(base.pools[p.key()]))
		all[p.Database] = d
	}
	return all
}

// perSecond is a rate, rounded down like PgBouncer's; no time has no rate.
func perSecond(n uint64, over time.Duration) Value {
	if over <= 0 {
		return Int(0)
	}
	return Int(int64(float64(n) / over.Seconds()))
}

// perEvent is a mean duration in microseconds.
func perEvent(total time.Duration, n uint64) Value {
	if n == 0 {
		return Int(0)
	}
	return Int(total.Microseconds() / int64(n))
}
