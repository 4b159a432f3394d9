// Package protocol turns bytes into PostgreSQL messages and back: framing and
// views of message bodies (framing.go, views.go), the startup packet
// (startup.go, options.go), append-style builders (build*.go), SQL quoting
// (quote.go) and the scanner that says what a statement does to a session
// (scan*.go).
//
// It decides nothing about sessions and does nothing: no I/O, no clock, no
// goroutine, no lock. The session state machine, the authentication
// conversations, the server dialler and the admin console call it.
//
// Everything read is a view: slices alias the input, are cut with their
// capacity (so that an append cannot write into the neighbour), and are valid
// as long as the input is. Everything written is appended to a slice of the
// caller. Reading a well-formed message allocates nothing.
//
// Words and limits are those of the PostgreSQL 18 manual, chapter "Frontend/
// Backend Protocol", and errors carry the SQLSTATE and the wording that the
// server itself would use, so that a client sees no difference.
package protocol
