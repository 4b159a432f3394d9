//go:build linux

// Package eventloop moves bytes between sockets and handlers on a few epoll
// loops. It owns the file descriptors that are attached to it, their unsent and
// unconsumed bytes, timers and a mailbox per loop; it knows nothing of what the
// bytes mean.
//
// # Goroutines
//
// A Loop starts no goroutine: Run occupies the one that calls it. Everything on
// Loop and Conn is for that goroutine only, except Loop.Post, Loop.ID, Now,
// Conn.TryClaim and Conn.Discard. Handlers run on the loop and must not block.
// The handshake functions are the opposite: they block and are for ordinary
// goroutines.
//
// # One turn of a loop
//
//	wait -> events (read, deliver, flush) -> tasks -> timers -> scheduled deliveries -> wait
//
// After each call of a handler, a task or a timer everything it wrote is sent,
// because what was written may alias the one read buffer of the loop.
//
// # Who may touch a Conn
//
// A Conn is in exactly one state, kept in one atomic word together with the
// loop it belongs to and a generation:
//
//	         TryClaim(to)             Adopt on loop `to`
//	parked ───────────────▶ claimed ───────────────▶ owned ◀── Attach
//	  ▲                        ▲  │ Discard            │ │
//	  │                        │  └───▶ closed ◀───────┘ │  Close, Detach, end
//	  │                        └─────────────────────────┤  GiveTo(to)
//	  └──────────────────────────────────────────────────┘  Park
//
// An event on a parked conn makes its loop claim and adopt it in one step
// before it calls the handler; the handler must Park it again, Close it, or
// keep it.
//
//	field           written by                                    read by
//	word            Attach, Adopt, Park, GiveTo, Close, Detach     anyone (atomic)
//	                (store by the owner); TryClaim, Discard and
//	                an event on a parked conn (CAS)
//	loop            the owner: Attach, Adopt, GiveTo (atomic)      owner; a loop that stops
//	all else        the owner                                      the owner
//	descriptor      Attach (store), Close, Detach, Discard         the loop that got an event
//	table entry     (clear, before the number can be used again)
//
// The owner's plain writes are published by its store to word and received by
// the CAS of the next claimer. The generation is in the epoll data too and is
// new at each registration, so an event that was fetched before the descriptor
// was closed or moved is recognised and dropped.
//
// # No lost wake-up
//
// A poster appends to the mailbox, then reads parked; a loop stores parked,
// then reads the mailbox's length, and only then lets Go's poller block it. The
// atomics are sequentially consistent, so at least one of the two sees the
// other: either the poster writes the eventfd, or the loop does not block. An
// eventfd written between the loop's empty poll and its block makes the epoll
// descriptor readable, and that edge is kept by the runtime's poller.
package eventloop
