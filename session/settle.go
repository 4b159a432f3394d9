package session

import "github.com/multipooler/multipooler/protocol"

// settling is how far a server connection without a session has come back to
// being reusable.
type settling uint8

const (
	settleIdle     settling = iota // not settling
	settleReplies                  // replies of the last session are still to come
	settleRollback                 // ROLLBACK is under way
	settleDiscard                  // DISCARD ALL is under way
)

// Settled is the outcome of a step of Settle.
type Settled uint8

// The outcomes.
const (
	SettlePending Settled = iota // wait for the server, then call Settle again
	SettleDone                   // Reusable
	SettleClose                  // cannot be settled: close it
)

// Settle brings a connection that has lost its session back to a reusable
// state, without changing what the client's statements have done: what was
// completely sent runs to its end as it would without a proxy, an open
// transaction is rolled back as the server does when a client goes away, and
// then the connection is reset. Call it when the session is gone and again
// after every Feed while it is pending; send appends what is to be written.
//
// A batch without its Sync, a COPY IN without its end and a half-sent message
// cannot be settled: finishing them would commit what the client never
// finished. Nor can state that DISCARD ALL does not undo.
func (sv *Server) Settle(dst []byte) (send []byte, outcome Settled) {
	sv.sess = nil
	if sv.doubt != "" || sv.batch || sv.skipping || sv.copyIn || sv.extra > 0 {
		return dst, SettleClose
	}
	if !sv.led.empty() || sv.left > 0 {
		if sv.settling == settleIdle {
			sv.settling, sv.orphanBytes = settleReplies, 0
		}
		if sv.orphanBytes > orphanLimit {
			return dst, SettleClose
		}
		return dst, SettlePending
	}
	if sv.settling == settleDiscard {
		sv.dirty = false
		sv.settings, sv.appName, sv.unnamed, sv.lastUser = nil, "", unnamedTag{}, 0
	}
	switch {
	case sv.status != protocol.TxIdle && sv.settling == settleRollback:
		return dst, SettleClose
	case sv.status != protocol.TxIdle:
		sv.settling = settleRollback
		return sv.ask(dst, "ROLLBACK"), SettlePending
	case sv.dirty:
		sv.settling = settleDiscard
		return sv.ask(dst, "DISCARD ALL"), SettlePending
	}
	sv.settling = settleIdle
	if !sv.Reusable() {
		return dst, SettleClose
	}
	return dst, SettleDone
}

// ask sends a statement of multipooler's own whose failure spoils the connection.
func (sv *Server) ask(dst []byte, sql string) []byte {
	sv.led.push(entry{kind: replyQuery, how: swallow})
	sv.unnamed = unnamedTag{} // a simple Query ends it
	return protocol.AppendQuery(dst, sql)
}
