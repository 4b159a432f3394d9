// Package connpool decides who may hold a server connection.
//
// One [Arbiter] stands for one target. It owns the target's slots (a slot is
// the right to hold one server connection, from before its dial until the
// server's EOF), the user pools, their waiters and the idle lists. It speaks no
// protocol, does no I/O, reads no clock and runs no goroutine: time comes in as
// monotonic nanoseconds, and what has to be done in the world comes out as
// [Op] values that the caller, who is the shell (package pooler, on its event
// loops), executes after the call has returned. One mutex per Arbiter guards
// every list; nothing slow runs under it.
//
// # The life of a connection
//
//	            Get needs a slot            Dialed, a waiter is there
//	(no slot) ───────────────────► Dialing ───────────────────────────► Active
//	                                │  │  └──────────► Idle ──────────► ▲  │
//	                     DialFailed │  │     Dialed,    ▲   Get, or a   │  │
//	                     Gone       │  │     no waiter  │   waiter at   │  │
//	                                │  │                │   Unclaimed ──┘  │
//	                                │  │                └───── Put ────────┤
//	                                │  │ Drain, Dialed while closing       │ Drain, Put
//	                                │  └─────────────────► Draining ◄──────┘ that retires
//	                                │                       ▲    │
//	                                │      Idle: Drain,     │    │ Gone
//	                                │      evicted, expired ┘    ▼
//	                                └───────────────────────► Closed
//
// Idle and Active also go to Closed directly when the shell reports Gone for
// a connection that the server closed by itself.
//
// # Who may touch what
//
// A connection that is Dialing, Active or Draining belongs to the shell: the
// dialling goroutine, the borrower's loop, the loop that terminates it. An Idle
// one belongs to nobody; it is parked, and the only way to it is a successful
// [Resource.TryClaim]. Put parks it under the Arbiter's lock as the last touch
// of its releaser, therefore a connection that another loop finds in an idle
// list has no user left. Its own loop may claim it at any time because of an
// event; then everybody else's claim fails and walks away, and the loop answers
// with exactly one of Unclaimed (it is fine), Drain (it must go) or Gone (the
// server closed it).
//
// # Who owns an outcome
//
// Whoever removes a waiter from its queue owns what happens to it: the Arbiter
// by an OpGrant or OpFail, the shell by a Cancel that returned true. A Cancel
// that returned false has lost: the OpGrant or OpFail is on its way and must be
// taken (a grant that nobody wants any more goes back with Put).
//
// Slots held never grow while they are at the capacity. No waiter is left while
// a slot is free and allowed for it or while an idle connection is claimable.
package connpool
