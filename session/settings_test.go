package session

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEqualSettingsAreTheSamePointer(t *testing.T) {
	var in Interner
	a := in.Intern([]Setting{{"TimeZone", "UTC"}, {"search_path", "a"}})
	for name, same := range map[string][]Setting{
		"another order":     {{"search_path", "a"}, {"TimeZone", "UTC"}},
		"another case":      {{"timezone", "UTC"}, {"SEARCH_PATH", "a"}},
		"the last one wins": {{"timezone", "CET"}, {"search_path", "b"}, {"search_path", "a"}, {"TIMEZONE", "UTC"}},
	} {
		if b := in.Intern(same); b != a {
			t.Errorf("%s: another set", name)
		}
	}
	for name, other := range map[string][]Setting{
		"another value":     {{"timezone", "utc"}, {"search_path", "a"}},
		"fewer":             {{"timezone", "UTC"}},
		"a moved separator": {{"timezone", "UTC\x00search_path\x00a"}},
	} {
		if b := in.Intern(other); b == a || b.ID() == a.ID() || b.ID() == 0 {
			t.Errorf("%s: the same set", name)
		}
	}
	if s := in.Intern(nil); s != nil || s.ID() != 0 || s.Pairs() != nil {
		t.Error("the bare set is not nil")
	}
	if v, ok := a.Lookup("TIMEZONE"); !ok || v != "UTC" {
		t.Errorf("Lookup: %q, %v", v, ok)
	}
	if _, ok := a.Lookup("work_mem"); ok {
		t.Error("Lookup finds what is not there")
	}
}

func TestAFullInternerForgetsAndStaysRight(t *testing.T) {
	var in Interner
	first := in.Intern([]Setting{{"a", "first"}})
	for i := range maxInterned {
		in.Intern([]Setting{{"a", fmt.Sprint(i)}})
	}
	again := in.Intern([]Setting{{"a", "first"}})
	if again == first || again.ID() == first.ID() || !slices.Equal(again.Pairs(), first.Pairs()) {
		t.Errorf("%v and %v", first, again)
	}
	if len(in.sets) > maxInterned {
		t.Errorf("%d sets are kept", len(in.sets))
	}
}

func TestAlignmentIsOneStatementThatFitsWhatIsThere(t *testing.T) {
	var in Interner
	a := in.Intern([]Setting{{"TimeZone", "UTC"}})
	b := in.Intern([]Setting{{"search_path", `a, "b'c\d"`}, {"x", ""}})
	setA := "SELECT pg_catalog.set_config('timezone', 'UTC', false)"
	setB := `SELECT pg_catalog.set_config('search_path',  E'a, "b''c\\d"', false), pg_catalog.set_config('x', '', false)`
	for _, c := range []struct {
		from, to *Settings
		want     string
	}{
		{nil, nil, ""},
		{nil, a, setA},
		{a, nil, "RESET ALL"},
		{a, b, "RESET ALL; " + setB},
		{nil, b, setB},
	} {
		if got := alignText(c.from, c.to); got != c.want {
			t.Errorf("from %d to %d:\ngot  %s\nwant %s", c.from.ID(), c.to.ID(), got, c.want)
		}
	}
	if text := b.realignText(); !strings.Contains(text, `(VALUES ('search_path',  E'a, "b''c\\d"'), ('x', ''))`) {
		t.Error(text)
	}
}

// TestALiteralMeansItsValue reads literals as PostgreSQL does, with either value
// of standard_conforming_strings.
func TestALiteralMeansItsValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.StringOf(rapid.SampledFrom([]rune{'a', '\'', '\\', ' ', 'é', '"', '\n', 'E', ';', '-'})).Draw(t, "value")
		var b strings.Builder
		writeLiteral(&b, v)
		for _, conforming := range []bool{true, false} {
			if got, ok := readLiteral(strings.TrimSpace(b.String()), conforming); !ok || got != v {
				t.Fatalf("%q as %s is %q, %v", v, b.String(), got, ok)
			}
		}
	})
}

func readLiteral(s string, conforming bool) (string, bool) {
	escapes := !conforming
	if s[0] == 'E' {
		escapes, s = true, s[1:]
	}
	if s[0] != '\'' {
		return "", false
	}
	var out []byte
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && escapes:
			i++
			out = append(out, s[i])
		case s[i] == '\'' && i+1 < len(s) && s[i+1] == '\'':
			i++
			out = append(out, '\'')
		case s[i] == '\'':
			return string(out), i == len(s)-1
		default:
			out = append(out, s[i])
		}
	}
	return "", false
}

func TestParamsAreSortedAndImmutable(t *testing.T) {
	var p *Params
	if _, ok := p.Get("a"); ok || p.All() != nil {
		t.Error("nil reports something")
	}
	p = p.With("b", "1")
	q := p.With("a", "2").With("c", "3")
	if v, _ := p.Get("a"); v != "" || len(p.All()) != 1 {
		t.Error("With has changed its receiver")
	}
	if want := []Setting{{"a", "2"}, {"b", "1"}, {"c", "3"}}; !slices.Equal(q.All(), want) {
		t.Errorf("got %v, want %v", q.All(), want)
	}
	if q.With("b", "1") != q {
		t.Error("the same value makes another list")
	}
	r := q.With("b", "9")
	if v, _ := q.Get("b"); v != "1" {
		t.Error("With has changed its receiver")
	}
	if v, _ := r.Get("b"); v != "9" {
		t.Errorf("b is %q", v)
	}
	n := q.With("application_name", "x")
	if n.SameButName(q) || !n.SameButName(q.With("application_name", "y")) || !q.SameButName(q) || q.SameButName(r) {
		t.Error("SameButName")
	}
}

func TestEveryPinHasAName(t *testing.T) {
	var all Pin
	for p := PinSet; p <= PinMode; p <<= 1 {
		all |= p
	}
	if got := len(strings.Split(all.String(), ",")); got != len(PinNames()) {
		t.Errorf("%d pins, %d names: %s", got, len(PinNames()), all)
	}
	n := 0
	(PinListen | PinMode).Each(func(i int) { n += i })
	if n != 2+len(PinNames())-1 || Pin(0).String() != "" {
		t.Errorf("Each gives %d", n)
	}
}

// TestEveryEffectThatPinsHasItsPin keeps the table and its summary together.
func TestEveryEffectThatPinsHasItsPin(t *testing.T) {
	all := pinning
	for _, e := range pinsOf {
		if e.effect&pinning != e.effect {
			t.Errorf("%s pins and is not in the summary", e.effect)
		}
		all &^= e.effect
	}
	if all != 0 {
		t.Errorf("%s is in the summary and has no pin", all)
	}
}

func TestANameIsCleanedAsPostgresCleansIt(t *testing.T) {
	for name, want := range map[string]string{"": "", "psql": "psql", "é": "??", "a\tb\x7f": "a?b?", "it's \\": "it's \\"} {
		if got := cleanName(name); got != want {
			t.Errorf("%q becomes %q, want %q", name, got, want)
		}
	}
}

// TestEqualReportsBecomeOnePointer: sessions that meet on server connections end
// up with the same list, and are told nothing.
func TestEqualReportsBecomeOnePointer(t *testing.T) {
	h := &quietHost{}
	var sessions []*Session
	var servers []*Server
	for i := range 3 {
		s := New(Config{State: State{ID: uint64(i + 1), CancelKey: []byte("abcd")}, Host: h})
		s.Start(bareParams())
		sessions = append(sessions, s)
		servers = append(servers, NewServer(bareParams()))
	}
	query := encodeClient(t, `Query "select 1"`)
	reply := encodeServer(t, `CommandComplete "SELECT 1" | ReadyForQuery I`)
	h.toClient = 0
	n := 0
	for range 3 {
		for _, s := range sessions {
			for _, sv := range servers {
				h.sv = sv
				s.FromClient(query)
				s.FromServer(reply)
				n++
			}
		}
	}
	if h.toClient != n*len(reply) {
		t.Errorf("%d bytes to the clients, want %d", h.toClient, n*len(reply))
	}
	for i := range 3 {
		if sessions[i].told != sessions[0].told || servers[i].params != sessions[0].told {
			t.Fatalf("session or server %d has a list of its own", i)
		}
	}
}
