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

// alignTo returns the statement that takes the connection to the given
// settings; the answer must be awaited.
func (sv *Server) alignTo(to *Settings) string {
	if sv.settings != nil {
		sv.appName = "" // RESET ALL
	}
	return alignText(sv.settings, to)
}
