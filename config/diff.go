package config

import (
	"cmp"
	"maps"
	"slices"
)

// Change is one key that differs between two configurations.
type Change struct {
	Key     string
	Old     string // secrets masked; "" when the key is new
	New     string // secrets masked; "" when the key is gone
	Restart bool   // a running process keeps the old value
}

// Diff lists what differs, by key. A target that is new or gone is one change
// "targets.NAME" that needs a restart.
func Diff(before, after *Config) []Change {
	old, now := index(before), index(after)
	var out []Change
	targets := func(a, b *Config, mark func(name string) Change) {
		for i := range a.Targets {
			if _, ok := b.target(a.Targets[i].Name); !ok {
				out = append(out, mark(a.Targets[i].Name))
			}
		}
	}
	targets(before, after, func(n string) Change { return Change{Key: "targets." + n, Old: "present", Restart: true} })
	targets(after, before, func(n string) Change { return Change{Key: "targets." + n, New: "present", Restart: true} })
	keys := maps.Clone(old)
	maps.Copy(keys, now)
	for key, e := range keys {
		a, inOld := old[key]
		b, inNew := now[key]
		if inOld == inNew && a.exact == b.exact {
			continue
		}
		if inOld != inNew && e.target != "" {
			_, was := before.target(e.target)
			_, is := after.target(e.target)
			if was != is {
				continue // reported as a whole
			}
		}
		out = append(out, Change{Key: key, Old: a.Value, New: b.Value, Restart: e.Restart})
	}
	slices.SortFunc(out, func(a, b Change) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

func index(c *Config) map[string]indexed {
	out := map[string]indexed{}
	for _, e := range c.entries() {
		out[e.Key] = e
	}
	return out
}

func (c *Config) target(name string) (*Target, bool) {
	for i := range c.Targets {
		if c.Targets[i].Name == name {
			return &c.Targets[i], true
		}
	}
	return nil, false
}

// Reload is after, with everything that needs a restart as it is in before: the
// configuration that a running process can take over at once. The changes say
// what is different, and what will be only after a restart.
func Reload(before, after *Config) (*Config, []Change) {
	changes := Diff(before, after)
	next := *after
	next.sources = maps.Clone(after.sources)
	next.Targets = slices.Clone(after.Targets)
	keep := func(from, to any, path string) {
		old := fields(from)
		for i, f := range fields(to) {
			if f.restart {
				f.value.Set(old[i].value)
				next.sources[path+f.key] = before.sources[path+f.key]
			}
		}
	}
	keep(before, &next, "")
	same := len(before.Targets) == len(after.Targets)
	for i := range next.Targets {
		t := &next.Targets[i]
		old, ok := before.target(t.Name)
		if !ok {
			same = false
			continue
		}
		keep(old, t, "targets."+t.Name+".")
	}
	if !same {
		next.Targets = before.Targets
		for key, src := range before.sources {
			if _, ok := next.sources[key]; !ok {
				next.sources[key] = src
			}
		}
	}
	return &next, changes
}
