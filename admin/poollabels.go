package admin

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// poolLabels gives pools their label values and turns the counters of pools,
// which end when a pool is collected, into counters that never go down.
//
// A pool that has a label of its own keeps it while it lives, and so does one
// that is summed up under "other": no pool ever moves its counts from one
// series to another. A label is free again when a snapshot is without its pool.
type poolLabels struct {
	most int

	mu struct {
		sync.Mutex
		pools map[poolKey]*labelled
		own   int // entries of pools with a label of their own
		other Stats
		all   Stats // every pool that ever was
	}
}

// labelled is one living pool.
type labelled struct {
	own  bool
	last Stats // counters at the last snapshot
}

// poolGroup is what one label value stands for: gauges of now, counters.
type poolGroup struct {
	now     PoolRow
	counted Stats
}

func newPoolLabels(most int) *poolLabels {
	l := &poolLabels{most: most}
	l.mu.pools = make(map[poolKey]*labelled)
	return l
}

// group sorts the snapshot by label and returns the counters of all pools
// together besides.
func (l *poolLabels) group(pools []PoolRow) (groups map[string]poolGroup, all Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()

	present := make(map[poolKey]bool, len(pools))
	for _, p := range pools {
		present[p.key()] = true
	}
	for key, known := range l.mu.pools {
		if !present[key] {
			if known.own {
				l.mu.own--
			}
			delete(l.mu.pools, key)
		}
	}

	groups = make(map[string]poolGroup)
	for _, p := range sortedPools(pools) {
		known, ok := l.mu.pools[p.key()]
		if !ok {
			known = &labelled{own: l.mu.own < l.most}
			if known.own {
				l.mu.own++
			}
			l.mu.pools[p.key()] = known
		}
		news := p.Stats.minus(known.last)
		known.last = p.Stats
		l.mu.all = l.mu.all.plus(news)

		name, counted := otherLabel, Stats{}
		if known.own {
			name, counted = poolLabel(p.key()), p.Stats
		} else {
			l.mu.other = l.mu.other.plus(news)
		}
		g := groups[name]
		g.now = g.now.plus(p)
		g.counted = g.counted.plus(counted)
		groups[name] = g
	}
	if g, ok := groups[otherLabel]; ok || l.mu.other != (Stats{}) {
		g.counted = l.mu.other
		groups[otherLabel] = g
	}
	return groups, l.mu.all
}

// poolLabel is user@database. A pair that only a bad name makes equal to
// another one shares its series; "other" has no @ and cannot be met.
func poolLabel(k poolKey) string { return label(k.user) + "@" + label(k.database) }

func (p *PoolRow) key() poolKey { return poolKey{p.Database, p.User} }

// plus adds up the gauges that metrics show.
func (p PoolRow) plus(q PoolRow) PoolRow {
	p.ClientsActive += q.ClientsActive
	p.ClientsIdle += q.ClientsIdle
	p.ClientsWaiting += q.ClientsWaiting
	p.ServersActive += q.ServersActive
	p.ServersActiveCancel += q.ServersActiveCancel
	p.ServersBeingCanceled += q.ServersBeingCanceled
	p.ServersIdle += q.ServersIdle
	p.ServersTested += q.ServersTested
	p.ServersDialing += q.ServersDialing
	p.ServersDraining += q.ServersDraining
	p.MaxWait = max(p.MaxWait, q.MaxWait)
	p.Pinned += q.Pinned
	return p
}

// sortedPools orders by database and user, so that output can be compared.
func sortedPools(pools []PoolRow) []PoolRow {
	slices.SortFunc(pools, func(a, b PoolRow) int {
		return cmp.Or(strings.Compare(a.Database, b.Database), strings.Compare(a.User, b.User))
	})
	return pools
}
