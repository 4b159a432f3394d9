// Package pooler is where all parts meet: it accepts clients, runs their
// sessions on event loops, lends them server connections of their targets, and
// ends in an orderly way.
//
// It owns the sockets (through package eventloop), the clients and server
// connections, the cancel registry, the targets with their arbiters, and every
// goroutine of the process but the HTTP server's. cmd/multipooler calls Run.
//
// # Goroutines
//
//	one per event loop          runs clients, sessions and server connections; the first accepts
//	one per dial                connects and logs in to a server, bounded by the slots
//	one per cancel              bounded by --cancel-concurrency
//	one per TLS handshake       bounded by --max-unauthenticated-clients
//	one per key derivation      one less at a time than there are loops
//	one per console session     admin's
//	housekeeper                 certificates, user list, load over the loops
//
// Run waits for all of them.
//
// # Who owns a server connection
//
// A serverConn belongs to exactly one of: the goroutine that dials it, the
// client that has borrowed it, its loop while it settles or drains, or nobody
// while it is parked in its pool. The hand-overs are calls of connpool (Dialed,
// Get, Put, OpGrant, OpClose) and of eventloop (Park, TryClaim, GiveTo, Adopt);
// all of them happen on loops.
package pooler
