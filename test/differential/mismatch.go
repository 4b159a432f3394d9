package differential

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Mismatch is one difference between the proxy and PostgreSQL.
type Mismatch struct {
	Seed          uint64
	Client        int
	Section, Step int // in the client's script; -1 is the login
	Problem       string
	Log           []string // what the session was sent, the last entry being the step that differs
	Direct, Proxy []string // the replies to it
	// Minimised: the script was cut down and shows the difference with this
	// client alone.
	Minimised bool
}

func (m *Mismatch) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "differential: seed %d, client %d, section %d, step %d: %s\n", m.Seed, m.Client, m.Section, m.Step, m.Problem)
	how := "as it was met, with all clients running"
	if m.Minimised {
		how = "minimised, client alone"
	}
	fmt.Fprintf(&b, "session (%s):\n", how)
	const most = 60
	log := m.Log
	if len(log) > most {
		fmt.Fprintf(&b, "  … %d steps before\n", len(log)-most)
		log = log[len(log)-most:]
	}
	for _, l := range log {
		b.WriteString("  send   " + l + "\n")
	}
	for _, side := range []struct {
		name string
		all  []string
	}{{"direct", m.Direct}, {"proxy ", m.Proxy}} {
		for i, r := range side.all {
			if i == most {
				fmt.Fprintf(&b, "  %s … %d messages more\n", side.name, len(side.all)-most)
				break
			}
			fmt.Fprintf(&b, "  %s %s\n", side.name, r)
		}
	}
	return b.String()
}

func (p *pair) mismatch(section, index int, problem string, direct, proxy []reply) error {
	m := &Mismatch{Seed: p.cfg.Seed, Client: p.id, Section: section, Step: index, Problem: problem}
	for _, s := range p.sinceConnect {
		m.Log = append(m.Log, s.String())
	}
	for _, r := range direct {
		m.Direct = append(m.Direct, r.String())
	}
	for _, r := range proxy {
		m.Proxy = append(m.Proxy, r.String())
	}
	return m
}

const (
	// minimiseRuns and minimiseTime bound the work of cutting a script down.
	minimiseRuns = 200
	minimiseTime = 30 * time.Second
)

// minimise looks for a shorter script of the client alone that still differs.
// A difference that needs the others is returned as it was met.
func minimise(ctx context.Context, cfg Config, scripts []script, met *Mismatch) error {
	ctx, stop := context.WithTimeout(ctx, minimiseTime)
	defer stop()
	cfg.Hang = min(cfg.Hang, 2*time.Second)
	runs := 0
	var best *Mismatch
	differs := func(s script) bool {
		if runs++; runs > minimiseRuns || ctx.Err() != nil {
			return false
		}
		alone := make([]script, len(scripts))
		alone[met.Client] = s
		m, ok := errors.AsType[*Mismatch](runScripts(ctx, cfg, alone))
		if ok {
			m.Minimised = true
			best = m
		}
		return ok
	}
	s := scripts[met.Client]
	if met.Section >= 0 {
		s = s[:met.Section+1]
	}
	if !differs(s) {
		return met
	}
	s = shrink(s, differs)
	for i := range s {
		shrink(s[i].steps, func(steps []step) bool {
			smaller := slices.Clone(s)
			smaller[i].steps = steps
			if !differs(smaller) {
				return false
			}
			s = smaller
			return true
		})
	}
	return best
}

// shrink drops ever smaller stretches of list as long as still holds.
func shrink[S ~[]T, T any](list S, still func(S) bool) S {
	for size := len(list) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(list); {
			smaller := slices.Concat(list[:at], list[at+size:])
			if still(smaller) {
				list = smaller
			} else {
				at += size
			}
		}
	}
	return list
}
