package fidelity

import (
	"testing"
	"time"

	"github.com/multipooler/multipooler/test/differential"
)

// shape is one way in which multipooler serves sessions.
type shape struct {
	name  string
	slots int
	args  []string
	cfg   differential.Config
	// seeds of `make test`, with cfg.Steps sections per client.
	seeds []uint64
}

// shapes cover the modes, one loop and several, and from one server connection
// to as many as clients. With fewer of them than clients, a client may wait for
// one that pins, so that no pin may outlive its section (Reconnect), and not
// all server connections may be held on purpose (Holders).
var shapes = []shape{
	{
		"one server connection", 1,
		[]string{"--event-loops=4"},
		differential.Config{Clients: 4, Steps: 15, Reconnect: true},
		[]uint64{14},
	},
	{
		"one loop", 2,
		[]string{"--event-loops=1"},
		differential.Config{Clients: 5, Steps: 15, Reconnect: true},
		[]uint64{11},
	},
	{
		"fewer than clients", 3,
		[]string{"--event-loops=4"},
		differential.Config{Clients: 7, Steps: 15, Reconnect: true},
		[]uint64{12, 13},
	},
	{
		"state", 4,
		[]string{"--event-loops=4"},
		differential.Config{Clients: 7, Steps: 12, State: true, Holders: 3, Reconnect: true},
		[]uint64{21},
	},
	{
		"state on one loop", 3,
		[]string{"--event-loops=1"},
		differential.Config{Clients: 5, Steps: 12, State: true, Holders: 2, Reconnect: true},
		[]uint64{23},
	},
	{
		"long sessions", 6,
		[]string{"--event-loops=4"},
		differential.Config{Clients: 6, State: true},
		[]uint64{11, 14},
	},
	{
		"session mode", 6,
		[]string{"--event-loops=4", "--pool-mode=session"},
		differential.Config{Clients: 6, State: true},
		[]uint64{11, 32},
	},
	{
		"session mode, fewer than clients", 3,
		[]string{"--event-loops=1", "--pool-mode=session"},
		differential.Config{Clients: 5, Steps: 12, State: true, Reconnect: true},
		[]uint64{33},
	},
}

// bed starts what the shape needs.
func (s *shape) bed(tb testing.TB) *bed {
	tb.Helper()
	return newBed(tb, s.slots, s.args...)
}

// same fails unless PostgreSQL and multipooler answer alike.
func (b *bed) same(tb testing.TB, cfg differential.Config) {
	tb.Helper()
	cfg.Direct, cfg.Proxy = b.direct, b.url
	cfg.Hang = 30 * time.Second // a busy machine
	if err := differential.Run(tb.Context(), cfg); err != nil {
		tb.Fatal(err)
	}
}

func TestRepliesAreEqualInEveryMode(t *testing.T) {
	for i := range shapes {
		s := &shapes[i]
		t.Run(s.name, func(t *testing.T) {
			b := s.bed(t)
			for _, seed := range s.seeds {
				cfg := s.cfg
				cfg.Seed = seed
				b.same(t, cfg)
			}
			b.nothingLeaked(t)
			b.rest(t)
		})
	}
}
