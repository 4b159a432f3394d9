package session

import (
	"testing"

	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/protocol"
)

// quietHost lends one server connection and allocates nothing.
type quietHost struct {
	sv                                   *Server
	redelivers, released, toClient, sent int
	how                                  Disposal
	ended                                EndReason
}

func (h *quietHost) ToClient(p []byte)                      { h.toClient += len(p) }
func (h *quietHost) ToServer(p []byte)                      { h.sent += len(p) }
func (h *quietHost) Borrow(connpool.Class) (*Server, error) { return h.sv, nil }
func (h *quietHost) CancelBorrow() bool                     { return true }
func (h *quietHost) Release(_ *Server, how Disposal)        { h.released++; h.how = how }
func (h *quietHost) Redeliver()                             { h.redelivers++ }
func (h *quietHost) Learned(*Params)                        {}
func (h *quietHost) Pinned(Pin)                             {}
func (h *quietHost) End(reason EndReason, _ string)         { h.ended = reason }
func (h *quietHost) Now() int64                             { return 0 }

// turn is one delivery of the client and the server's answer to it.
type turn struct{ client, server []byte }

func steadyState(t testing.TB) map[string][]turn {
	return map[string][]turn{
		"a simple query": {{
			encodeClient(t, `Query "select * from t where a = 'x' and b = 7"`),
			encodeServer(t, `RowDescription "a" | DataRow "1" | DataRow "2" | CommandComplete "SELECT 2" | ReadyForQuery I`),
		}},
		"a batch with the unnamed statement": {{
			encodeClient(t, `Parse "" "select * from t where a = $1" | Bind "" "" "7" | Describe P "" | Execute "" | Sync`),
			encodeServer(t, `ParseComplete | BindComplete | RowDescription "a" | DataRow "1" | CommandComplete "SELECT 1" | ReadyForQuery I`),
		}},
		"a transaction of three queries": {
			{encodeClient(t, `Query "begin"`), encodeServer(t, `CommandComplete "BEGIN" | ReadyForQuery T`)},
			{encodeClient(t, `Query "update t set a = 1"`), encodeServer(t, `CommandComplete "UPDATE 1" | ReadyForQuery T`)},
			{encodeClient(t, `Query "commit"`), encodeServer(t, `CommandComplete "COMMIT" | ReadyForQuery I`)},
		},
		"a COPY": {
			{encodeClient(t, `Query "copy t from stdin"`), encodeServer(t, `CopyInResponse`)},
			{encodeClient(t, `CopyData "1\n" | CopyData "2\n" | CopyDone`), encodeServer(t, `CommandComplete "COPY 2" | ReadyForQuery I`)},
		},
	}
}

func TestTheSteadyStateAllocatesNothing(t *testing.T) {
	for name, turns := range steadyState(t) {
		h := &quietHost{sv: NewServer(bareParams())}
		s := New(Config{State: State{ID: 1, CancelKey: []byte("abcd")}, Host: h})
		s.Start(bareParams())
		run := func() {
			for _, x := range turns {
				if n := s.FromClient(x.client); n != len(x.client) {
					t.Fatalf("%s: took %d of %d bytes", name, n, len(x.client))
				}
				if n := s.FromServer(x.server); n != len(x.server) {
					t.Fatalf("%s: took %d of %d bytes", name, n, len(x.server))
				}
			}
		}
		run()
		before := h.released
		if n := testing.AllocsPerRun(100, run); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		if h.released != before+101 || h.how != Reuse || s.Server() != nil {
			t.Errorf("%s: released %d times, want %d, as %d", name, h.released-before, 101, h.how)
		}
	}
}

func BenchmarkSteadyState(b *testing.B) {
	for name, turns := range steadyState(b) {
		b.Run(name, func(b *testing.B) {
			h := &quietHost{sv: NewServer(bareParams())}
			s := New(Config{State: State{ID: 1, CancelKey: []byte("abcd")}, Host: h})
			s.Start(bareParams())
			b.ReportAllocs()
			for b.Loop() {
				for _, x := range turns {
					s.FromClient(x.client)
					s.FromServer(x.server)
				}
			}
		})
	}
}

// FuzzSession: whatever a client and a server send, nothing panics, no bytes
// are invented, and a connection is given on only when it is reusable.
func FuzzSession(f *testing.F) {
	for _, turns := range steadyState(f) {
		for _, x := range turns {
			f.Add(x.client, x.server, uint8(3))
		}
	}
	f.Add(encodeClient(f, `Parse "" "copy t from stdin" | Bind "" "" | Execute "" | Sync | CopyData "1" | CopyDone | Sync`),
		encodeServer(f, `ParseComplete | BindComplete | CopyInResponse | Error ERROR 22P02 "bad" | ReadyForQuery I`), uint8(7))
	f.Fuzz(func(t *testing.T, client, server []byte, piece uint8) {
		h := &auditHost{quietHost: quietHost{sv: NewServer(bareParams())}, t: t}
		s := New(Config{State: State{ID: 1, AppName: "fuzz", CancelKey: []byte("abcd")}, Host: h})
		s.Start(bareParams())
		step := int(piece)%64 + 1
		var c, sv []byte
		for (len(client) > 0 || len(server) > 0) && h.ended == "" {
			n := min(step, len(client))
			c, client = append(c, client[:n]...), client[n:]
			k := s.FromClient(c)
			if k < 0 || k > len(c) {
				t.Fatalf("took %d of %d bytes", k, len(c))
			}
			c = c[k:]
			if h.ended != "" || s.Server() == nil {
				if len(client) == 0 {
					return
				}
				continue
			}
			n = min(step, len(server))
			sv, server = append(sv, server[:n]...), server[n:]
			k = s.FromServer(sv)
			if k < 0 || k > len(sv) {
				t.Fatalf("took %d of %d bytes", k, len(sv))
			}
			sv = sv[k:]
		}
		if h.ended == "" {
			s.ClientEnded(protocol.UnencryptedData(0))
		}
		if s.Server() != nil || s.Phase() != PhaseEnded {
			t.Fatal("the session has ended and holds a server connection")
		}
	})
}

// auditHost checks what a session does with its host.
type auditHost struct {
	quietHost
	t *testing.T
}

func (h *auditHost) Release(sv *Server, how Disposal) {
	h.quietHost.Release(sv, how)
	if how == Reuse && !sv.Reusable() {
		h.t.Fatal("given on and not reusable")
	}
	if how == Reuse {
		return
	}
	if how == Settle {
		for range 5 {
			if _, outcome := sv.Settle(nil); outcome == SettleDone && !sv.Reusable() {
				h.t.Fatal("settled and not reusable")
			}
		}
	}
	h.sv = NewServer(bareParams())
}

func (h *auditHost) End(reason EndReason, detail string) {
	if h.ended != "" {
		h.t.Fatal("ended twice")
	}
	h.quietHost.End(reason, detail)
}
