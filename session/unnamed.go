package session

import (
	"bytes"

	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/protocol"
)

// The unnamed statement belongs to a session, but lives in a server connection
// that other sessions use in between. Server.unnamed says whose statement the
// server holds; the session keeps the text of its Parse, and a Bind or Describe
// of "" on a connection that holds another one is preceded by that Parse.
// Without this, somebody else's SQL would run.
//
// Messages are sent before the replies to earlier ones are known, and the server
// ignores what follows an error. Therefore the first extended message of a loan
// settles the matter: nothing in front of it can fail, so a Parse of "", a Close
// of "" or the session's own Parse in front of it is certain to be read, and
// from then on the server holds the session's own statement or none, whatever is
// ignored later. Server.unnamed is zero only where none is certain.
//
// The session's statements are numbered, since a server connection that it has
// had before may still hold one that the session has replaced or ended
// elsewhere since.

// parse handles a Parse.
func (s *Session) parse(p []byte, total int) int {
	whole := len(p) == total
	name, rest, named := protocol.CString(p[protocol.HeaderLen:])
	unnamed := named && len(name) == 0
	sql, _, complete := protocol.CString(rest)
	if !complete {
		sql = rest
	}
	var sc protocol.Scanner
	off := s.state.StringsOff
	verdict := s.read(&sc, sql, complete || whole)
	if s.forbids(verdict) && (s.srv == nil || s.srv.led.empty()) {
		return s.refuseTransaction(p)
	}
	if !s.need(classOf(verdict)) {
		if s.refusal != nil {
			return s.refuse(protocol.MsgParse, p, total)
		}
		s.judged = complete || whole
		s.verdict = verdict
		return 0
	}
	if off != s.state.StringsOff { // this server connection reads it the other way
		verdict = s.read(&sc, sql, complete || whole)
	}
	s.foreignSequences(verdict, true)
	s.use(verdict)
	if verdict.Effects.Has(resetting) && (s.settings != nil || s.state.AppName != "") {
		s.pin(PinSet)
		s.realignDue = s.settings != nil
	}
	if unnamed {
		s.keepUnnamed(p, total)
	} else {
		s.claimUnnamed(false)
		s.pin(PinPrepared)
	}
	s.srv.batch = true
	s.push(entry{kind: replyParse, unnamed: unnamed})
	s.host.ToServer(p)
	if complete || whole {
		s.rest(streamForward, total-len(p))
		s.apply(verdict, sql)
		return len(p)
	}
	s.stream(sc, streamParse, total-len(p))
	return len(p)
}

// unnamedTag names the session's present unnamed statement.
func (s *Session) unnamedTag() unnamedTag {
	return unnamedTag{session: s.state.ID, number: s.state.UnnamedNumber}
}

// keepUnnamed keeps the Parse of an unnamed statement that is about to be sent.
func (s *Session) keepUnnamed(p []byte, total int) {
	s.pendingParses++
	s.overwritten = s.overwritten || s.unnamedHeld
	s.over = false
	s.unnamedHeld = false
	s.state.UnnamedNumber++
	s.srv.unnamed = s.unnamedTag()
	s.state.Unnamed = s.state.Unnamed[:0]
	if total > maxUnnamed {
		s.pin(PinUnnamed)
		return
	}
	s.state.Unnamed = append(s.state.Unnamed, p...)
}

// unnamedParsed: the server has taken an unnamed statement.
func (s *Session) unnamedParsed(how handling) {
	if how == inject {
		return
	}
	s.pendingParses--
	s.overwritten = !s.over && (s.pendingParses > 0 || len(s.state.Unnamed) == 0)
	if s.pendingParses == 0 {
		s.srv.unnamed = s.unnamedTag()
	}
	if !s.overwritten && !s.over {
		s.unnamedHeld = true
		s.pins &^= PinUnnamed
	}
}

// unnamedFailed: the server has refused an unnamed statement; like PostgreSQL,
// the session has none now. An injected one that is refused changes nothing for
// the session. The text that is kept is that of the last Parse: while another
// one is pending, it is not this one's.
func (s *Session) unnamedFailed(how handling) {
	if how == inject {
		return
	}
	s.pendingParses--
	s.overwritten = false
	if s.pendingParses == 0 {
		s.forgetUnnamed()
	}
}

// unnamedSkipped: the server has ignored an unnamed Parse because of an earlier
// error. It may still hold an earlier statement, of which the text is gone:
// only this server connection has it.
func (s *Session) unnamedSkipped(how handling) {
	if how == inject {
		return
	}
	s.pendingParses--
	if s.pendingParses > 0 {
		return // the text is that of a Parse behind the next Sync
	}
	s.dropText()
	if s.overwritten && !s.over {
		s.pin(PinUnnamed)
	}
}

// forgetUnnamed: a simple Query or a Close ends the unnamed statement.
func (s *Session) forgetUnnamed() {
	s.dropText()
	s.state.UnnamedNumber++
	s.overwritten = false
	s.pins &^= PinUnnamed
}

func (s *Session) dropText() {
	s.unnamedHeld = false
	if cap(s.state.Unnamed) > 512 {
		s.state.Unnamed = nil
	}
	s.state.Unnamed = s.state.Unnamed[:0]
}

// extended handles Bind, Describe, Execute and Close.
func (s *Session) extended(typ protocol.Type, p []byte, total int) int {
	if !s.need(connpool.Regular) {
		if s.refusal != nil {
			return s.refuse(typ, p, total)
		}
		return 0
	}
	body := p[protocol.HeaderLen:]
	e := entry{kind: replyExecute}
	uses, closes := false, false
	switch typ {
	case protocol.MsgBind:
		e.kind = replyBind
		s.rerun()
		// A statement name that cannot be read is the server's to complain
		// about; it is treated as empty since it might be.
		if m, err := protocol.ReadBind(body); err != nil || len(m.Statement) == 0 {
			uses = true
		}
	case protocol.MsgDescribe:
		e.kind = replyDescribe
		if m, err := protocol.ReadDescribe(body); err == nil && m.Kind == protocol.KindStatement && len(m.Name) == 0 {
			uses = true
		}
	case protocol.MsgClose:
		e.kind = replyClose
		if m, err := protocol.ReadClose(body); err == nil && m.Kind == protocol.KindStatement && len(m.Name) == 0 {
			closes = true
		}
	}
	s.claimUnnamed(uses)
	if closes {
		s.forgetUnnamed()
		s.srv.unnamed = unnamedTag{}
	}
	s.srv.batch = true
	s.push(e)
	s.host.ToServer(p)
	s.rest(streamForward, total-len(p))
	return len(p)
}

// claimUnnamed makes the unnamed statement of the server connection this
// session's own, or none, before the first extended message of a loan; later
// in a loan it only brings back what an error has put in doubt.
func (s *Session) claimUnnamed(uses bool) {
	srv := s.srv
	switch {
	case s.pendingParses > 0, srv.unnamed == s.unnamedTag():
	case uses && s.unnamedHeld:
		srv.unnamed = s.unnamedTag()
		srv.led.push(entry{kind: replyParse, how: inject, unnamed: true})
		s.host.ToServer(bytes.Clone(s.state.Unnamed)) // the kept text may change before it is written
	case srv.unnamed == unnamedTag{}, s.overwritten:
		// The server has none, or one that only it knows.
	default:
		srv.unnamed = unnamedTag{}
		srv.led.push(entry{kind: replyClose, how: inject})
		s.host.ToServer(protocol.AppendClose(nil, protocol.KindStatement, ""))
	}
}
