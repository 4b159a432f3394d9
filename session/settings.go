package session

import (
	"slices"
	"strings"
	"sync"
)

// Setting is one configuration parameter as a client asked for it in its
// startup packet: the raw value, not SQL.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Settings is an interned set of settings: equal sets are the same pointer, so
// that alignment is decided by one comparison. nil is the bare set: nothing but
// what the server itself chose. Immutable.
type Settings struct {
	id    uint32
	pairs []Setting
	// text is the SQL that brings a bare server connection here, in one
	// simple query and so in one implicit transaction: all or nothing.
	text string
}

// ID is the interned number; 0 is the bare set.
func (s *Settings) ID() uint32 {
	if s == nil {
		return 0
	}
	return s.id
}

// Pairs returns the settings in the order of their names; the caller must not
// change them.
func (s *Settings) Pairs() []Setting {
	if s == nil {
		return nil
	}
	return s.pairs
}

// Lookup returns the value of the named setting (names compare as PostgreSQL
// compares them, without regard to case).
func (s *Settings) Lookup(name string) (string, bool) {
	for _, p := range s.Pairs() {
		if strings.EqualFold(p.Name, name) {
			return p.Value, true
		}
	}
	return "", false
}

// alignText returns the SQL that takes a server connection from one set to
// another. RESET ALL, not one RESET for each name: it is shorter, and what the
// server would refuse to reset (role, session authorization) no set contains.
func alignText(from, to *Settings) string {
	switch {
	case from == nil && to == nil:
		return ""
	case from == nil:
		return to.text
	case to == nil:
		return "RESET ALL"
	}
	return "RESET ALL; " + to.text
}

// realignText puts back those of the client's startup settings that a RESET has
// taken to the server's own default: over a direct connection RESET returns to
// what the startup packet said. Settings that the client has SET since have
// source 'session' and stay.
func (s *Settings) realignText() string {
	var b strings.Builder
	b.WriteString("SELECT pg_catalog.set_config(s.n, s.v, false) FROM (VALUES ")
	for i, p := range s.pairs {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteByte('(')
		writeLiteral(&b, p.Name)
		b.WriteString(", ")
		writeLiteral(&b, p.Value)
		b.WriteByte(')')
	}
	// pg_settings does not show what is only a name with a dot; RESET leaves
	// such a setting empty.
	b.WriteString(") AS s(n, v) LEFT JOIN pg_catalog.pg_settings p ON pg_catalog.lower(p.name) = pg_catalog.lower(s.n)" +
		" WHERE CASE WHEN p.name IS NULL THEN coalesce(pg_catalog.current_setting(s.n, true), '') = ''" +
		" ELSE p.source <> 'session' END")
	return b.String()
}

// Interner gives equal sets one identity. It is bounded: when it is full it
// forgets everything, after which old and new equal sets differ in identity,
// which costs an alignment and never correctness. Safe for concurrent use;
// called at login only.
type Interner struct {
	mu   sync.Mutex
	sets map[string]*Settings
	next uint32
}

// maxInterned bounds the distinct sets; a fleet of programs has a handful,
// multi-tenant programs with a search_path each have some thousands.
const maxInterned = 1 << 14

// Intern returns the set of the given settings; the last of equal names wins,
// as in a startup packet. An empty slice is the bare set.
func (in *Interner) Intern(pairs []Setting) *Settings {
	if len(pairs) == 0 {
		return nil
	}
	sorted := normalise(pairs)
	var key strings.Builder
	for _, p := range sorted {
		key.WriteString(p.Name)
		key.WriteByte(0)
		key.WriteString(p.Value)
		key.WriteByte(0)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if s, ok := in.sets[key.String()]; ok {
		return s
	}
	if in.sets == nil || len(in.sets) >= maxInterned {
		in.sets = make(map[string]*Settings)
	}
	in.next++
	s := &Settings{id: in.next, pairs: sorted, text: setText(sorted)}
	in.sets[key.String()] = s
	return s
}

// normalise sorts by lower-case name and keeps the last of equal names.
func normalise(pairs []Setting) []Setting {
	sorted := make([]Setting, 0, len(pairs))
	for _, p := range pairs {
		p.Name = strings.ToLower(p.Name)
		i, found := slices.BinarySearchFunc(sorted, p, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
		if found {
			sorted[i] = p
			continue
		}
		sorted = slices.Insert(sorted, i, p)
	}
	return sorted
}

// setText uses set_config, not SET: a startup packet carries raw values, and
// SET would take search_path = 'a, b' for one schema.
func setText(pairs []Setting) string {
	var b strings.Builder
	b.WriteString("SELECT ")
	for i, p := range pairs {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("pg_catalog.set_config(")
		writeLiteral(&b, p.Name)
		b.WriteString(", ")
		writeLiteral(&b, p.Value)
		b.WriteString(", false)")
	}
	return b.String()
}

// writeLiteral writes v as a string literal that means the same whatever
// standard_conforming_strings says.
func writeLiteral(b *strings.Builder, v string) {
	if strings.Contains(v, `\`) {
		b.WriteString(" E'")
	} else {
		b.WriteByte('\'')
	}
	for i := range len(v) {
		if c := v[i]; c == '\'' || c == '\\' {
			b.WriteByte(c)
		}
		b.WriteByte(v[i])
	}
	b.WriteByte('\'')
}
