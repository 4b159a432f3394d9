package protocol

import (
	"bytes"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"
)

// body strips and checks the header of one frontend message.
func frontendBody(t *testing.T, p []byte, want Type) []byte {
	t.Helper()
	typ, n, ok, err := FrontendHeader(p)
	if err != nil || !ok || typ != want || n != len(p)-HeaderLen {
		t.Fatalf("header of %q: type %c, body %d, ok %v, err %v", p, typ, n, ok, err)
	}
	return p[HeaderLen:]
}

func backendBody(t *testing.T, p []byte, want Type) []byte {
	t.Helper()
	typ, n, ok, err := BackendHeader(p)
	if err != nil || !ok || typ != want || n != len(p)-HeaderLen {
		t.Fatalf("header of %q: type %c, body %d, ok %v, err %v", p, typ, n, ok, err)
	}
	return p[HeaderLen:]
}

// The reference encodes what we encode: an independent implementation of the
// protocol must agree byte for byte.
func TestBuildersAgreeWithPgproto3ByteForByte(t *testing.T) {
	key := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	report := &Error{Severity: "FATAL", Code: "53300", Message: "full", Detail: "10 of 10", Hint: "wait"}
	pgReport := pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "53300", Message: "full", Detail: "10 of 10", Hint: "wait",
	}
	pgNotice := pgproto3.NoticeResponse(pgReport)
	tests := []struct {
		name string
		got  []byte
		want pgproto3.Message
	}{
		{"Query", AppendQuery(nil, "select 1"), &pgproto3.Query{String: "select 1"}},
		{"Parse", AppendParse(nil, "s", []byte("select $1"), MakeOIDs(23, 25)), &pgproto3.Parse{Name: "s", Query: "select $1", ParameterOIDs: []uint32{23, 25}}},
		{
			"Bind", AppendBind(nil, "p", "s", []int16{0, 1}, [][]byte{[]byte("a"), nil, {}}, []int16{1}),
			&pgproto3.Bind{
				DestinationPortal: "p", PreparedStatement: "s", ParameterFormatCodes: []int16{0, 1},
				Parameters: [][]byte{[]byte("a"), nil, {}}, ResultFormatCodes: []int16{1},
			},
		},
		{"Describe", AppendDescribe(nil, KindPortal, "p"), &pgproto3.Describe{ObjectType: 'P', Name: "p"}},
		{"Close", AppendClose(nil, KindStatement, "s"), &pgproto3.Close{ObjectType: 'S', Name: "s"}},
		{"Execute", AppendExecute(nil, "p", 7), &pgproto3.Execute{Portal: "p", MaxRows: 7}},
		{"Sync", AppendSync(nil), &pgproto3.Sync{}},
		{"Flush", AppendFlush(nil), &pgproto3.Flush{}},
		{"Terminate", AppendTerminate(nil), &pgproto3.Terminate{}},
		{"CopyDone", AppendCopyDone(nil), &pgproto3.CopyDone{}},
		{"CopyData", AppendMessage(nil, MsgCopyData, []byte("1\t2\n")), &pgproto3.CopyData{Data: []byte("1\t2\n")}},
		{"CopyFail", AppendCopyFail(nil, "no"), &pgproto3.CopyFail{Message: "no"}},
		{"PasswordMessage", AppendPassword(nil, "pw"), &pgproto3.PasswordMessage{Password: "pw"}},
		{"SASLInitialResponse", AppendSASLInitialResponse(nil, "SCRAM-SHA-256", []byte("n,,")), &pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte("n,,")}},
		{"SASLResponse", AppendSASLResponse(nil, []byte("c=")), &pgproto3.SASLResponse{Data: []byte("c=")}},
		{"StartupMessage", AppendStartup(nil, Protocol32, []Param{{"user", "u"}}), &pgproto3.StartupMessage{ProtocolVersion: 196610, Parameters: map[string]string{"user": "u"}}},
		{"CancelRequest", AppendCancelRequest(nil, 42, key), &pgproto3.CancelRequest{ProcessID: 42, SecretKey: key}},
		{"SSLRequest", AppendSSLRequest(nil), &pgproto3.SSLRequest{}},
		{"GSSENCRequest", AppendGSSENCRequest(nil), &pgproto3.GSSEncRequest{}},
		{"ErrorResponse", AppendErrorResponse(nil, report), &pgReport},
		{"NoticeResponse", AppendNoticeResponse(nil, report), &pgNotice},
		{"ReadyForQuery", AppendReadyForQuery(nil, TxActive), &pgproto3.ReadyForQuery{TxStatus: 'T'}},
		{"ParameterStatus", AppendParameterStatus(nil, "TimeZone", "UTC"), &pgproto3.ParameterStatus{Name: "TimeZone", Value: "UTC"}},
		{"BackendKeyData", AppendBackendKeyData(nil, 42, key), &pgproto3.BackendKeyData{ProcessID: 42, SecretKey: key}},
		{"AuthenticationOk", AppendAuthentication(nil, AuthOk, nil), &pgproto3.AuthenticationOk{}},
		{"AuthenticationCleartextPassword", AppendAuthentication(nil, AuthCleartextPassword, nil), &pgproto3.AuthenticationCleartextPassword{}},
		{"AuthenticationMD5Password", AppendAuthentication(nil, AuthMD5Password, key[:4]), &pgproto3.AuthenticationMD5Password{Salt: [4]byte(key[:4])}},
		{"AuthenticationSASL", AppendAuthenticationSASL(nil, "SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"), &pgproto3.AuthenticationSASL{AuthMechanisms: []string{"SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"}}},
		{"AuthenticationSASLContinue", AppendAuthentication(nil, AuthSASLContinue, []byte("r=")), &pgproto3.AuthenticationSASLContinue{Data: []byte("r=")}},
		{"AuthenticationSASLFinal", AppendAuthentication(nil, AuthSASLFinal, []byte("v=")), &pgproto3.AuthenticationSASLFinal{Data: []byte("v=")}},
		{"NegotiateProtocolVersion", AppendNegotiateProtocolVersion(nil, Protocol32, []string{"_pq_.x"}), &pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: 196610, UnrecognizedOptions: []string{"_pq_.x"}}},
		{"CommandComplete", AppendCommandComplete(nil, "SELECT 1"), &pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")}},
		{"ParseComplete", AppendParseComplete(nil), &pgproto3.ParseComplete{}},
		{"BindComplete", AppendBindComplete(nil), &pgproto3.BindComplete{}},
		{"CloseComplete", AppendCloseComplete(nil), &pgproto3.CloseComplete{}},
		{"EmptyQueryResponse", AppendEmptyQueryResponse(nil), &pgproto3.EmptyQueryResponse{}},
		{"NoData", AppendNoData(nil), &pgproto3.NoData{}},
		{"PortalSuspended", AppendPortalSuspended(nil), &pgproto3.PortalSuspended{}},
		{"ParameterDescription", AppendParameterDescription(nil, MakeOIDs(23)), &pgproto3.ParameterDescription{ParameterOIDs: []uint32{23}}},
		{"NotificationResponse", AppendNotification(nil, 42, "c", "p"), &pgproto3.NotificationResponse{PID: 42, Channel: "c", Payload: "p"}},
		{
			"RowDescription", AppendRowDescription(nil, Column{Name: "name"}, Column{"n", OIDInt8}),
			&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{
				{Name: []byte("name"), DataTypeOID: 25, DataTypeSize: -1, TypeModifier: -1},
				{Name: []byte("n"), DataTypeOID: 20, DataTypeSize: 8, TypeModifier: -1},
			}},
		},
		{"DataRow", AppendDataRow(nil, []byte("x"), nil), &pgproto3.DataRow{Values: [][]byte{[]byte("x"), nil}}},
		{"text row", AppendTextRow(nil, "x", ""), &pgproto3.DataRow{Values: [][]byte{[]byte("x"), {}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want, err := tt.want.Encode(nil)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(tt.got, want) {
				t.Errorf("got  %q\nwant %q", tt.got, want)
			}
		})
	}
}

func TestFrontendMessagesReadBackAsTheyWereBuilt(t *testing.T) {
	sql, err := ReadQuery(frontendBody(t, AppendQuery(nil, "select 1"), MsgQuery))
	if err != nil || string(sql) != "select 1" {
		t.Errorf("Query: %q, %v", sql, err)
	}
	parse, err := ReadParse(frontendBody(t, AppendParse(nil, "s", "q", MakeOIDs(1, math.MaxUint32)), MsgParse))
	if err != nil || string(parse.Name) != "s" || string(parse.Query) != "q" ||
		parse.Types.Len() != 2 || parse.Types.At(0) != 1 || parse.Types.At(1) != math.MaxUint32 {
		t.Errorf("Parse: %+v, %v", parse, err)
	}
	whole := AppendBind(nil, "p", "s", nil, [][]byte{[]byte("v")}, nil)
	bind, err := ReadBind(frontendBody(t, whole, MsgBind))
	if err != nil || string(bind.Portal) != "p" || string(bind.Statement) != "s" {
		t.Errorf("Bind: %+v, %v", bind, err)
	}
	if again := AppendBindValues(nil, bind.Portal, bind.Statement, bind.Values); !bytes.Equal(again, whole) {
		t.Errorf("Bind rebuilt: %q, want %q", again, whole)
	}
	target, err := ReadDescribe(frontendBody(t, AppendDescribe(nil, KindStatement, "s"), MsgDescribe))
	if err != nil || target.Kind != KindStatement || string(target.Name) != "s" {
		t.Errorf("Describe: %+v, %v", target, err)
	}
	target, err = ReadClose(frontendBody(t, AppendClose(nil, KindPortal, ""), MsgClose))
	if err != nil || target.Kind != KindPortal || len(target.Name) != 0 {
		t.Errorf("Close: %+v, %v", target, err)
	}
	execute, err := ReadExecute(frontendBody(t, AppendExecute(nil, "p", -1), MsgExecute))
	if err != nil || string(execute.Portal) != "p" || execute.MaxRows != -1 {
		t.Errorf("Execute: %+v, %v", execute, err)
	}
}

func TestBackendMessagesReadBackAsTheyWereBuilt(t *testing.T) {
	status, err := ReadReadyForQuery(backendBody(t, AppendReadyForQuery(nil, TxFailed), MsgReadyForQuery))
	if err != nil || status != TxFailed {
		t.Errorf("ReadyForQuery: %c, %v", status, err)
	}
	name, value, err := ReadParameterStatus(backendBody(t, AppendParameterStatus(nil, "a", "b"), MsgParameterStatus))
	if err != nil || string(name) != "a" || string(value) != "b" {
		t.Errorf("ParameterStatus: %s %s, %v", name, value, err)
	}
	tag, err := ReadCommandComplete(backendBody(t, AppendCommandComplete(nil, "SELECT 1"), MsgCommandComplete))
	if err != nil || string(tag) != "SELECT 1" {
		t.Errorf("CommandComplete: %s, %v", tag, err)
	}
	note, err := ReadNotification(backendBody(t, AppendNotification(nil, 9, "c", ""), MsgNotificationResponse))
	if err != nil || note.PID != 9 || string(note.Channel) != "c" || len(note.Payload) != 0 {
		t.Errorf("NotificationResponse: %+v, %v", note, err)
	}
	for _, n := range []int{MinCancelKey, 32, MaxCancelKey} {
		key := bytes.Repeat([]byte{7}, n)
		got, err := ReadBackendKeyData(backendBody(t, AppendBackendKeyData(nil, 9, key), MsgBackendKeyData))
		if err != nil || got.PID != 9 || !bytes.Equal(got.Key, key) {
			t.Errorf("BackendKeyData with %d bytes: %+v, %v", n, got, err)
		}
	}
	nego, err := ReadNegotiateProtocolVersion(backendBody(t, AppendNegotiateProtocolVersion(nil, Protocol30, []string{"_pq_.a", "_pq_.b"}), MsgNegotiateProtocolVersion))
	if err != nil || nego.Newest != Protocol30 || !cmp.Equal(nego.Options(), []string{"_pq_.a", "_pq_.b"}) {
		t.Errorf("NegotiateProtocolVersion: %+v, %v", nego, err)
	}
	auth, err := ReadAuthentication(backendBody(t, AppendAuthenticationSASL(nil, "A", "B"), MsgAuthentication))
	if err != nil || auth.Type != AuthSASL {
		t.Fatalf("AuthenticationSASL: %+v, %v", auth, err)
	}
	var mechanisms []string
	for name, rest, ok := NextMechanism(auth.Data); ok; name, rest, ok = NextMechanism(rest) {
		mechanisms = append(mechanisms, string(name))
	}
	if !cmp.Equal(mechanisms, []string{"A", "B"}) {
		t.Errorf("mechanisms %q", mechanisms)
	}
	want := &Error{Severity: "ERROR", Code: "53300", Message: "m", Detail: "d", Hint: "h"}
	fields, err := ReadFields(backendBody(t, AppendErrorResponse(nil, want), MsgErrorResponse))
	if got := fields.ToError(); err != nil || !cmp.Equal(got, want) {
		t.Errorf("ErrorResponse: %+v, %v", got, err)
	}
}

func TestANulInAStringCannotForgeWhatFollows(t *testing.T) {
	got := AppendErrorResponse(nil, &Error{Message: "no role \"a\x00C28000\x00\""})
	fields, err := ReadFields(backendBody(t, got, MsgErrorResponse))
	if err != nil || string(fields.Get(FieldMessage)) != `no role "a` || string(fields.Get(FieldCode)) != "XX000" {
		t.Errorf("%q: %v", got, err)
	}
}

func TestSeverityOfOldServersIsTheLocalisedOne(t *testing.T) {
	fields, err := ReadFields([]byte("SFATAL\x00C57P01\x00\x00"))
	if err != nil || string(fields.Severity()) != "FATAL" || !fields.ToError().Fatal() {
		t.Errorf("%q, %v", fields.Severity(), err)
	}
	if fields.Get(FieldHint) != nil {
		t.Error("a field that is not there has a value")
	}
}

func TestLiteralsAndIdentifiersAreQuotedForBothStringSettings(t *testing.T) {
	for _, tt := range []struct{ in, literal, identifier string }{
		{"", "''", `""`},
		{"a'b", "'a''b'", `"a'b"`},
		{`a\'b`, `E'a\\''b'`, `"a\'b"`},
		{`a"b`, `'a"b'`, `"a""b"`},
	} {
		if got := string(AppendLiteral(nil, tt.in)); got != tt.literal {
			t.Errorf("literal of %q: %s, want %s", tt.in, got, tt.literal)
		}
		if got := string(AppendIdentifier(nil, tt.in)); got != tt.identifier {
			t.Errorf("identifier of %q: %s, want %s", tt.in, got, tt.identifier)
		}
	}
}
