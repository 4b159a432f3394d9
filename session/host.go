package session

import "github.com/multipooler/multipooler/connpool"

// Host executes what a session asks for. All calls happen on the goroutine
// that called into the session; none of them calls back into the session.
type Host interface {
	// ToClient and ToServer queue bytes; p aliases a buffer that is valid
	// until the host's own event handler returns. ToServer writes to the
	// server connection that the session holds.
	ToClient(p []byte)
	ToServer(p []byte)
	// Borrow asks for a server connection. nil, nil: the session waits, and
	// Granted or Refused follows, unless CancelBorrow takes it back.
	Borrow(class connpool.Class) (*Server, error)
	// CancelBorrow leaves the queue. false: a grant or a refusal is already
	// on its way; the host disposes of it since the session does not wait.
	CancelBorrow() bool
	// Release ends the loan. With Reuse the connection is Reusable; with
	// Settle the host drives Server.Settle; with Close it is not to be used.
	Release(sv *Server, how Disposal)
	// Redeliver asks for another FromClient with the bytes that were not
	// taken, soon, but not before the present call has returned.
	Redeliver()
	// Learned reports what the server says after alignment to the session's
	// settings, for the logins to come.
	Learned(p *Params)
	// Pinned reports a new reason, once each.
	Pinned(reason Pin)
	// End closes the client after the queued bytes. It is the last call; the
	// session holds no server connection and waits for none.
	End(reason EndReason, detail string)
	// Now is the loop's clock, monotonic nanoseconds.
	Now() int64
}

// Disposal says what becomes of a server connection that a session gives up.
type Disposal uint8

// The disposals.
const (
	Reuse  Disposal = iota // reusable: to the next session as it is
	Settle                 // finish what is running, roll back, reset; then reuse
	Close                  // must not be used again
)

// EndReason is why a session ended: the label in logs and metrics.
type EndReason string

// The reasons.
const (
	EndClientTerminate EndReason = "client_terminate"     // the client said goodbye
	EndClientGone      EndReason = "client_gone"          // the client's connection ended
	EndProtocol        EndReason = "protocol_violation"   // the client broke the protocol
	EndServerGone      EndReason = "server_gone"          // the server connection ended under the session
	EndServerFatal     EndReason = "server_fatal"         // the server ended the session with FATAL
	EndLoginRefused    EndReason = "login_refused"        // no server connection or refused settings at login
	EndIdleTransaction EndReason = "idle_in_transaction"  // reserved-inactivity-timeout
	EndIdle            EndReason = "client_idle_timeout"  // client-idle-timeout
	EndStalled         EndReason = "client_stall_timeout" // the client took no bytes for too long
	EndShutdown        EndReason = "shutdown"             // multipooler drains
	EndKilled          EndReason = "killed"               // an administrator
	EndBug             EndReason = "internal_error"       // a panic, contained by the host
	EndStatementMode   EndReason = "statement_mode"       // a transaction in pool mode statement
)
