package session

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/protocol"
)

var nul = []byte{0}

// FromClient takes bytes of the client. It returns how many it took; the rest
// must come again in front of the next bytes: the beginning of a message that
// multipooler looks into, or what waits for a server connection.
func (s *Session) FromClient(p []byte) int {
	i := 0
	s.expecting = false
	for i < len(p) && s.state.Phase == PhaseReady {
		if s.left > 0 {
			i += s.streamed(p[i:])
			continue
		}
		if s.waiting || s.aligning || s.stalled {
			break
		}
		typ, size, ok, err := protocol.FrontendHeader(p[i:])
		if err != nil {
			s.violation(err)
			return len(p)
		}
		if !ok {
			break
		}
		n := s.take(typ, p[i:], protocol.HeaderLen+size)
		if n == 0 {
			break
		}
		i += n
	}
	if s.state.Phase == PhaseEnded {
		return len(p)
	}
	s.maybeRelease()
	return i
}

// violation ends the session for a message that no client may send.
func (s *Session) violation(err error) {
	var e *protocol.Error
	if !errors.As(err, &e) {
		e = &protocol.Error{Code: protocol.CodeProtocolViolation, Message: err.Error()}
	}
	if e.Quiet {
		s.abandon()
		s.end(EndProtocol, e.Message)
		return
	}
	s.Kill(EndProtocol, e)
}

// take handles the message that p begins with; total is its whole length. It
// returns how many bytes it took: all that p has of the message, or 0 when the
// message must wait.
func (s *Session) take(typ protocol.Type, p []byte, total int) int {
	if len(p) > total {
		p = p[:total:total]
	}
	whole := len(p) == total
	if !whole && len(p) < inspectClient && typ != protocol.MsgCopyData {
		return 0
	}
	if s.state.Skipping {
		return s.skip(typ, p, total)
	}
	if s.srv != nil && s.srv.skipping && typ != protocol.MsgSync && typ != protocol.MsgTerminate {
		// The server ignores it, and owes nothing for it.
		s.host.ToServer(p)
		s.rest(streamForward, total-len(p))
		return len(p)
	}
	switch typ {
	case protocol.MsgQuery:
		return s.query(p, total)
	case protocol.MsgParse:
		return s.parse(p, total)
	case protocol.MsgBind, protocol.MsgDescribe, protocol.MsgExecute, protocol.MsgClose:
		return s.extended(typ, p, total)
	case protocol.MsgSync:
		return s.sync(p)
	case protocol.MsgFlush:
		// Without a server connection there is nothing to flush. With one
		// there may be, also when nothing is owed any more: the end of the
		// last reply, whose beginning filled the server's buffer.
		if s.srv != nil {
			s.host.ToServer(p)
		}
		return len(p)
	case protocol.MsgCopyData, protocol.MsgCopyDone, protocol.MsgCopyFail:
		return s.copy(typ, p, total)
	case protocol.MsgFunctionCall:
		return s.function(p, total)
	case protocol.MsgTerminate:
		s.abandon()
		s.end(EndClientTerminate, "")
		return len(p)
	}
	s.violation(&protocol.Error{
		Code: protocol.CodeProtocolViolation, Message: fmt.Sprintf("invalid frontend message type %d", typ),
	})
	return len(p)
}

// skip ignores messages after an error of multipooler's own, up to the Sync.
func (s *Session) skip(typ protocol.Type, p []byte, total int) int {
	switch typ {
	case protocol.MsgSync:
		s.state.Skipping = false
		s.host.ToClient(protocol.AppendReadyForQuery(nil, protocol.TxIdle))
	case protocol.MsgTerminate:
		s.abandon()
		s.end(EndClientTerminate, "")
	default:
		s.rest(streamDrop, total-len(p))
	}
	return len(p)
}

// rest says what to do with the bytes of the message that have not come yet.
func (s *Session) rest(kind streamKind, left int) {
	s.streaming, s.left = kind, left
}

// refuse answers a message that cannot have a server connection.
func (s *Session) refuse(typ protocol.Type, p []byte, total int) int {
	buf := protocol.AppendErrorResponse(nil, s.refusal)
	s.refusal = nil
	if typ == protocol.MsgQuery || typ == protocol.MsgFunctionCall {
		buf = protocol.AppendReadyForQuery(buf, protocol.TxIdle)
	} else {
		s.state.Skipping = true
	}
	s.host.ToClient(buf)
	s.rest(streamDrop, total-len(p))
	return len(p)
}

// push notes an expected reply.
func (s *Session) push(e entry) {
	s.srv.led.push(e)
	if s.srv.led.len() >= maxLedger {
		s.stalled = true
	}
}

// query handles a simple Query.
func (s *Session) query(p []byte, total int) int {
	whole := len(p) == total
	text := p[protocol.HeaderLen:]
	if whole {
		text = bytes.TrimSuffix(text, nul)
	}
	var sc protocol.Scanner
	off := s.state.StringsOff
	verdict := s.read(&sc, text, whole)
	if s.forbids(verdict) && (s.srv == nil || !s.srv.batch) {
		if s.srv != nil && !s.srv.led.empty() {
			s.stalled = true // the error comes behind the replies that are owed
			return 0
		}
		return s.refuseTransaction(p)
	}
	if !s.need(classOf(verdict)) {
		if s.refusal != nil {
			return s.refuse(protocol.MsgQuery, p, total)
		}
		s.judged = whole
		s.verdict = verdict
		return 0
	}
	if off != s.state.StringsOff { // this server connection reads it the other way
		verdict = s.read(&sc, text, whole)
	}
	s.forgetUnnamed()
	s.over = !s.srv.batch
	s.srv.unnamed = unnamedTag{}
	s.foreignSequences(verdict, false)
	s.use(verdict)
	e := queryEntry(verdict)
	if e.resets != resetNothing && s.settings != nil {
		s.realignDue = true // if it succeeds
	}
	s.push(e)
	s.host.ToServer(p)
	if !whole {
		s.stream(sc, streamQuery, total-len(p))
		return len(p)
	}
	s.apply(verdict, text)
	return len(p)
}

// function handles a FunctionCall.
func (s *Session) function(p []byte, total int) int {
	if !s.need(connpool.Regular) {
		if s.refusal != nil {
			return s.refuse(protocol.MsgFunctionCall, p, total)
		}
		return 0
	}
	s.used = touched
	if !harmlessFunction(p[protocol.HeaderLen:]) {
		s.pin(PinFunction)
	}
	s.push(entry{kind: replyFunction})
	s.host.ToServer(p)
	s.rest(streamForward, total-len(p))
	return len(p)
}

// sync handles a Sync. Without a server connection there is nothing to
// synchronise, and PostgreSQL answers at once.
func (s *Session) sync(p []byte) int {
	if s.srv == nil {
		s.host.ToClient(protocol.AppendReadyForQuery(nil, protocol.TxIdle))
		return len(p)
	}
	if s.srv.copyIn {
		s.srv.syncsInCopy++ // the server ignores it
	} else {
		s.srv.skipping, s.srv.batch = false, false
		s.push(entry{kind: replySync})
	}
	s.host.ToServer(p)
	return len(p)
}

// copy handles CopyData, CopyDone and CopyFail. Outside a COPY the server
// ignores them ("a frontend still sending after a COPY failure").
func (s *Session) copy(typ protocol.Type, p []byte, total int) int {
	srv := s.srv
	if srv == nil || !srv.copyIn && srv.led.empty() {
		s.rest(streamDrop, total-len(p))
		return len(p)
	}
	if typ != protocol.MsgCopyData {
		if srv.copyIn {
			srv.copyIn = false
		} else {
			s.push(entry{kind: copyEnd})
		}
	}
	s.host.ToServer(p)
	s.rest(streamForward, total-len(p))
	return len(p)
}

// streamed takes bytes of a message whose beginning has been taken.
func (s *Session) streamed(p []byte) int {
	n := min(s.left, len(p))
	p = p[:n:n]
	s.left -= n
	if s.streaming == streamDrop {
		return n
	}
	s.host.ToServer(p)
	switch s.streaming {
	case streamQuery:
		if s.left == 0 {
			p = bytes.TrimSuffix(p, nul)
		}
		s.scan.Feed(p)
		if s.left == 0 {
			s.scanned(nil)
		}
	case streamParse:
		sql, _, ended := protocol.CString(p)
		if !ended {
			sql = p
		}
		s.scan.Feed(sql)
		if ended || s.left == 0 {
			s.scanned(nil)
			s.streaming = streamForward
		}
	}
	return n
}

// stream remembers that a statement arrives in pieces.
func (s *Session) stream(sc protocol.Scanner, kind streamKind, left int) {
	s.scan = &sc
	s.rest(kind, left)
}

// scanned applies the verdict on a statement that arrived in pieces. Its text
// is not there any more: a setting that it sets may be one that cannot be unset.
func (s *Session) scanned(text []byte) {
	verdict := s.scan.Finish()
	s.scan = nil
	s.apply(verdict, text)
}
