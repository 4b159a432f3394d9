// Package auth proves who somebody is, in both directions, as pure
// conversations: bytes in, bytes and a verdict out. ClientAuth is our side
// towards a client that logs in to multipooler, ServerLogin is our side towards
// the PostgreSQL server that multipooler logs in to. Userlist is the snapshot of
// the users' secrets, read from PgBouncer's userlist.txt format.
//
// The package does no I/O of its own (LoadUserlist, which reads one file, is the
// exception), has no clock and runs no goroutine. Callers are the login path of
// package pooler: ClientAuth on an event loop, with its one expensive step
// (Work, a PBKDF2) offered separately so that it can run elsewhere; ServerLogin
// in the goroutine that dials.
//
// Behaviour, wording and SQLSTATEs follow PostgreSQL's auth.c, auth-scram.c,
// crypt.c and fe-auth-scram.c; the mechanism is RFC 5802 with RFC 7677 and the
// channel binding tls-server-end-point of RFC 5929. Everything a peer sends is
// bounded before it is kept.
//
// Secrets never leave through formatting, JSON or logs: Secret, ClientAuth and
// ServerLogin print as masks under every verb.
package auth
