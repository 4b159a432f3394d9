// Package session is the state machine between one client and the server
// connections that it borrows. It is sans-I/O: client bytes, server bytes,
// grants, timeouts and ends go in; bytes to write, borrows, releases and ends
// come out through [Host]. It reads no clock, starts no goroutine and owns no
// socket. Package pooler calls it, always on the event loop that owns the
// client, and executes what it asks for.
//
// Two values carry everything that outlives a call:
//
//   - [Session], one per client: what the client is, what it has been promised,
//     what keeps it on its server connection (pins). Its [State] is one
//     serialisable value; a session without a server connection can be rebuilt
//     from it on another loop or in another process.
//   - [Server], one per server connection: the reply ledger, the transaction
//     status, the reported parameters, what the connection is aligned to, and
//     who owns its unnamed statement.
//
// # A session's life
//
//	          Start                       granted, aligned
//	(new) ───────────▶ login ── borrow ──────────────────────▶ ready
//	                     │  parameters known already ───────────▲
//	                     │                                      │ reusable:
//	                     ▼ refused: FATAL                       │ release
//	                   ended ◀──────────────┐                   │
//	                     ▲                  │ X, EOF, FATAL     │
//	                     │                  │                   ▼
//	ready ── message that needs a server ─▶ waiting ─granted─▶ aligning ─▶ active
//	  ▲                                      │ refused: error, the
//	  └──────────────────────────────────────┘ session stays usable
//
// In every state with a server connection the ledger says what the server still
// owes, for whom, and what to do with it.
//
// # Known limits
//
// A RESET inside a transaction goes back to the server's own default until the
// transaction ends, not to the client's startup packet. What is pipelined behind
// a RESET that was prepared earlier runs before the startup settings are back.
// An unnamed statement that a skipped Close or Parse should have ended or
// replaced is gone, unless the server connection still has it: PostgreSQL would
// still have it.
//
// # Reuse
//
// A server connection leaves a session through exactly one predicate,
// [Server.Reusable]; what is not reusable is settled ([Server.Settle]) or
// closed. State that is not understood pins the session and dirties the
// connection: default deny.
package session
