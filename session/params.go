package session

import (
	"slices"
	"sync/atomic"
)

// Params are the parameters that a server reports (ParameterStatus), as one
// immutable list in the order of the names; a change makes a new list. Server
// connections and clients of a pool share them.
type Params struct {
	list []Setting
	// age orders lists by when they were made. Of two equal lists, sessions and
	// server connections keep the older one, so that in the end all have the
	// same and compare one pointer.
	age uint64
}

// paramsMade counts lists; server connections are made in any goroutine.
var paramsMade atomic.Uint64

func newParams(list []Setting) *Params {
	return &Params{list: list, age: paramsMade.Add(1)}
}

// Get returns the reported value.
func (p *Params) Get(name string) (string, bool) {
	if p == nil {
		return "", false
	}
	i, found := p.search(name)
	if !found {
		return "", false
	}
	return p.list[i].Value, true
}

// SameButName tells whether both lists report the same but for the cosmetic
// application_name.
func (p *Params) SameButName(q *Params) bool {
	return p == q || slices.EqualFunc(p.All(), q.All(), func(a, b Setting) bool {
		return a == b || a.Name == "application_name" && b.Name == "application_name"
	})
}

// All returns the parameters; the caller must not change them.
func (p *Params) All() []Setting {
	if p == nil {
		return nil
	}
	return p.list
}

// With returns a list in which name has value; p itself when it has already.
func (p *Params) With(name, value string) *Params {
	if p == nil {
		return newParams([]Setting{{name, value}})
	}
	i, found := p.search(name)
	if found && p.list[i].Value == value {
		return p
	}
	list := slices.Clone(p.list)
	if found {
		list[i].Value = value
	} else {
		list = slices.Insert(list, i, Setting{name, value})
	}
	return newParams(list)
}

func (p *Params) search(name string) (int, bool) {
	return slices.BinarySearchFunc(p.list, name, func(s Setting, n string) int {
		switch {
		case s.Name < n:
			return -1
		case s.Name > n:
			return 1
		}
		return 0
	})
}
