package protocol

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

func problem(t *testing.T, err error) *Error {
	t.Helper()
	if err == nil {
		return &Error{}
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("%v is not an *Error", err)
	}
	return e
}

func TestFrontendHeadersHavePostgresLimits(t *testing.T) {
	length := func(typ byte, n uint32) []byte {
		return []byte{typ, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
	}
	tests := []struct {
		name    string
		p       []byte
		body    int
		ok      bool
		message string
		quiet   bool
	}{
		{name: "nothing yet"},
		{name: "half a header", p: length('Q', 4)[:4]},
		{name: "shortest", p: length('S', 4), ok: true},
		{name: "too short", p: length('S', 3), message: "invalid message length", quiet: true},
		{name: "small at its limit", p: length('C', 10_000), body: 9_996, ok: true},
		{name: "small above its limit", p: length('C', 10_001), message: "invalid message length", quiet: true},
		{name: "CopyFail is small", p: length('f', 10_001), message: "invalid message length", quiet: true},
		{name: "FunctionCall is large", p: length('F', 10_001), body: 9_997, ok: true},
		{name: "large at its limit", p: length('Q', 0x3ffffffe), body: 0x3ffffffa, ok: true},
		{name: "large above its limit", p: length('Q', 0x3fffffff), message: "invalid message length", quiet: true},
		{name: "negative", p: length('d', 0xffffffff), message: "invalid message length", quiet: true},
		{name: "unknown type", p: length('z', 4), message: "invalid frontend message type 122"},
		{name: "unknown type, first byte", p: []byte{'z'}, message: "invalid frontend message type 122"},
		{name: "password after login", p: length('p', 4), message: "invalid frontend message type 112"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, body, ok, err := FrontendHeader(tt.p)
			e := problem(t, err)
			if ok != tt.ok || body != tt.body || e.Message != tt.message || e.Quiet != tt.quiet {
				t.Errorf("got body %d, ok %v, %+v", body, ok, e)
			}
			if err != nil && (!e.Fatal() || e.SQLState() != "08P01") {
				t.Errorf("%+v must end the session with 08P01", e)
			}
		})
	}
}

func TestMalformedBodiesAreRefusedInPostgresWords(t *testing.T) {
	only := func(err error) error { return err }
	q := func(b string) error { _, err := ReadQuery([]byte(b)); return only(err) }
	parse := func(b string) error { _, err := ReadParse([]byte(b)); return err }
	bind := func(b string) error { _, err := ReadBind([]byte(b)); return err }
	describe := func(b string) error { _, err := ReadDescribe([]byte(b)); return err }
	closing := func(b string) error { _, err := ReadClose([]byte(b)); return err }
	execute := func(b string) error { _, err := ReadExecute([]byte(b)); return err }
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"query without NUL", q("select"), "invalid string in message"},
		{"query with more behind", q("a\x00b\x00"), "invalid message format"},
		{"parse without types", parse("a\x00b\x00"), "insufficient data left in message"},
		{"parse with missing types", parse("a\x00b\x00\x00\x01"), "insufficient data left in message"},
		{"parse with more behind", parse("a\x00b\x00\x00\x00x"), "invalid message format"},
		{"bind without statement", bind("a\x00b"), "invalid string in message"},
		{"describe nothing", describe(""), "no data left in message"},
		{"describe an unknown kind", describe("X\x00"), "invalid DESCRIBE message subtype 88"},
		{"close an unknown kind", closing("X\x00"), "invalid CLOSE message subtype 88"},
		{"close with more behind", closing("Sa\x00b"), "invalid message format"},
		{"execute without rows", execute("p\x00\x00"), "insufficient data left in message"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := problem(t, tt.err)
			if e.Message != tt.want || e.Code != "08P01" || e.Fatal() {
				t.Errorf("got %+v, want %q", e, tt.want)
			}
		})
	}
}

func TestMalformedBackendBodiesAreErrors(t *testing.T) {
	for name, err := range map[string]error{
		"status":       func() error { _, err := ReadReadyForQuery([]byte("X")); return err }(),
		"long status":  func() error { _, err := ReadReadyForQuery([]byte("II")); return err }(),
		"short key":    func() error { _, err := ReadBackendKeyData(make([]byte, 7)); return err }(),
		"long key":     func() error { _, err := ReadBackendKeyData(make([]byte, 4+257)); return err }(),
		"no key":       func() error { _, err := ReadBackendKeyData(nil); return err }(),
		"md5 salt":     func() error { _, err := ReadAuthentication([]byte("\x00\x00\x00\x05abc")); return err }(),
		"ok with data": func() error { _, err := ReadAuthentication([]byte("\x00\x00\x00\x00a")); return err }(),
		"fields":       func() error { _, err := ReadFields([]byte("Sabc\x00")); return err }(),
		"fields tail":  func() error { _, err := ReadFields([]byte("Sabc\x00\x00x")); return err }(),
		"negotiation": func() error {
			_, err := ReadNegotiateProtocolVersion([]byte("\x00\x03\x00\x02\xff\xff\xff\xff"))
			return err
		}(),
		"setting": func() error { _, _, err := ReadParameterStatus([]byte("a\x00b")); return err }(),
	} {
		if problem(t, err).Code != "08P01" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestViewsCannotGrowIntoTheirNeighbours(t *testing.T) {
	p := AppendBind(nil, "portal", "statement", nil, [][]byte{[]byte("value")}, nil)
	was := bytes.Clone(p)
	m, err := ReadBind(p[HeaderLen:])
	if err != nil {
		t.Fatal(err)
	}
	_ = append(m.Portal, "XXXX"...)
	_ = append(m.Statement, "XXXX"...)
	_ = append(m.Values, "XXXX"...)
	if !bytes.Equal(p, was) {
		t.Errorf("the message became %q", p)
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	p := AppendParse(nil, "s", "select $1", MakeOIDs(23))
	p = AppendBind(p, "", "s", nil, [][]byte{[]byte("1")}, nil)
	p = AppendDescribe(p, KindPortal, "")
	p = AppendExecute(p, "", 0)
	p = AppendSync(p)
	dst := make([]byte, 0, len(p))
	if n := testing.AllocsPerRun(100, func() {
		dst = dst[:0]
		for rest := p; len(rest) > 0; {
			typ, n, _, _ := FrontendHeader(rest)
			body := rest[HeaderLen : HeaderLen+n]
			rest = rest[HeaderLen+n:]
			switch typ {
			case MsgParse:
				m, _ := ReadParse(body)
				dst = AppendParse(dst, m.Name, m.Query, m.Types)
			case MsgBind:
				m, _ := ReadBind(body)
				dst = AppendBindValues(dst, m.Portal, m.Statement, m.Values)
			case MsgDescribe:
				m, _ := ReadDescribe(body)
				dst = AppendDescribe(dst, m.Kind, m.Name)
			case MsgExecute:
				m, _ := ReadExecute(body)
				dst = AppendExecute(dst, m.Portal, m.MaxRows)
			default:
				dst = AppendSync(dst)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if !bytes.Equal(dst, p) {
		t.Errorf("rebuilt %q, want %q", dst, p)
	}
}

// Whatever we take for a well-formed message, the reference must take, too.
func FuzzFrontendFraming(f *testing.F) {
	f.Add(AppendQuery(nil, "select 1"))
	f.Add(AppendBind(AppendParse(nil, "s", "select $1", MakeOIDs(23)), "p", "s", nil, [][]byte{[]byte("1")}, nil))
	f.Add(AppendSync(AppendExecute(AppendDescribe(AppendClose(nil, 'S', "x"), 'P', ""), "", 3)))
	f.Fuzz(func(t *testing.T, p []byte) {
		for len(p) > 0 {
			typ, n, ok, err := FrontendHeader(p)
			if err != nil || !ok || n > len(p)-HeaderLen {
				return
			}
			whole, body := p[:HeaderLen+n], p[HeaderLen:HeaderLen+n]
			p = p[HeaderLen+n:]
			var again []byte
			switch typ {
			case MsgQuery:
				var sql []byte
				if sql, err = ReadQuery(body); err == nil {
					again = AppendQuery(nil, sql)
				}
			case MsgParse:
				var m Parse
				if m, err = ReadParse(body); err == nil {
					again = AppendParse(nil, m.Name, m.Query, m.Types)
				}
			case MsgBind:
				var m Bind
				if m, err = ReadBind(body); err == nil {
					again = AppendBindValues(nil, m.Portal, m.Statement, m.Values)
				}
				whole = nil // Values are not checked: pgproto3 may refuse
			case MsgDescribe:
				var m Target
				if m, err = ReadDescribe(body); err == nil {
					again = AppendDescribe(nil, m.Kind, m.Name)
				}
			case MsgClose:
				var m Target
				if m, err = ReadClose(body); err == nil {
					again = AppendClose(nil, m.Kind, m.Name)
				}
			case MsgExecute:
				var m Execute
				if m, err = ReadExecute(body); err == nil {
					again = AppendExecute(nil, m.Portal, m.MaxRows)
				}
			default:
				continue
			}
			if err != nil || whole == nil {
				continue
			}
			if !bytes.Equal(again, whole) {
				t.Fatalf("rebuilt %q, was %q", again, whole)
			}
			if _, err := pgproto3.NewBackend(bytes.NewReader(whole), io.Discard).Receive(); err != nil {
				t.Fatalf("pgproto3 refuses %q: %v", whole, err)
			}
		}
	})
}

func FuzzBackendFraming(f *testing.F) {
	f.Add(AppendReadyForQuery(AppendParameterStatus(nil, "a", "b"), TxIdle))
	f.Add(AppendErrorResponse(nil, &Error{Message: "m", Hint: "h"}))
	f.Add(AppendNegotiateProtocolVersion(AppendBackendKeyData(nil, 1, make([]byte, 32)), Protocol30, []string{"x"}))
	f.Add(AppendAuthenticationSASL(AppendNotification(nil, 1, "c", "p"), "SCRAM-SHA-256"))
	f.Fuzz(func(t *testing.T, p []byte) {
		for len(p) > 0 {
			typ, n, ok, err := BackendHeader(p)
			if err != nil || !ok || n > len(p)-HeaderLen {
				return
			}
			whole, body := p[:HeaderLen+n], p[HeaderLen:HeaderLen+n]
			p = p[HeaderLen+n:]
			var again []byte
			switch typ {
			case MsgReadyForQuery:
				var s TxStatus
				if s, err = ReadReadyForQuery(body); err == nil {
					again = AppendReadyForQuery(nil, s)
				}
			case MsgParameterStatus:
				var name, value []byte
				if name, value, err = ReadParameterStatus(body); err == nil {
					again = AppendParameterStatus(nil, name, value)
				}
			case MsgCommandComplete:
				var tag []byte
				if tag, err = ReadCommandComplete(body); err == nil {
					again = AppendCommandComplete(nil, tag)
				}
			case MsgNotificationResponse:
				var m Notification
				if m, err = ReadNotification(body); err == nil {
					again = AppendNotification(nil, m.PID, m.Channel, m.Payload)
				}
			case MsgBackendKeyData:
				var m BackendKey
				if m, err = ReadBackendKeyData(body); err == nil {
					again = AppendBackendKeyData(nil, m.PID, m.Key)
				}
			case MsgAuthentication:
				var m Authentication
				if m, err = ReadAuthentication(body); err == nil {
					again = AppendAuthentication(nil, m.Type, m.Data)
				}
				for _, rest, ok := NextMechanism(m.Data); ok; _, rest, ok = NextMechanism(rest) {
				}
			case MsgNegotiateProtocolVersion:
				var m Negotiation
				if m, err = ReadNegotiateProtocolVersion(body); err == nil {
					again = AppendNegotiateProtocolVersion(nil, m.Newest, m.Options())
				}
			case MsgErrorResponse, MsgNoticeResponse:
				var m Fields
				if m, err = ReadFields(body); err == nil {
					m.ToError()
					again = AppendMessage(nil, typ, m)
				}
			default:
				continue
			}
			if err == nil && !bytes.Equal(again, whole) {
				t.Fatalf("rebuilt %q, was %q", again, whole)
			}
		}
	})
}
