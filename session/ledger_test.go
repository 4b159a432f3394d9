package session

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func entries(l *ledger) []entry {
	var out []entry
	for i := range l.len() {
		out = append(out, l.at(i))
	}
	return out
}

func TestLedgerBehavesLikeASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l ledger
		var twin []entry
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "op") {
			case 0, 1, 2:
				e := entry{kind: replyKind(rapid.IntRange(0, int(copyEnd)).Draw(t, "kind")), unnamed: rapid.Bool().Draw(t, "unnamed")}
				l.push(e)
				twin = append(twin, e)
			case 3:
				if len(twin) > 0 {
					if got := l.pop(); got != twin[0] {
						t.Fatalf("popped %v, want %v", got, twin[0])
					}
					twin = twin[1:]
				}
			case 4:
				if len(twin) > 0 {
					from := rapid.IntRange(0, len(twin)-1).Draw(t, "from")
					to := rapid.IntRange(from, len(twin)).Draw(t, "to")
					l.removeRange(from, to)
					twin = slices.Delete(slices.Clone(twin), from, to)
				}
			case 5:
				l.trim()
			}
			if l.len() != len(twin) || l.empty() != (len(twin) == 0) || !slices.Equal(entries(&l), twin) {
				t.Fatalf("ledger %v, want %v", entries(&l), twin)
			}
		}
	})
}

func TestALongPipelineGivesItsRingBack(t *testing.T) {
	var l ledger
	for range 1000 {
		l.push(entry{})
	}
	for range 1000 {
		l.pop()
	}
	l.trim()
	if l.ring != nil {
		t.Errorf("the ring of %d entries is kept", len(l.ring))
	}
	l.push(entry{kind: replySync})
	l.trim()
	if l.len() != 1 || l.at(0).kind != replySync {
		t.Error("an entry was lost")
	}
}

// TestACopyTakesItsOwnSyncsOffTheLedger: CopyInResponse finds what was sent
// behind the statement.
func TestACopyTakesItsOwnSyncsOffTheLedger(t *testing.T) {
	q, e, s, end := entry{kind: replyQuery}, entry{kind: replyExecute}, entry{kind: replySync}, entry{kind: copyEnd}
	for name, c := range map[string]struct {
		before, after []entry
		batch         bool // before
		copyIn        bool
		wantBatch     bool
		syncs         int
		doubt         bool
	}{
		"nothing sent behind":             {before: []entry{q}, after: []entry{q}, copyIn: true},
		"a Sync that is ignored":          {before: []entry{e, s}, after: []entry{e}, copyIn: true, wantBatch: true, syncs: 1},
		"two Syncs":                       {before: []entry{e, s, s}, after: []entry{e}, copyIn: true, wantBatch: true, syncs: 2},
		"a Sync in a simple COPY":         {before: []entry{q, s}, after: []entry{q}, copyIn: true, syncs: 1},
		"its end":                         {before: []entry{q, end}, after: []entry{q}},
		"its end and a Query":             {before: []entry{q, end, q}, after: []entry{q, q}},
		"a Sync, the end, a Sync":         {before: []entry{e, s, end, s}, after: []entry{e, s}, syncs: 1},
		"a Sync, the end, and no Sync":    {before: []entry{e, s, end}, after: []entry{e}, wantBatch: true, syncs: 1},
		"the end in an open batch":        {before: []entry{e, end}, batch: true, after: []entry{e}, wantBatch: true},
		"the ends of two COPYs":           {before: []entry{q, end, end}, after: []entry{q, end}},
		"a message that has no place":     {before: []entry{e, e, s}, after: []entry{e, e, s}, copyIn: true, doubt: true},
		"one behind a Sync":               {before: []entry{e, s, q}, after: []entry{e, s, q}, copyIn: true, syncs: 1, doubt: true},
		"an end with the next one behind": {before: []entry{e, s, end, s, q, end}, after: []entry{e, s, q, end}, syncs: 1},
	} {
		sv := NewServer(nil)
		sv.batch = c.batch
		for _, x := range c.before {
			sv.led.push(x)
		}
		sv.copyStarts()
		if got := entries(&sv.led); !slices.Equal(got, c.after) {
			t.Errorf("%s: ledger %v, want %v", name, got, c.after)
		}
		if sv.copyIn != c.copyIn || sv.batch != c.wantBatch || sv.syncsInCopy != c.syncs || (sv.doubt != "") != c.doubt {
			t.Errorf("%s: copy %v, batch %v, syncs %d, doubt %q", name, sv.copyIn, sv.batch, sv.syncsInCopy, sv.doubt)
		}
	}
}
