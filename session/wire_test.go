package session

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/multipooler/multipooler/protocol"
)

// Messages as text, for the golden transcripts: the name of the message and its
// fields, strings quoted as in Go. encode and decode are inverse to each other
// for what the transcripts use.

// words splits a line into words and quoted strings; a quoted string with a
// factor, "x"*3, is repeated.
func words(t testing.TB, line string) []string {
	t.Helper()
	var out []string
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		if line[0] != '"' {
			word, rest, _ := strings.Cut(line, " ")
			out, line = append(out, word), rest
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			t.Fatalf("bad string in %s: %v", line, err)
		}
		line = line[len(quoted):]
		text, _ := strconv.Unquote(quoted)
		if strings.HasPrefix(line, "*") {
			word, rest, _ := strings.Cut(line[1:], " ")
			n, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			text, line = strings.Repeat(text, n), rest
		}
		out = append(out, text)
	}
	return out
}

// encodeClient builds the messages of a client, separated by " | ".
func encodeClient(t testing.TB, line string) []byte { return encode(t, line, appendClient) }

// encodeServer builds the messages of a server.
func encodeServer(t testing.TB, line string) []byte { return encode(t, line, appendServer) }

func encode(t testing.TB, line string, one func(t testing.TB, dst []byte, w []string) []byte) []byte {
	t.Helper()
	var out []byte
	for part := range strings.SplitSeq(line, " | ") {
		out = one(t, out, words(t, part))
	}
	return out
}

func arg(w []string, i int) string {
	if i < len(w) {
		return w[i]
	}
	return ""
}

func number(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func appendClient(t testing.TB, dst []byte, w []string) []byte {
	t.Helper()
	switch w[0] {
	case "Query":
		return protocol.AppendQuery(dst, arg(w, 1))
	case "Parse":
		return protocol.AppendParse(dst, arg(w, 1), arg(w, 2), nil)
	case "Bind":
		var values [][]byte
		for _, v := range w[min(3, len(w)):] {
			values = append(values, []byte(v))
		}
		return protocol.AppendBind(dst, arg(w, 1), arg(w, 2), nil, values, nil)
	case "Describe":
		return protocol.AppendDescribe(dst, w[1][0], arg(w, 2))
	case "Execute":
		n := 0
		if len(w) > 2 {
			n = number(t, w[2])
		}
		return protocol.AppendExecute(dst, arg(w, 1), int32(n))
	case "Close":
		return protocol.AppendClose(dst, w[1][0], arg(w, 2))
	case "Sync":
		return protocol.AppendSync(dst)
	case "Flush":
		return protocol.AppendFlush(dst)
	case "Terminate":
		return protocol.AppendTerminate(dst)
	case "CopyData":
		return protocol.AppendMessage(dst, protocol.MsgCopyData, []byte(arg(w, 1)))
	case "CopyDone":
		return protocol.AppendCopyDone(dst)
	case "CopyFail":
		return protocol.AppendCopyFail(dst, arg(w, 1))
	case "FunctionCall":
		body := binary.BigEndian.AppendUint32(nil, uint32(number(t, w[1])))
		return protocol.AppendMessage(dst, protocol.MsgFunctionCall, append(body, 0, 0, 0, 0, 0, 0))
	case "Message":
		return protocol.AppendMessage(dst, protocol.Type(w[1][0]), []byte(arg(w, 2)))
	case "Bytes":
		return append(dst, arg(w, 1)...)
	}
	t.Fatalf("unknown client message %q", w)
	return nil
}

func appendServer(t testing.TB, dst []byte, w []string) []byte {
	t.Helper()
	switch w[0] {
	case "ReadyForQuery":
		return protocol.AppendReadyForQuery(dst, protocol.TxStatus(w[1][0]))
	case "ParseComplete":
		return protocol.AppendParseComplete(dst)
	case "BindComplete":
		return protocol.AppendBindComplete(dst)
	case "CloseComplete":
		return protocol.AppendCloseComplete(dst)
	case "NoData":
		return protocol.AppendNoData(dst)
	case "ParameterDescription":
		return protocol.AppendParameterDescription(dst, nil)
	case "RowDescription":
		return protocol.AppendRowDescription(dst, protocol.Column{Name: arg(w, 1)})
	case "DataRow":
		return protocol.AppendTextRow(dst, w[1:]...)
	case "CommandComplete":
		return protocol.AppendCommandComplete(dst, arg(w, 1))
	case "EmptyQueryResponse":
		return protocol.AppendEmptyQueryResponse(dst)
	case "PortalSuspended":
		return protocol.AppendPortalSuspended(dst)
	case "Error":
		return protocol.AppendErrorResponse(dst, &protocol.Error{Severity: w[1], Code: w[2], Message: arg(w, 3)})
	case "Notice":
		return protocol.AppendNoticeResponse(dst, &protocol.Error{Severity: protocol.SeverityNotice, Code: "00000", Message: arg(w, 1)})
	case "ParameterStatus":
		return protocol.AppendParameterStatus(dst, w[1], arg(w, 2))
	case "Notification":
		return protocol.AppendNotification(dst, 7, w[1], arg(w, 2))
	case "CopyInResponse":
		return protocol.AppendMessage(dst, protocol.MsgCopyInResponse, []byte{0, 0, 0})
	case "CopyOutResponse":
		return protocol.AppendMessage(dst, protocol.MsgCopyOutResponse, []byte{0, 0, 0})
	case "CopyBothResponse":
		return protocol.AppendMessage(dst, protocol.MsgCopyBothResponse, []byte{0, 0, 0})
	case "CopyData":
		return protocol.AppendMessage(dst, protocol.MsgCopyData, []byte(arg(w, 1)))
	case "CopyDone":
		return protocol.AppendCopyDone(dst)
	case "FunctionCallResponse":
		return protocol.AppendMessage(dst, protocol.MsgFunctionCallResponse, []byte{0xff, 0xff, 0xff, 0xff})
	case "Message":
		return protocol.AppendMessage(dst, protocol.Type(w[1][0]), []byte(arg(w, 2)))
	case "Bytes":
		return append(dst, arg(w, 1)...)
	}
	t.Fatalf("unknown server message %q", w)
	return nil
}

// quote is strconv.Quote, shortened in the middle of long strings.
func quote[T []byte | string](s T) string {
	const most = 700
	if len(s) > most {
		return fmt.Sprintf("%s… (%d bytes)", strconv.Quote(string(s[:24])), len(s))
	}
	return strconv.Quote(string(s))
}

// clientText describes one message to a server.
func clientText(typ protocol.Type, body []byte) string {
	switch typ {
	case protocol.MsgQuery:
		sql, err := protocol.ReadQuery(body)
		if err == nil {
			return "Query " + quote(sql)
		}
	case protocol.MsgParse:
		if m, err := protocol.ReadParse(body); err == nil {
			return "Parse " + quote(m.Name) + " " + quote(m.Query)
		}
	case protocol.MsgBind:
		if m, err := protocol.ReadBind(body); err == nil {
			return "Bind " + quote(m.Portal) + " " + quote(m.Statement) + bindValues(m.Values)
		}
	case protocol.MsgDescribe:
		if m, err := protocol.ReadDescribe(body); err == nil {
			return "Describe " + string(m.Kind) + " " + quote(m.Name)
		}
	case protocol.MsgClose:
		if m, err := protocol.ReadClose(body); err == nil {
			return "Close " + string(m.Kind) + " " + quote(m.Name)
		}
	case protocol.MsgExecute:
		if m, err := protocol.ReadExecute(body); err == nil {
			return fmt.Sprintf("Execute %s %d", quote(m.Portal), m.MaxRows)
		}
	case protocol.MsgSync:
		return "Sync"
	case protocol.MsgFlush:
		return "Flush"
	case protocol.MsgTerminate:
		return "Terminate"
	case protocol.MsgCopyData:
		return "CopyData " + quote(body)
	case protocol.MsgCopyDone:
		return "CopyDone"
	case protocol.MsgCopyFail:
		return "CopyFail " + quote(strings.TrimSuffix(string(body), "\x00"))
	case protocol.MsgFunctionCall:
		if len(body) >= 4 {
			return fmt.Sprintf("FunctionCall %d", binary.BigEndian.Uint32(body))
		}
	}
	return fmt.Sprintf("Message %c %s", typ, quote(body))
}

// bindValues reads the parameters of a Bind without formats.
func bindValues(p []byte) string {
	var b strings.Builder
	if len(p) < 4 {
		return ""
	}
	n := int(binary.BigEndian.Uint16(p[2:]))
	for p = p[4:]; n > 0 && len(p) >= 4; n-- {
		k := int(binary.BigEndian.Uint32(p))
		if k > len(p)-4 {
			break
		}
		b.WriteString(" " + quote(p[4:4+k]))
		p = p[4+k:]
	}
	return b.String()
}

// serverText describes one message to a client.
func serverText(typ protocol.Type, body []byte) string {
	switch typ {
	case protocol.MsgReadyForQuery:
		return "ReadyForQuery " + string(body)
	case protocol.MsgParseComplete:
		return "ParseComplete"
	case protocol.MsgBindComplete:
		return "BindComplete"
	case protocol.MsgCloseComplete:
		return "CloseComplete"
	case protocol.MsgNoData:
		return "NoData"
	case protocol.MsgParameterDescription:
		return "ParameterDescription"
	case protocol.MsgRowDescription:
		if len(body) > 2 {
			name, _, _ := protocol.CString(body[2:])
			return "RowDescription " + quote(name)
		}
	case protocol.MsgDataRow:
		return "DataRow" + rowValues(body)
	case protocol.MsgCommandComplete:
		tag, _ := protocol.ReadCommandComplete(body)
		return "CommandComplete " + quote(tag)
	case protocol.MsgEmptyQueryResponse:
		return "EmptyQueryResponse"
	case protocol.MsgPortalSuspended:
		return "PortalSuspended"
	case protocol.MsgErrorResponse, protocol.MsgNoticeResponse:
		e := protocol.Fields(body).ToError()
		text := fmt.Sprintf("%s %s %s", e.Severity, e.Code, quote(e.Message))
		if e.Hint != "" {
			text += " hint " + quote(e.Hint)
		}
		if typ == protocol.MsgNoticeResponse {
			return "Notice " + text
		}
		return "Error " + text
	case protocol.MsgParameterStatus:
		name, value, _ := protocol.ReadParameterStatus(body)
		return fmt.Sprintf("ParameterStatus %s %s", name, quote(value))
	case protocol.MsgBackendKeyData:
		k, _ := protocol.ReadBackendKeyData(body)
		return fmt.Sprintf("BackendKeyData %d %s", k.PID, quote(k.Key))
	case protocol.MsgNotificationResponse:
		m, _ := protocol.ReadNotification(body)
		return fmt.Sprintf("Notification %s %s", m.Channel, quote(m.Payload))
	case protocol.MsgCopyInResponse:
		return "CopyInResponse"
	case protocol.MsgCopyOutResponse:
		return "CopyOutResponse"
	case protocol.MsgCopyData:
		return "CopyData " + quote(body)
	case protocol.MsgCopyDone:
		return "CopyDone"
	case protocol.MsgFunctionCallResponse:
		return "FunctionCallResponse"
	}
	return fmt.Sprintf("Message %c %s", typ, quote(body))
}

func rowValues(p []byte) string {
	var b strings.Builder
	if len(p) < 2 {
		return ""
	}
	n := int(binary.BigEndian.Uint16(p))
	for p = p[2:]; n > 0 && len(p) >= 4; n-- {
		k := int(binary.BigEndian.Uint32(p))
		if k > len(p)-4 {
			break
		}
		b.WriteString(" " + quote(p[4:4+k]))
		p = p[4+k:]
	}
	return b.String()
}

// stream collects the bytes of one direction and hands out whole messages.
type stream struct {
	rest []byte
	said int // how much of rest left has described
	text func(typ protocol.Type, body []byte) string
}

func (s *stream) feed(p []byte, each func(text string)) {
	s.rest = append(s.rest, p...)
	for len(s.rest) >= protocol.HeaderLen {
		n := 1 + int(binary.BigEndian.Uint32(s.rest[1:]))
		if n < protocol.HeaderLen || len(s.rest) < n {
			return
		}
		each(s.text(protocol.Type(s.rest[0]), s.rest[protocol.HeaderLen:n]))
		s.rest, s.said = s.rest[n:], 0
	}
}

// left describes the beginning of a message that has not been completed.
func (s *stream) left() string {
	if len(s.rest) == s.said {
		return ""
	}
	s.said = len(s.rest)
	c := rune(s.rest[0])
	if !unicode.IsPrint(c) {
		c = '?'
	}
	return fmt.Sprintf("%d bytes of a message %c", len(s.rest), c)
}

func TestTextOfMessagesIsReadBackAsTheSameBytes(t *testing.T) {
	for _, line := range []string{
		`Query "select 1"`, `Parse "s" "select $1"`, `Bind "p" "s" "a" "b"`, `Describe S "s"`, `Describe P ""`, `Close S "x"`,
		`Execute "" 5`, `Sync`, `Flush`, `Terminate`, `CopyData "1\n"`, `CopyDone`, `CopyFail "no"`,
	} {
		st := stream{text: clientText}
		st.feed(encodeClient(t, line), func(text string) {
			if text != line {
				t.Errorf("client: got %s, want %s", text, line)
			}
		})
	}
	for _, line := range []string{
		`ReadyForQuery T`, `RowDescription "a"`, `DataRow "1" "2"`, `CommandComplete "SELECT 1"`, `Error ERROR 42601 "no"`,
		`ParameterStatus TimeZone "UTC"`, `Notification ch "p"`, `CopyInResponse`, `CopyData "x"`, `PortalSuspended`,
	} {
		st := stream{text: serverText}
		st.feed(encodeServer(t, line), func(text string) {
			if text != line {
				t.Errorf("server: got %s, want %s", text, line)
			}
		})
	}
}
