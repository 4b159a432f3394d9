package session

import (
	"errors"

	"github.com/multipooler/multipooler/protocol"
)

// ServerEnded tells that the server connection of the session is gone.
func (s *Session) ServerEnded(err error) { s.serverLost(err) }

func (s *Session) serverLost(err error) {
	srv := s.srv
	if s.aligning && !s.realigning && srv.led.len() == 1 && s.retries < maxRetries {
		// Nothing of the client's has been sent: another connection will do.
		retries := s.retries
		s.release(Close)
		s.retries = retries + 1
		if s.state.Phase == PhaseLogin {
			s.borrowForLogin()
			return
		}
		s.host.Redeliver()
		return
	}
	if !s.aligning && s.pins == 0 && s.left == 0 && srv.Quiet() && srv.status == protocol.TxIdle {
		// It is about to be given back, or was granted for a message that has
		// not come yet.
		s.release(Close)
		s.host.Redeliver()
		return
	}
	cutMessage := srv.left > 0 && !srv.dropping
	fatal := srv.lastError
	told := fatal != nil && !srv.fatalWithheld
	s.release(Close)
	switch {
	case told:
		s.end(EndServerFatal, fatal.Code+" "+fatal.Message)
	case cutMessage:
		// The client's stream ends inside a message: nothing can be added.
		s.end(EndServerGone, err.Error())
	case fatal != nil:
		s.fail(EndServerFatal, fatal)
	default:
		s.fail(EndServerGone, &protocol.Error{
			Severity: protocol.SeverityFatal, Code: "08006",
			Message: "server connection ended unexpectedly",
			Detail:  "The server closed the connection or it broke; what was running may or may not have been done.",
		})
	}
}

// Kill ends the session for a reason of multipooler's own: timeouts, drain, an
// administrator. The error reaches the client unless it would cut a reply.
func (s *Session) Kill(reason EndReason, e *protocol.Error) {
	if s.state.Phase == PhaseEnded {
		return
	}
	cut := s.srv != nil && (s.srv.left > 0 && !s.srv.dropping)
	s.abandon()
	if cut {
		s.end(reason, e.Message)
		return
	}
	s.fail(reason, e)
}

// ClientEnded tells that the client's connection is gone.
func (s *Session) ClientEnded(err error) {
	if s.state.Phase == PhaseEnded {
		return
	}
	s.abandon()
	s.end(EndClientGone, err.Error())
}

// abandon gives up the borrow and the server connection.
func (s *Session) abandon() {
	if s.waiting {
		s.waiting = false
		s.host.CancelBorrow()
	}
	s.letGo()
}

// fail sends a FATAL and ends the session.
func (s *Session) fail(reason EndReason, e *protocol.Error) {
	f := *e
	f.Severity = protocol.SeverityFatal
	s.host.ToClient(protocol.AppendErrorResponse(nil, &f))
	s.end(reason, f.Code+" "+f.Message)
}

func (s *Session) end(reason EndReason, detail string) {
	s.state.Phase = PhaseEnded
	s.host.End(reason, detail)
}

// refused turns any error into what the client is told.
func refused(err error) *protocol.Error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		c := *e
		c.Severity = protocol.SeverityError
		return &c
	}
	e := &protocol.Error{Severity: protocol.SeverityError, Code: "08006", Message: err.Error()}
	if c, ok := err.(interface{ SQLState() string }); ok {
		e.Code = c.SQLState()
	}
	if h, ok := err.(interface{ Hint() string }); ok {
		e.Hint = h.Hint()
	}
	if d, ok := err.(interface{ Detail() string }); ok {
		e.Detail = d.Detail()
	}
	return e
}
