package endtoend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// trusting lets raw clients in without a conversation.
const trusting = "--auth-type=trust"

// rawLimit bounds each wait of a raw client.
const rawLimit = 20 * time.Second

// raw is a client that sends exactly what it is told. It expects a multipooler
// that trusts it.
type raw struct {
	tb     testing.TB
	conn   net.Conn
	fe     *pgproto3.Frontend
	params map[string]string // ParameterStatus, the newest of each name
	key    pgproto3.BackendKeyData
	told   pgproto3.NegotiateProtocolVersion
}

// dialRaw opens a connection that lives until tb ends.
func dialRaw(tb testing.TB, addr string) *raw {
	tb.Helper()
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	var d net.Dialer
	conn, err := d.DialContext(limited(tb, rawLimit), network, addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return newRaw(tb, conn)
}

func newRaw(tb testing.TB, conn net.Conn) *raw {
	return &raw{tb: tb, conn: conn, fe: pgproto3.NewFrontend(conn, conn), params: map[string]string{}}
}

// loginRaw is dialRaw with a session of user and database app; params are
// further "key=value" of the startup packet.
func loginRaw(tb testing.TB, addr string, params ...string) *raw {
	tb.Helper()
	r := dialRaw(tb, addr)
	got := r.login(pgproto3.ProtocolVersion30, params...)
	if !strings.HasSuffix(got, "Z(I)") {
		tb.Fatalf("login: %s", got)
	}
	return r
}

// login sends a startup packet and returns what came, without ParameterStatus.
func (r *raw) login(version uint32, params ...string) string {
	r.tb.Helper()
	m := &pgproto3.StartupMessage{ProtocolVersion: version, Parameters: map[string]string{"user": "app", "database": "app"}}
	for _, p := range params {
		k, v, _ := strings.Cut(p, "=")
		m.Parameters[k] = v
	}
	r.send(m)
	return r.reply()
}

// send sends messages in one write.
func (r *raw) send(all ...pgproto3.FrontendMessage) {
	r.tb.Helper()
	if err := r.trySend(all...); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *raw) trySend(all ...pgproto3.FrontendMessage) error {
	var buf []byte
	for _, m := range all {
		var err error
		if buf, err = m.Encode(buf); err != nil {
			return err
		}
	}
	_ = r.conn.SetWriteDeadline(time.Now().Add(rawLimit))
	_, err := r.conn.Write(buf)
	return err
}

func (r *raw) sendBytes(p []byte) {
	r.tb.Helper()
	_ = r.conn.SetWriteDeadline(time.Now().Add(rawLimit))
	if _, err := r.conn.Write(p); err != nil {
		r.tb.Fatal(err)
	}
}

// next is the next message in short, "EOF" at the end.
func (r *raw) next() string {
	r.tb.Helper()
	_ = r.conn.SetReadDeadline(time.Now().Add(rawLimit))
	m, err := r.fe.Receive()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), err != nil && strings.Contains(err.Error(), "reset by peer"):
		return "EOF"
	case err != nil:
		r.tb.Fatal(err)
	}
	switch m := m.(type) {
	case *pgproto3.ParameterStatus:
		r.params[m.Name] = m.Value
		return "S(" + m.Name + "=" + m.Value + ")"
	case *pgproto3.BackendKeyData:
		r.key = pgproto3.BackendKeyData{ProcessID: m.ProcessID, SecretKey: append([]byte(nil), m.SecretKey...)}
		return "K"
	case *pgproto3.NegotiateProtocolVersion:
		r.told = *m
		return "v"
	case *pgproto3.ErrorResponse:
		return "E(" + m.Severity + " " + m.Code + ")"
	case *pgproto3.NoticeResponse:
		return "N(" + m.Code + ")"
	case *pgproto3.ReadyForQuery:
		return "Z(" + string(m.TxStatus) + ")"
	case *pgproto3.DataRow:
		var cells []string
		for _, v := range m.Values {
			cells = append(cells, string(v))
		}
		return "D(" + strings.Join(cells, "|") + ")"
	case *pgproto3.CommandComplete:
		return "C(" + string(m.CommandTag) + ")"
	case *pgproto3.NotificationResponse:
		return "A(" + m.Channel + "|" + m.Payload + ")"
	case *pgproto3.CopyData:
		return fmt.Sprintf("d(%q)", m.Data)
	}
	name := strings.TrimPrefix(fmt.Sprintf("%T", m), "*pgproto3.")
	return map[string]string{
		"AuthenticationOk": "R", "ParseComplete": "1", "BindComplete": "2", "CloseComplete": "3", "RowDescription": "T", "NoData": "n",
		"PortalSuspended": "s", "EmptyQueryResponse": "I", "ParameterDescription": "t", "CopyInResponse": "G", "CopyOutResponse": "H", "CopyDone": "c",
	}[name]
}

// reply reads up to ReadyForQuery or the end and returns all but
// ParameterStatus.
func (r *raw) reply() string {
	r.tb.Helper()
	var all []string
	for {
		m := r.next()
		if !strings.HasPrefix(m, "S(") {
			all = append(all, m)
		}
		if strings.HasPrefix(m, "Z(") || m == "EOF" {
			return strings.Join(all, " ")
		}
	}
}

// expect reads single messages.
func (r *raw) expect(want ...string) {
	r.tb.Helper()
	for _, w := range want {
		if got := r.next(); got != w {
			r.tb.Fatalf("got %s, want %s", got, w)
		}
	}
}

// query sends a simple query and returns its reply.
func (r *raw) query(sql string) string {
	r.tb.Helper()
	r.send(&pgproto3.Query{String: sql})
	return r.reply()
}

// value is the one row of a query that must succeed.
func (r *raw) value(sql string) string {
	r.tb.Helper()
	got := r.query(sql)
	_, row, ok := strings.Cut(got, "D(")
	if i := strings.LastIndex(row, ") C(SELECT 1) Z("); ok && i >= 0 {
		return row[:i]
	}
	if i := strings.LastIndex(row, ") C(SHOW) Z("); ok && i >= 0 {
		return row[:i]
	}
	r.tb.Fatalf("%s: %s", sql, got)
	return ""
}

// cancel sends a CancelRequest with the session's key and waits for the end of
// its connection.
func (r *raw) cancel(ctx context.Context, addr string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	return sendCancel(conn, r.key)
}

func sendCancel(conn net.Conn, key pgproto3.BackendKeyData) error {
	buf, err := (&pgproto3.CancelRequest{ProcessID: key.ProcessID, SecretKey: key.SecretKey}).Encode(nil)
	if err != nil {
		return err
	}
	if _, err := conn.Write(buf); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(rawLimit))
	_, err = io.Copy(io.Discard, conn)
	return err
}

// parse, bind and so on are the extended protocol in short.
func parse(name, sql string) pgproto3.FrontendMessage { return &pgproto3.Parse{Name: name, Query: sql} }

func bind(statement string, args ...string) pgproto3.FrontendMessage {
	b := &pgproto3.Bind{PreparedStatement: statement}
	for _, a := range args {
		b.Parameters = append(b.Parameters, []byte(a))
	}
	return b
}

var (
	execute = &pgproto3.Execute{}
	syncNow = &pgproto3.Sync{}
	flush   = &pgproto3.Flush{}
)
