package protocol

import "encoding/binary"

// A reader walks a message body. It remembers the first thing that was wrong
// in PostgreSQL's words (pqformat.c), so that callers read all fields and ask
// once.
type reader struct {
	p   []byte
	bad string
}

const (
	msgNoData       = "no data left in message"
	msgInsufficient = "insufficient data left in message"
	msgBadString    = "invalid string in message"
	msgBadFormat    = "invalid message format"
)

func (r *reader) fail(why string) {
	if r.bad == "" {
		r.bad, r.p = why, nil
	}
}

func (r *reader) string() []byte {
	s, rest, ok := CString(r.p)
	if !ok {
		r.fail(msgBadString)
		return nil
	}
	r.p = rest
	return s
}

func (r *reader) take(n int, why string) []byte {
	if n > len(r.p) {
		r.fail(why)
		return nil
	}
	b := r.p[:n:n]
	r.p = r.p[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.take(1, msgNoData); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if b := r.take(2, msgInsufficient); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4, msgInsufficient); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) rest() []byte {
	b := r.p[:len(r.p):len(r.p)]
	r.p = nil
	return b
}

// end must be the last call: nothing may be left.
func (r *reader) end() error {
	if r.bad == "" && len(r.p) > 0 {
		r.bad = msgBadFormat
	}
	return r.err()
}

// err is end for messages whose tail nobody looks at.
func (r *reader) err() error {
	if r.bad == "" {
		return nil
	}
	return violation("%s", r.bad)
}

// ReadQuery returns the text of a Query.
func ReadQuery(body []byte) (sql []byte, err error) {
	r := reader{p: body}
	sql = r.string()
	return sql, r.end()
}

// OIDs is a view of big-endian type identifiers.
type OIDs []byte

// MakeOIDs builds what AppendParse takes.
func MakeOIDs(oids ...uint32) OIDs {
	var b OIDs
	for _, oid := range oids {
		b = binary.BigEndian.AppendUint32(b, oid)
	}
	return b
}

// Len is the number of identifiers.
func (o OIDs) Len() int { return len(o) / 4 }

// At returns the i-th identifier; 0 leaves the type to the server.
func (o OIDs) At(i int) uint32 { return binary.BigEndian.Uint32(o[4*i:]) }

// Parse is the view of a Parse message.
type Parse struct {
	Name  []byte // empty: the unnamed statement
	Query []byte
	Types OIDs
}

// ReadParse reads the body of a Parse.
func ReadParse(body []byte) (m Parse, err error) {
	r := reader{p: body}
	m.Name = r.string()
	m.Query = r.string()
	n := int(r.uint16())
	m.Types = OIDs(r.take(4*n, msgInsufficient))
	return m, r.end()
}

// Bind is the view of a Bind message. Values holds the formats, parameters and
// result formats, unread: the server judges them.
type Bind struct {
	Portal    []byte // empty: the unnamed portal
	Statement []byte
	Values    []byte
}

// ReadBind reads the body of a Bind. The body may be cut short behind the two
// names, because a Bind of any size is forwarded without being assembled;
// while the names are incomplete, the error is the one for a missing NUL.
func ReadBind(body []byte) (m Bind, err error) {
	r := reader{p: body}
	m.Portal = r.string()
	m.Statement = r.string()
	m.Values = r.rest()
	return m, r.err()
}

// Kinds of things that Describe and Close name.
const (
	KindStatement byte = 'S'
	KindPortal    byte = 'P'
)

// Target is the view of a Describe or a Close message.
type Target struct {
	Kind byte // KindStatement or KindPortal
	Name []byte
}

// ReadDescribe reads the body of a Describe.
func ReadDescribe(body []byte) (Target, error) { return readTarget(body, "DESCRIBE") }

// ReadClose reads the body of a Close.
func ReadClose(body []byte) (Target, error) { return readTarget(body, "CLOSE") }

func readTarget(body []byte, what string) (m Target, err error) {
	r := reader{p: body}
	m.Kind = r.byte()
	m.Name = r.string()
	if err := r.end(); err != nil {
		return m, err
	}
	if m.Kind != KindStatement && m.Kind != KindPortal {
		return m, violation("invalid %s message subtype %d", what, m.Kind)
	}
	return m, nil
}

// Execute is the view of an Execute message.
type Execute struct {
	Portal  []byte
	MaxRows int32 // 0 or less: no limit
}

// ReadExecute reads the body of an Execute.
func ReadExecute(body []byte) (m Execute, err error) {
	r := reader{p: body}
	m.Portal = r.string()
	m.MaxRows = int32(r.uint32())
	return m, r.end()
}

// TxStatus is the transaction status of a ReadyForQuery.
type TxStatus byte

// The three statuses.
const (
	TxIdle   TxStatus = 'I'
	TxActive TxStatus = 'T'
	TxFailed TxStatus = 'E'
)

// ReadReadyForQuery returns the status; anything but the three known ones is
// an error.
func ReadReadyForQuery(body []byte) (TxStatus, error) {
	r := reader{p: body}
	s := TxStatus(r.byte())
	if err := r.end(); err != nil {
		return 0, err
	}
	if s != TxIdle && s != TxActive && s != TxFailed {
		return 0, violation("unknown transaction status %d", byte(s))
	}
	return s, nil
}

// ReadParameterStatus returns the setting that the server reports.
func ReadParameterStatus(body []byte) (name, value []byte, err error) {
	r := reader{p: body}
	name = r.string()
	value = r.string()
	return name, value, r.end()
}

// ReadCommandComplete returns the command tag, such as "INSERT 0 1".
func ReadCommandComplete(body []byte) (tag []byte, err error) {
	r := reader{p: body}
	tag = r.string()
	return tag, r.end()
}

// Notification is the view of a NotificationResponse.
type Notification struct {
	PID              uint32 // of the notifying server process
	Channel, Payload []byte
}

// ReadNotification reads the body of a NotificationResponse.
func ReadNotification(body []byte) (m Notification, err error) {
	r := reader{p: body}
	m.PID = r.uint32()
	m.Channel = r.string()
	m.Payload = r.string()
	return m, r.end()
}

// Bounds of a cancel key: 4 bytes up to protocol 3.1, any length up to the
// maximum from 3.2 on.
const (
	MinCancelKey = 4
	MaxCancelKey = 256
)

// BackendKey is the view of a BackendKeyData message.
type BackendKey struct {
	PID uint32
	Key []byte // MinCancelKey to MaxCancelKey bytes
}

// ReadBackendKeyData reads the body of a BackendKeyData.
func ReadBackendKeyData(body []byte) (m BackendKey, err error) {
	r := reader{p: body}
	m.PID = r.uint32()
	m.Key = r.rest()
	if err := r.err(); err != nil {
		return m, err
	}
	if len(m.Key) < MinCancelKey || len(m.Key) > MaxCancelKey {
		return m, violation("cancel key of %d bytes, must be between %d and %d", len(m.Key), MinCancelKey, MaxCancelKey)
	}
	return m, nil
}

// AuthType is the first word of an Authentication message.
type AuthType uint32

// The authentication requests of the protocol.
const (
	AuthOk                AuthType = 0
	AuthKerberosV5        AuthType = 2
	AuthCleartextPassword AuthType = 3
	AuthMD5Password       AuthType = 5
	AuthGSS               AuthType = 7
	AuthGSSContinue       AuthType = 8
	AuthSSPI              AuthType = 9
	AuthSASL              AuthType = 10
	AuthSASLContinue      AuthType = 11
	AuthSASLFinal         AuthType = 12
)

// Authentication is the view of an Authentication message: the salt, the SASL
// mechanisms or the SASL data are in Data.
type Authentication struct {
	Type AuthType
	Data []byte
}

// ReadAuthentication reads the body of an Authentication message and checks
// the shape of Data where the type fixes it.
func ReadAuthentication(body []byte) (m Authentication, err error) {
	r := reader{p: body}
	m.Type = AuthType(r.uint32())
	m.Data = r.rest()
	if err := r.err(); err != nil {
		return m, err
	}
	switch m.Type {
	case AuthOk, AuthKerberosV5, AuthCleartextPassword, AuthGSS, AuthSSPI:
		if len(m.Data) != 0 {
			return m, violation(msgBadFormat)
		}
	case AuthMD5Password:
		if len(m.Data) != 4 {
			return m, violation(msgBadFormat)
		}
	}
	return m, nil
}

// NextMechanism takes the first SASL mechanism off an AuthSASL list. The list
// ends with an empty name: ok is false there, and at a list that is cut short.
func NextMechanism(list []byte) (name, rest []byte, ok bool) {
	name, rest, ok = CString(list)
	return name, rest, ok && len(name) > 0
}

// Negotiation is the view of a NegotiateProtocolVersion message.
type Negotiation struct {
	Newest ProtocolVersion // the newest that the server speaks and we may use
	Count  int             // unrecognised options
	names  []byte
}

// ReadNegotiateProtocolVersion reads the body of a NegotiateProtocolVersion.
func ReadNegotiateProtocolVersion(body []byte) (m Negotiation, err error) {
	r := reader{p: body}
	m.Newest = ProtocolVersion(r.uint32())
	n := r.uint32()
	if n > uint32(len(r.p)) { // each name has at least its NUL
		r.fail(msgInsufficient)
		return m, r.err()
	}
	m.Count, m.names = int(n), r.p
	for range m.Count {
		r.string()
	}
	return m, r.end()
}

// Options returns the names of the options that the server did not recognise.
func (m Negotiation) Options() []string {
	r := reader{p: m.names}
	names := make([]string, 0, m.Count)
	for range m.Count {
		names = append(names, string(r.string()))
	}
	return names
}
