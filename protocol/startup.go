package protocol

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// ProtocolVersion is major << 16 | minor.
type ProtocolVersion uint32

// The versions that multipooler speaks.
const (
	Protocol30 ProtocolVersion = 3 << 16
	Protocol32 ProtocolVersion = 3<<16 | 2

	// ProtocolLatest is the newest one; a client that asks for a newer minor
	// gets a NegotiateProtocolVersion.
	ProtocolLatest = Protocol32
)

// Major is the incompatible part of the version.
func (v ProtocolVersion) Major() int { return int(v >> 16) }

// Minor is the compatible part of the version.
func (v ProtocolVersion) Minor() int { return int(v & 0xffff) }

func (v ProtocolVersion) String() string { return fmt.Sprintf("%d.%d", v.Major(), v.Minor()) }

// Codes in the place of a version that make the packet something else.
const (
	cancelRequestCode = 1234<<16 | 5678
	sslRequestCode    = 1234<<16 | 5679
	gssencRequestCode = 1234<<16 | 5680
)

const (
	// maxStartupPacket bounds the packet without its length word
	// (MAX_STARTUP_PACKET_LENGTH): nobody is authenticated yet.
	maxStartupPacket = 10_000
	// maxIdentifier is NAMEDATALEN - 1: longer user and database names are cut
	// to it, as the server does, so that both mean the same role.
	maxIdentifier = 63
	// tlsHandshake is the first byte of a TLS ClientHello. As the first byte of
	// a length word it would mean 352 MiB.
	tlsHandshake = 0x16
	// optionPrefix marks protocol-level options in the startup packet.
	optionPrefix = "_pq_."
)

// StartupKind says what the first packet of a connection asks for.
type StartupKind uint8

// The kinds of first packets.
const (
	StartupSession StartupKind = iota
	StartupSSL
	StartupGSSENC
	StartupCancel
)

// ReplicationMode is the startup parameter "replication".
type ReplicationMode uint8

// The replication modes.
const (
	ReplicationNone     ReplicationMode = iota
	ReplicationPhysical                 // not connected to a database
	ReplicationLogical                  // replication=database
)

// Param is a setting by name. Names of settings compare without regard to
// ASCII case, as everywhere in PostgreSQL.
type Param struct{ Name, Value string }

// Startup is a first packet, copied out of the input (it is rare, and lives as
// long as the session).
type Startup struct {
	Kind StartupKind

	// Version is what the client asked for, of a major version that is ours.
	Version ProtocolVersion
	// User is never empty; Database defaults to it. Both are cut to the length
	// of a PostgreSQL name.
	User, Database string
	Replication    ReplicationMode
	// Options is the parameter "options" as it came; SplitOptions reads it.
	Options string
	// Params are the settings in the order of the packet, duplicates included:
	// the server validates each of them, and the last one wins.
	Params []Param
	// Unrecognized are the names of protocol-level options (_pq_.*), none of
	// which we know.
	Unrecognized []string

	// CancelPID and CancelKey are those of a StartupCancel.
	CancelPID uint32
	CancelKey []byte
}

// IsTLS reports whether the first byte of a connection starts a TLS handshake
// without an SSLRequest (direct TLS, PostgreSQL 17).
func IsTLS(first byte) bool { return first == tlsHandshake }

// StartupLen returns the length of the whole packet that starts at p,
// including its length word. ok is false while p is too short to tell. Errors
// are Quiet.
func StartupLen(p []byte) (n int, ok bool, err error) {
	if len(p) < 4 {
		return 0, false, nil
	}
	length := binary.BigEndian.Uint32(p)
	if length < 8 || length > 4+maxStartupPacket {
		return 0, false, lostSync("invalid length of startup packet")
	}
	return int(length), true, nil
}

// ParseStartup reads a whole first packet, p being exactly as long as
// StartupLen said. It follows ProcessStartupPacket of PostgreSQL in what it
// accepts, in which order it complains, and in its words.
//
// A client may send SSLRequest and GSSENCRequest once each; the caller counts,
// and answers a second one with UnsupportedProtocol(code), as PostgreSQL does.
func ParseStartup(p []byte) (Startup, error) {
	n, ok, err := StartupLen(p)
	if err != nil {
		return Startup{}, err
	}
	if !ok || n != len(p) {
		return Startup{}, lostSync("incomplete startup packet")
	}
	code := binary.BigEndian.Uint32(p[4:])
	switch code {
	case cancelRequestCode:
		return parseCancel(p[8:])
	case sslRequestCode:
		return Startup{Kind: StartupSSL}, nil
	case gssencRequestCode:
		return Startup{Kind: StartupGSSENC}, nil
	}
	v := ProtocolVersion(code)
	if v.Major() != ProtocolLatest.Major() {
		return Startup{}, UnsupportedProtocol(v)
	}
	s := Startup{Kind: StartupSession, Version: v}
	if err := s.parameters(p[8:]); err != nil {
		return Startup{}, err
	}
	if s.User == "" {
		return Startup{}, &Error{Severity: SeverityFatal, Code: CodeInvalidAuthorization, Message: "no PostgreSQL user name specified in startup packet"}
	}
	if s.Database == "" {
		s.Database = s.User
	}
	s.User, s.Database = truncated(s.User), truncated(s.Database)
	return s, nil
}

// UnsupportedProtocol is the FATAL for a version (or a repeated request code)
// that is not ours.
func UnsupportedProtocol(v ProtocolVersion) *Error {
	return &Error{
		Severity: SeverityFatal,
		Code:     CodeFeatureNotSupported,
		Message: fmt.Sprintf("unsupported frontend protocol %v: server supports %d.0 to %v",
			v, Protocol30.Major(), ProtocolLatest),
	}
}

// SSLRequestVersion and GSSENCRequestVersion are what UnsupportedProtocol says
// about a repeated request.
const (
	SSLRequestVersion    ProtocolVersion = sslRequestCode
	GSSENCRequestVersion ProtocolVersion = gssencRequestCode
)

// parseCancel reads the body of a CancelRequest behind its code. Like
// PostgreSQL 18 it takes a key of any length up to 256 bytes from any client,
// since the packet does not say which protocol the session speaks.
func parseCancel(body []byte) (Startup, error) {
	if len(body) < 4 {
		return Startup{}, lostSync("invalid length of cancel request packet")
	}
	key := body[4:]
	if len(key) == 0 || len(key) > MaxCancelKey {
		return Startup{}, lostSync("invalid length of cancel key in cancel request packet")
	}
	return Startup{
		Kind:      StartupCancel,
		CancelPID: binary.BigEndian.Uint32(body),
		CancelKey: bytes.Clone(key),
	}, nil
}

// parameters reads the pairs of names and values. The packet ends with an
// empty name, and that must be its very last byte; the last value may do
// without its NUL only to be refused by that rule.
func (s *Startup) parameters(body []byte) error {
	at := 0
	for at < len(body) && body[at] != 0 {
		name, next := zeroTerminated(body, at)
		if next >= len(body) {
			break // no value: refused below
		}
		var value string
		value, next = zeroTerminated(body, next)
		if err := s.parameter(name, value); err != nil {
			return err
		}
		at = next
	}
	if at != len(body)-1 {
		return fatalViolation("invalid startup packet layout: expected terminator as last byte")
	}
	return nil
}

// zeroTerminated returns the string at offset at and the offset behind its NUL.
// Behind the packet there is one NUL more, as in PostgreSQL's buffer.
func zeroTerminated(body []byte, at int) (string, int) {
	n := bytes.IndexByte(body[at:], 0)
	if n < 0 {
		n = len(body) - at
	}
	return string(body[at : at+n]), at + n + 1
}

func (s *Startup) parameter(name, value string) error {
	switch {
	case name == "database":
		s.Database = value
	case name == "user":
		s.User = value
	case name == "options":
		s.Options = value
	case name == "replication":
		return s.replication(value)
	case strings.HasPrefix(name, optionPrefix):
		s.Unrecognized = append(s.Unrecognized, name)
	default:
		s.Params = append(s.Params, Param{name, value})
	}
	return nil
}

func (s *Startup) replication(value string) error {
	if value == "database" {
		s.Replication = ReplicationLogical
		return nil
	}
	on, ok := parseBool(value)
	if !ok {
		return &Error{
			Severity: SeverityFatal,
			Code:     CodeInvalidParameterValue,
			Message:  fmt.Sprintf("invalid value for parameter \"replication\": \"%s\"", value),
			Hint:     `Valid values are: "false", 0, "true", 1, "database".`,
		}
	}
	// "database" before "false" leaves PostgreSQL in neither mode, and "true"
	// after "database" stays connected to the database.
	switch {
	case !on:
		s.Replication = ReplicationNone
	case s.Replication == ReplicationNone:
		s.Replication = ReplicationPhysical
	}
	return nil
}

// Param returns the value that holds in the end, and whether there is one.
func (s *Startup) Param(name string) (value string, ok bool) {
	for _, p := range slices.Backward(s.Params) {
		if strings.EqualFold(p.Name, name) {
			return p.Value, true
		}
	}
	return "", false
}

// Negotiate reports whether the client must be told by NegotiateProtocolVersion
// what we speak, and the version that the session uses then.
func (s *Startup) Negotiate() (use ProtocolVersion, tell bool) {
	use = min(s.Version, ProtocolLatest)
	return use, s.Version > ProtocolLatest || len(s.Unrecognized) > 0
}

// parseBool is parse_bool of PostgreSQL: unambiguous prefixes of true, false,
// yes and no, on, off (at least two letters), 1, 0.
func parseBool(s string) (value, ok bool) {
	is := func(word string, least int) bool {
		return len(s) >= least && len(s) <= len(word) && strings.EqualFold(s, word[:len(s)])
	}
	switch {
	case is("true", 1), is("yes", 1), is("on", 2), is("1", 1):
		return true, true
	case is("false", 1), is("no", 1), is("off", 2), is("0", 1):
		return false, true
	}
	return false, false
}

func truncated(name string) string { return name[:min(len(name), maxIdentifier)] }
