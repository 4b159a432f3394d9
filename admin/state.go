package admin

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// Effect is what a Condition does to the probes.
type Effect uint8

const (
	// Note is told in the body of /readyz and changes no probe: a pool that
	// is exhausted, a server that is down. Taking an instance out of service
	// for those makes matters worse.
	Note Effect = iota
	// NotReady makes /readyz answer 503.
	NotReady
	// NotStarted makes /startupz and /readyz answer 503 until the process has
	// started once; later it counts as a Note.
	NotStarted
)

// Condition is one reason. Name identifies it ("server_down:main"); names come
// from code and configuration, never from clients, and that bounds their number.
type Condition struct {
	Name   string
	Reason string // a sentence for an operator, without secrets
	Effect Effect
}

// State is what the probes report. Its methods may be called from any
// goroutine. The zero value is a process that has not started.
type State struct {
	mu struct {
		sync.Mutex
		configured bool
		listening  bool
		draining   bool
		started    bool // latched: configured, listening and no NotStarted, once
		conditions map[string]Condition
	}
}

// SetConfigured says that the configuration was read and is valid.
func (s *State) SetConfigured(ok bool) { s.change(func() { s.mu.configured = ok }) }

// SetListening says that every listener is bound and accepted from.
func (s *State) SetListening(ok bool) { s.change(func() { s.mu.listening = ok }) }

// SetDraining says that the process is going away. It is not taken back.
func (s *State) SetDraining() { s.change(func() { s.mu.draining = true }) }

// Set adds the condition or replaces the one of the same name.
func (s *State) Set(c Condition) {
	s.change(func() {
		if s.mu.conditions == nil {
			s.mu.conditions = make(map[string]Condition)
		}
		s.mu.conditions[c.Name] = c
	})
}

// Clear removes the condition of that name, if it is there.
func (s *State) Clear(name string) { s.change(func() { delete(s.mu.conditions, name) }) }

func (s *State) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	if s.mu.started || !s.mu.configured || !s.mu.listening {
		return
	}
	for _, c := range s.mu.conditions {
		if c.Effect == NotStarted {
			return
		}
	}
	s.mu.started = true
}

// Reason is one entry of a probe's body.
type Reason struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Status is one look at a State. A probe is good when its list is empty;
// Notes change no probe. Lists are ordered, so that bodies can be compared.
type Status struct {
	NotStarted []Reason
	NotReady   []Reason
	Notes      []Reason
	Draining   bool
}

// Started says whether /startupz is good.
func (s Status) Started() bool { return len(s.NotStarted) == 0 }

// Ready says whether /readyz is good.
func (s Status) Ready() bool { return len(s.NotReady) == 0 }

// Word is the state in one word, for people.
func (s Status) Word() string {
	switch {
	case s.Draining:
		return "draining"
	case !s.Started():
		return "starting"
	case !s.Ready():
		return "not ready"
	default:
		return "ready"
	}
}

// Status looks at the state.
func (s *State) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Draining: s.mu.draining}
	if !s.mu.configured {
		st.NotReady = append(st.NotReady, Reason{"configuration", "the configuration was not read yet or is not valid"})
	}
	if !s.mu.listening && !s.mu.draining {
		st.NotReady = append(st.NotReady, Reason{"listeners", "not every listener is bound"})
	}
	if s.mu.draining {
		st.NotReady = append(st.NotReady, Reason{"draining", "the process is shutting down"})
	}
	if !s.mu.started {
		st.NotStarted = slices.Clone(st.NotReady)
	}
	ordered := slices.SortedFunc(maps.Values(s.mu.conditions), func(a, b Condition) int {
		return strings.Compare(a.Name, b.Name)
	})
	for _, c := range ordered {
		r := Reason{c.Name, c.Reason}
		switch {
		case c.Effect == NotStarted && !s.mu.started:
			st.NotStarted = append(st.NotStarted, r)
			st.NotReady = append(st.NotReady, r)
		case c.Effect == NotReady:
			st.NotReady = append(st.NotReady, r)
		default:
			st.Notes = append(st.Notes, r)
		}
	}
	return st
}
