package session

import (
	"encoding/binary"
	"errors"

	"github.com/multipooler/multipooler/protocol"
)

// ErrProtocol is what the server gets closed for when it breaks the protocol.
var ErrProtocol = errors.New("the server broke the protocol")

const (
	// inspectServer is how much of a message multipooler waits for to look into it.
	inspectServer = 16 << 10
	// orphanLimit is how much output a statement may still send after its
	// client has gone: about what a socket would have taken before PostgreSQL
	// saw the reset.
	orphanLimit = 256 << 10
)

// unnamedTag names an unnamed statement: the session's id, and how many it had
// had before. The zero value is none.
type unnamedTag struct {
	session uint64
	number  uint64
}

// unnamedInDoubt is nobody's: the server may hold an unnamed statement.
var unnamedInDoubt = unnamedTag{session: ^uint64(0)}

// Server is the protocol state of one server connection. It is created after
// login and belongs to whoever owns the connection: a session, or nobody while
// it is idle or being settled.
type Server struct {
	sess *Session // whom the replies are for; nil while idle or settling

	led         ledger
	left        int               // body bytes of the current message still to come
	dropping    bool              // the current message is not for the client
	status      protocol.TxStatus // of the last ReadyForQuery
	batch       bool              // extended messages were sent since the last Sync
	skipping    bool              // after an error in a batch: the server ignores all up to the next Sync
	copyIn      bool              // the server reads CopyData
	syncsInCopy int               // Syncs sent in this COPY IN, which the server ignores

	params   *Params
	settings *Settings  // what the connection is aligned to
	appName  string     // what application_name was last set to; "" is the server's own
	unnamed  unnamedTag // which unnamed statement the server holds
	lastUser uint64     // id of the session that had the connection before
	sawError bool       // an error came since the last ReadyForQuery
	dirty    bool       // needs DISCARD ALL before another session
	doubt    string     // not empty: never reused, and why

	alignErr      *protocol.Error // the error of the current alignment
	lastError     *protocol.Error // the last FATAL, for the log
	fatalWithheld bool            // lastError was not forwarded
	torn          bool            // a message to the server was cut short: nothing more can be written
	orphanBytes   int

	// extra counts Syncs that the server may have read in COPY mode, where it
	// ignores them, or after the COPY had failed, where it answers them. What
	// comes tells which: extraPast, a reply to something sent later proves that
	// no more answers come.
	extra     int
	extraPast bool // a ReadyForQuery has come since
	replied   bool // a reply has come since the last ReadyForQuery
	settling  settling
}

// NewServer describes a server connection that has logged in bare and is ready
// for its first query.
func NewServer(params *Params) *Server {
	return &Server{status: protocol.TxIdle, params: params}
}

// Params returns what the server reports now.
func (sv *Server) Params() *Params { return sv.params }

// Settings returns what the connection is aligned to.
func (sv *Server) Settings() *Settings { return sv.settings }

// Doubt says why the connection must not be reused; "" if nothing is known
// against it.
func (sv *Server) Doubt() string { return sv.doubt }

// Status is the transaction status of the last ReadyForQuery.
func (sv *Server) Status() protocol.TxStatus { return sv.status }

// FatalError is the FATAL or PANIC that the server has sent, if any.
func (sv *Server) FatalError() *protocol.Error { return sv.lastError }

// Torn tells whether a message to the server was cut short, so that nothing
// more can be written, not even Terminate.
func (sv *Server) Torn() bool { return sv.torn }

// Busy tells whether replies are outstanding.
func (sv *Server) Busy() bool { return !sv.led.empty() }

// Abandoned tells whether the server waits for, or works on, something that its
// lost client can no longer finish: a batch without Sync, a COPY IN, or output
// that nobody reads.
func (sv *Server) Abandoned() bool {
	return sv.copyIn || sv.batch && !sv.led.empty() || sv.Flooding()
}

// Flooding tells whether more output has come for a lost client than a socket
// would have taken.
func (sv *Server) Flooding() bool { return sv.sess == nil && sv.orphanBytes > orphanLimit }

// Distrust makes sure that the connection is never reused.
func (sv *Server) Distrust(why string) { sv.distrust(why) }

// Shatter notes that nothing about the connection is known any more: it is not
// reused and nothing more is written to it.
func (sv *Server) Shatter(why string) {
	sv.distrust(why)
	sv.sess, sv.torn = nil, true
}

// Quiet is the boundary between conversations: nothing is owed, nothing is
// half sent or half received, no batch or COPY is open.
func (sv *Server) Quiet() bool {
	return sv.led.empty() && sv.left == 0 && !sv.batch && !sv.skipping && !sv.copyIn && sv.extra == 0
}

// Reusable is the one predicate for giving the connection to another session
// (design: the reuse rule): a quiet connection outside a transaction, without
// state of its last session, and no doubt.
func (sv *Server) Reusable() bool {
	return sv.Quiet() && sv.status == protocol.TxIdle && !sv.dirty && sv.doubt == ""
}

func (sv *Server) distrust(why string) {
	if sv.doubt == "" {
		sv.doubt = why
	}
}

// swallowing tells whether the message that comes now is not for the client.
func (sv *Server) swallowing() bool {
	return sv.sess == nil || sv.led.n > 0 && sv.led.ring[sv.led.head].how != forward
}

// Feed takes bytes that the server sent. What is the client's goes to the
// session's host in as few pieces as possible, aliasing p. It returns how many
// bytes it took; the rest is the beginning of a message and must come again. An
// error means that the stream cannot be trusted any more.
func (sv *Server) Feed(p []byte) (int, error) {
	i, start := 0, 0
	flush := func(to int) {
		if to > start && sv.sess != nil {
			sv.sess.host.ToClient(p[start:to])
		}
	}
	for i < len(p) {
		if sv.left > 0 {
			k := min(sv.left, len(p)-i)
			sv.left -= k
			if sv.dropping {
				flush(i)
				sv.orphanBytes += k
				start = i + k
			}
			i += k
			continue
		}
		if len(p)-i < protocol.HeaderLen {
			break
		}
		typ, size, _, err := protocol.BackendHeader(p[i:])
		if err != nil {
			flush(i)
			return i, err
		}
		total := protocol.HeaderLen + size
		have := len(p)-i >= total
		drop := sv.swallowing()
		if sv.led.n == 0 && (typ == protocol.MsgDataRow || typ == protocol.MsgCopyData) {
			flush(i)
			return i, ErrProtocol
		}
		if typ != protocol.MsgDataRow && typ != protocol.MsgCopyData {
			if !have && inspected(typ) && total <= inspectServer {
				break
			}
			var body []byte
			if have {
				body = p[i+protocol.HeaderLen : i+total : i+total]
			}
			if drop, err = sv.message(typ, body, drop); err != nil {
				flush(i)
				return i, err
			}
		}
		k := min(total, len(p)-i)
		if drop {
			flush(i)
			sv.orphanBytes += k
			start = i + k
		}
		sv.left, sv.dropping = total-k, drop
		i += k
		if have && !drop && (typ == protocol.MsgDataRow || typ == protocol.MsgCopyData) {
			i += rows(p[i:], byte(typ))
		}
	}
	flush(i)
	return i, nil
}

// rows is the length of the whole messages of the given type that p begins
// with. Results are mostly these: nothing changes between them.
func rows(p []byte, typ byte) int {
	i := 0
	for len(p)-i >= protocol.HeaderLen && p[i] == typ {
		size := int(binary.BigEndian.Uint32(p[i+1 : i+protocol.HeaderLen]))
		if size < protocol.HeaderLen-1 || size > len(p)-i-1 {
			break // cut short or broken: the caller looks closer
		}
		i += 1 + size
	}
	return i
}

// inspected tells which messages multipooler must see whole.
func inspected(typ protocol.Type) bool {
	switch typ {
	case protocol.MsgReadyForQuery, protocol.MsgParameterStatus, protocol.MsgErrorResponse, protocol.MsgCommandComplete:
		return true
	}
	return false
}

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

// alignTo returns the statement that takes the connection to the given
// settings; the answer must be awaited.
func (sv *Server) alignTo(to *Settings) string {
	if sv.settings != nil {
		sv.appName = "" // RESET ALL
	}
	return alignText(sv.settings, to)
}
