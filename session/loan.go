package session

import (
	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/protocol"
)

// need makes sure that a server connection is attached and aligned. false: the
// message must wait, or has been refused and s.refusal says why.
func (s *Session) need(class connpool.Class) bool {
	if s.srv != nil {
		return s.realigned()
	}
	if s.refusal != nil {
		return false
	}
	srv, err := s.host.Borrow(class)
	if err != nil {
		s.refusal = refused(err)
		return false
	}
	if srv == nil {
		s.waiting = true
		return false
	}
	return s.attach(srv)
}

// attach takes a server connection and aligns it. false: a round trip is under
// way.
func (s *Session) attach(srv *Server) bool {
	s.srv = srv
	s.used = untouched
	srv.sess = s
	if srv.settings != s.settings {
		s.roundTrip(srv.alignTo(s.settings))
		return false
	}
	s.lazyAppName()
	s.inform()
	return true
}

// Granted delivers the server connection that the session waited for.
func (s *Session) Granted(srv *Server) {
	s.waiting = false
	if s.attach(srv) {
		s.aligned()
	}
	s.afterClient()
}

// aligned: the server connection is ready for the client's own messages.
func (s *Session) aligned() {
	if s.state.Phase == PhaseLogin {
		params := s.srv.params
		s.host.Learned(params)
		s.welcome(params)
		return
	}
	s.expecting = true
	s.host.Redeliver()
}

// Refused delivers the failure of the borrow that the session waited for: the
// queue, a limit, the dial, the acquire timeout or a cancel.
func (s *Session) Refused(err error) {
	s.waiting = false
	s.refusal = refused(err)
	if s.state.Phase == PhaseLogin {
		s.afterClient()
		return
	}
	s.host.Redeliver()
}

// release gives the server connection back.
func (s *Session) release(how Disposal) {
	srv := s.srv
	s.srv = nil
	srv.sess = nil
	srv.lastUser = s.state.ID
	s.expecting = false
	srv.dropping = true // of a message that is under way
	srv.orphanBytes = 0
	s.aligning, s.realigning, s.realignDue, s.custom, s.stalled, s.setting = false, false, false, false, false, false
	s.retries = 0
	s.pendingParses, s.overwritten = 0, false
	s.pins &= PinMode
	s.host.Release(srv, how)
}

// letGo says how the server connection is disposed of when the client goes.
func (s *Session) letGo() {
	if s.srv == nil {
		return
	}
	how := Settle
	if s.left > 0 && s.streaming != streamDrop {
		s.srv.torn = true
		how = Close
	}
	if s.pins&unresettable != 0 || s.custom {
		how = Close
	}
	s.release(how)
}

// afterClient and afterServer run at the end of every event: they are where a
// server connection is released, never in the middle of an event.
func (s *Session) afterClient() {
	if s.state.Phase == PhaseLogin && s.refusal != nil {
		e := *s.refusal
		s.refusal = nil
		s.fail(EndLoginRefused, &e)
		return
	}
	s.maybeRelease()
}

func (s *Session) maybeRelease() {
	srv := s.srv
	if srv == nil || s.aligning || s.expecting || s.pins != 0 || s.left > 0 || !srv.Quiet() || srv.status != protocol.TxIdle {
		return
	}
	if srv.Reusable() {
		s.release(Reuse)
		return
	}
	s.release(Settle) // dirty without a pin: a failed RESET ALL for instance
}
