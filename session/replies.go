package session

import (
	"github.com/multipooler/multipooler/protocol"
)

// completed looks at a command tag: a RESET, a SET … TO DEFAULT, also in a
// statement that was prepared long ago, may have taken startup settings.
func (sv *Server) completed(body []byte) {
	if sv.sess == nil || sv.sess.settings == nil || sv.led.n == 0 || sv.led.at(0).how != forward {
		return
	}
	switch tag, _, _ := protocol.CString(body); string(tag) {
	case "RESET", "SET", "DISCARD ALL":
		sv.sess.realignDue = true
	}
}

// message advances the ledger over one message (not DataRow, not CopyData) and
// says whether it is withheld from the client. body is nil when the message is
// not yet complete.
func (sv *Server) message(typ protocol.Type, body []byte, drop bool) (bool, error) {
	switch typ {
	case protocol.MsgReadyForQuery, protocol.MsgNotificationResponse, protocol.MsgNoticeResponse, protocol.MsgParameterStatus:
	default:
		sv.replied = true
		if sv.extraPast {
			sv.certain()
		}
	}
	switch typ {
	case protocol.MsgReadyForQuery:
		status, err := protocol.ReadReadyForQuery(body)
		if err != nil {
			return drop, err
		}
		return drop, sv.ready(status)
	case protocol.MsgCommandComplete, protocol.MsgEmptyQueryResponse, protocol.MsgPortalSuspended:
		if typ == protocol.MsgCommandComplete {
			sv.copyIn, sv.syncsInCopy = false, 0
			sv.completed(body)
		}
		sv.settle(replyExecute)
	case protocol.MsgParseComplete:
		if e, ok := sv.settle(replyParse); ok && e.unnamed && sv.sess != nil {
			sv.sess.unnamedParsed(e.how)
		}
	case protocol.MsgBindComplete:
		sv.settle(replyBind)
	case protocol.MsgCloseComplete:
		sv.settle(replyClose)
	case protocol.MsgRowDescription, protocol.MsgNoData:
		sv.settle(replyDescribe)
	case protocol.MsgErrorResponse:
		return sv.failed(body, drop), nil
	case protocol.MsgParameterStatus:
		return sv.reported(body, drop), nil
	case protocol.MsgCopyInResponse:
		sv.copyStarts()
	case protocol.MsgNotificationResponse, protocol.MsgNoticeResponse:
		// Not a reply: it belongs to whoever is attached. While multipooler's
		// own round trip is under way, a notice is multipooler's.
		return sv.sess == nil || typ == protocol.MsgNoticeResponse && drop, nil
	case protocol.MsgParameterDescription, protocol.MsgCopyOutResponse, protocol.MsgCopyDone, protocol.MsgFunctionCallResponse:
	case protocol.MsgCopyBothResponse:
		sv.distrust("streaming replication")
	default:
		return drop, ErrProtocol
	}
	return drop, nil
}

// settle pops the head if it waits for this reply. A Query's replies settle
// nothing before its ReadyForQuery.
func (sv *Server) settle(kind replyKind) (entry, bool) {
	if sv.led.n == 0 || sv.led.at(0).kind != kind {
		if sv.led.n == 0 || sv.led.at(0).kind != replyQuery {
			sv.distrust("a reply that nobody has asked for")
		}
		return entry{}, false
	}
	e := sv.led.pop()
	sv.dropMarkers()
	return e, true
}

// dropMarkers removes CopyDone marks that no COPY IN has used: the server
// ignores a CopyDone or CopyFail outside a COPY. It runs whenever an entry has
// left, so that a mark never comes to the head.
func (sv *Server) dropMarkers() {
	for sv.led.n > 0 && sv.led.at(0).kind == copyEnd {
		sv.led.pop()
	}
}

func (sv *Server) ready(status protocol.TxStatus) error {
	if sv.extra > 0 {
		sv.extraPast = true
		if sv.led.n == 0 || !sv.led.at(0).kind.endsWithReady() || sv.led.at(0).kind != replySync && !sv.replied {
			sv.extra--
			sv.status, sv.skipping, sv.batch = status, false, sv.batch && sv.led.n > 0
			if sv.extra == 0 {
				sv.certain()
			}
			return nil
		}
	}
	sv.replied = false
	if sv.led.n == 0 || !sv.led.at(0).kind.endsWithReady() {
		return ErrProtocol
	}
	e := sv.led.pop()
	sv.dropMarkers()
	sv.led.trim()
	if e.kind == replyQuery && sv.sawError {
		// The server may have found it bad before it dropped the statement.
		sv.unnamed = unnamedInDoubt
	}
	failed := sv.sawError
	sv.copyIn, sv.syncsInCopy, sv.sawError = false, 0, false
	sv.status = status
	if e.resets != resetNothing {
		sv.wasReset(e.resets, failed)
	}
	if sv.sess != nil && e.how == forward {
		sv.sess.answered(status)
	}
	return nil
}

// wasReset notes what a RESET ALL or DISCARD ALL of the client's has left of the
// alignment.
func (sv *Server) wasReset(what reset, failed bool) {
	if failed || what == resetPart || sv.status != protocol.TxIdle {
		// Some of its statements may have been done, or will be taken back by a
		// ROLLBACK: what is set is not known.
		sv.dirty = true
		if sv.sess != nil {
			sv.sess.realignDue = sv.sess.settings != nil
		}
		return
	}
	sv.settings, sv.appName = nil, ""
	if sv.sess != nil {
		sv.sess.resetBy(what)
	}
}

// failed handles an ErrorResponse and says whether it is withheld.
func (sv *Server) failed(body []byte, drop bool) bool {
	sv.sawError = true
	withheld := sv.skipAfter(body, drop)
	sv.fatalWithheld = withheld && sv.lastError != nil
	return withheld
}

// skipAfter takes off the ledger what an error leaves unanswered.
func (sv *Server) skipAfter(body []byte, drop bool) bool {
	var e *protocol.Error
	if body != nil {
		e = protocol.Fields(body).ToError()
		if e.Fatal() {
			sv.lastError = e
			sv.distrust("server said " + e.Severity + " " + e.Code)
		}
	}
	if sv.led.n == 0 {
		// Not for a client that has no stake in this connection any more.
		sv.distrust("unsolicited error")
		return sv.sess == nil || sv.sess.pins == 0 && sv.status == protocol.TxIdle && !sv.batch
	}
	head := sv.led.at(0)
	sv.copyIn = false
	switch head.how {
	case align:
		sv.alignErr = e
		if e == nil {
			sv.alignErr = &protocol.Error{Severity: "ERROR", Code: "XX000", Message: "the server refused the session's settings"}
		}
	case swallow:
		sv.distrust("multipooler's own statement failed")
	case inject:
		drop = sv.sess == nil
	}
	if sv.syncsInCopy > 0 {
		sv.extra, sv.extraPast, sv.syncsInCopy = sv.extra+sv.syncsInCopy, false, 0
		if sv.sess != nil {
			sv.sess.pin(PinDoubt)
		}
	}
	if head.kind.endsWithReady() {
		return drop
	}
	sv.skipToSync()
	return drop
}

// certain: no answer to a Sync in a failed COPY can come any more.
func (sv *Server) certain() {
	sv.extra, sv.extraPast = 0, false
	if sv.sess != nil {
		sv.sess.pins &^= PinDoubt
	}
}

// skipToSync drops what the server will not answer: everything up to the next
// Sync, which may not have been sent yet.
func (sv *Server) skipToSync() {
	// A Parse, a Close or a Query that changed the unnamed statement may be
	// among what is ignored now.
	sv.unnamed = unnamedInDoubt
	for first := true; sv.led.n > 0; first = false {
		e := sv.led.at(0)
		if e.kind == replySync {
			return
		}
		sv.led.pop()
		switch {
		case !e.unnamed || sv.sess == nil:
		case first:
			sv.sess.unnamedFailed(e.how)
		default:
			sv.sess.unnamedSkipped(e.how)
		}
	}
	sv.skipping = true
}

// reported tracks a ParameterStatus.
func (sv *Server) reported(body []byte, drop bool) bool {
	name, value, err := protocol.ReadParameterStatus(body)
	if err != nil {
		sv.distrust("ParameterStatus that cannot be read")
		return drop
	}
	if drop && string(name) == "application_name" {
		return true // cosmetic, and every session sets its own
	}
	sv.params = sv.params.With(string(name), string(value))
	if drop || sv.sess == nil {
		return drop // what the client must know of it, Session.inform tells
	}
	sv.sess.told = sv.params
	sv.sess.learn(string(name), string(value))
	return false
}

// copyStarts handles CopyInResponse. In COPY mode PostgreSQL ignores Sync and
// Flush until CopyDone or CopyFail: Syncs that were sent behind the statement
// will not be answered (manual, 55.2.6).
func (sv *Server) copyStarts() {
	sv.copyIn = true
	extended := sv.led.n > 0 && sv.led.at(0).kind == replyExecute
	for i := 1; i < sv.led.n; i++ {
		switch sv.led.at(i).kind {
		case replySync:
			sv.syncsInCopy++
		case copyEnd:
			sv.led.removeRange(1, i+1)
			sv.copyIn = false
			if extended && sv.syncsInCopy > 0 && sv.led.n == 1 {
				sv.batch = true // the Sync that was to end it is not one
			}
			return
		default:
			// The server will take this message for a protocol violation
			// and end the connection.
			sv.distrust("message sent into a COPY")
			return
		}
	}
	if sv.led.n > 1 {
		sv.led.removeRange(1, sv.led.n)
		sv.batch = sv.batch || extended
	}
}
