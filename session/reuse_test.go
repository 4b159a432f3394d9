package session

import (
	"testing"

	"github.com/multipooler/multipooler/protocol"
)

// TestOnlyAQuietCleanTrustedConnectionIsReusable takes the reuse rule apart: each
// row spoils one thing.
func TestOnlyAQuietCleanTrustedConnectionIsReusable(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(sv *Server)
		quiet bool
		want  bool
	}{
		{"nothing", func(*Server) {}, true, true},
		{"a reply is owed", func(sv *Server) { sv.led.push(entry{kind: replyQuery}) }, false, false},
		{"multipooler's own reply is owed", func(sv *Server) { sv.led.push(entry{kind: replyQuery, how: swallow}) }, false, false},
		{"a message is half received", func(sv *Server) { sv.left = 1 }, false, false},
		{"a batch is open", func(sv *Server) { sv.batch = true }, false, false},
		{"the server skips", func(sv *Server) { sv.skipping = true }, false, false},
		{"a COPY reads", func(sv *Server) { sv.copyIn = true }, false, false},
		{"a Sync may be answered", func(sv *Server) { sv.extra = 1 }, false, false},
		{"in a transaction", func(sv *Server) { sv.status = protocol.TxActive }, true, false},
		{"in a failed transaction", func(sv *Server) { sv.status = protocol.TxFailed }, true, false},
		{"state is left", func(sv *Server) { sv.dirty = true }, true, false},
		{"in doubt", func(sv *Server) { sv.Distrust("why not") }, true, false},
		{"settings do not matter", func(sv *Server) { sv.settings = &Settings{id: 1} }, true, true},
		{"nor does a name", func(sv *Server) { sv.appName = "x" }, true, true},
		{"nor does an unnamed statement", func(sv *Server) { sv.unnamed = unnamedTag{session: 7} }, true, true},
	} {
		sv := NewServer(nil)
		c.spoil(sv)
		if sv.Quiet() != c.quiet || sv.Reusable() != c.want {
			t.Errorf("%s: quiet %v, reusable %v, want %v, %v", c.name, sv.Quiet(), sv.Reusable(), c.quiet, c.want)
		}
	}
}

func TestSettleRefusesWhatItWouldHaveToFinish(t *testing.T) {
	for name, spoil := range map[string]func(sv *Server){
		"a batch":           func(sv *Server) { sv.batch = true },
		"a skipped batch":   func(sv *Server) { sv.skipping = true },
		"a COPY":            func(sv *Server) { sv.copyIn = true },
		"a doubt":           func(sv *Server) { sv.Distrust("why not") },
		"a Sync in doubt":   func(sv *Server) { sv.extra = 1 },
		"too much output":   func(sv *Server) { sv.led.push(entry{}); sv.settling, sv.orphanBytes = settleReplies, orphanLimit+1 },
		"a ROLLBACK failed": func(sv *Server) { sv.settling, sv.status = settleRollback, protocol.TxFailed },
	} {
		sv := NewServer(nil)
		spoil(sv)
		if send, outcome := sv.Settle(nil); outcome != SettleClose || len(send) > 0 {
			t.Errorf("%s: outcome %d, sends %q", name, outcome, send)
		}
	}
}

func TestTheFirstDoubtIsTheOneThatIsReported(t *testing.T) {
	sv := NewServer(nil)
	sv.Distrust("first")
	sv.Distrust("second")
	if sv.Doubt() != "first" {
		t.Error(sv.Doubt())
	}
}

// TestAFullLedgerStallsTheClientUntilRepliesHaveCome drives a pipeline past the
// bound.
func TestAFullLedgerStallsTheClientUntilRepliesHaveCome(t *testing.T) {
	h := &quietHost{sv: NewServer(bareParams())}
	s := New(Config{State: State{ID: 1, CancelKey: []byte("abcd")}, Host: h})
	s.Start(bareParams())
	query := protocol.AppendQuery(nil, "select 1")
	var all []byte
	for range maxLedger + 100 {
		all = append(all, query...)
	}
	taken := s.FromClient(all)
	if taken != maxLedger*len(query) {
		t.Fatalf("took %d of %d messages, want %d", taken/len(query), maxLedger+100, maxLedger)
	}
	reply := protocol.AppendReadyForQuery(protocol.AppendCommandComplete(nil, "SELECT 1"), protocol.TxIdle)
	h.redelivers = 0
	n := 0
	for h.redelivers == 0 {
		s.FromServer(reply)
		n++
	}
	if n != maxLedger/2+1 {
		t.Errorf("read again after %d replies, want %d", n, maxLedger/2+1)
	}
	if k := s.FromClient(all[taken:]); k != len(all)-taken {
		t.Errorf("took %d bytes of the rest, want %d", k, len(all)-taken)
	}
	for h.released == 0 {
		s.FromServer(reply)
		n++
	}
	if n != maxLedger+100 || h.how != Reuse {
		t.Errorf("released after %d replies as %d", n, h.how)
	}
}
