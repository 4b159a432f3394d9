package fidelity

import (
	"testing"
)

// FuzzDifferential compares replies for seeds that nobody has tried yet. shape
// picks the mode, and for its upper half the crumbling of what passes on both
// sides as well.
func FuzzDifferential(f *testing.F) {
	f.Add(uint64(1), byte(0))
	f.Fuzz(func(t *testing.T, seed uint64, shape byte) {
		s := &shapes[int(shape)%len(shapes)]
		cfg := s.cfg
		cfg.Seed = max(seed, 1)
		cfg.Steps = 10
		b := unstarted(t, s.slots)
		target := b.inside
		if shape >= 128 {
			target = at(t, target, between(t, b.server.Addr()))
		}
		b.start(t, target, s.args...)
		plain := b.url
		if shape >= 128 {
			b.url = at(t, b.url, between(t, b.in.Addr()))
		}
		b.same(t, cfg)
		b.url = plain
		b.nothingLeaked(t)
	})
}
