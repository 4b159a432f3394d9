package admin

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgproto3"
)

// FuzzCommands gives the console any text: it must answer it without a panic,
// and what it understood must mean the same when its tokens are joined anew.
func FuzzCommands(f *testing.F) {
	for _, seed := range []string{
		"SHOW POOLS;", "show help; select 1 as x, 'a''b' y", `SHOW "pools"`, "/* /* */ */ SHOW -- x\nVERSION", "SET a TO 'b'",
		"BEGIN; ROLLBACK TO x", "select pg_catalog.version()", "SHOW 'open", "/* open", "SELECT 1,", "SHOW $$x$$", "\x00\xff;;", "1.2.3", `""`, "''",
	} {
		f.Add(seed)
	}
	c := NewConsole(ConsoleConfig{Source: fullSource(), Version: "1.2.3", OnPanic: func(r any) { panic(r) }})
	f.Fuzz(func(t *testing.T, sql string) {
		statements, err := lex(sql)
		if err != nil {
			return
		}
		for _, stmt := range statements {
			if s := stmt.String(); utf8.ValidString(sql) && !utf8.ValidString(s) {
				t.Errorf("String made %q of %q", s, sql)
			}
			again, err := lex(render(stmt))
			if err != nil || len(again) != 1 || render(again[0]) != render(stmt) {
				t.Fatalf("%q became %q, then %v, %v", sql, render(stmt), again, err)
			}
			if _, err := c.resolve(stmt); err != nil && response("ERROR", err).Code == stateInternal {
				t.Errorf("%q: %v", sql, err)
			}
		}
		s := &session{console: c, who: testAdmin, txStatus: txIdle}
		s.conn = discard{}
		s.wire = pgproto3.NewBackend(strings.NewReader(""), s.conn)
		s.simpleQuery(context.Background(), sql)
		if err := s.ready(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

// render joins the tokens of a statement so that lex gives them back.
func render(stmt statement) string {
	var parts []string
	for _, t := range stmt {
		switch t.kind {
		case tokQuoted:
			parts = append(parts, `"`+strings.ReplaceAll(t.text, `"`, `""`)+`"`)
		case tokString:
			parts = append(parts, `'`+strings.ReplaceAll(t.text, `'`, `''`)+`'`)
		default:
			parts = append(parts, t.text)
		}
	}
	return strings.Join(parts, " ")
}

// FuzzSession gives a session any bytes: it must end, without a panic, and
// what it wrote must be whole messages.
func FuzzSession(f *testing.F) {
	for _, msgs := range [][]pgproto3.FrontendMessage{
		{&pgproto3.Query{String: "SHOW POOLS"}, &pgproto3.Terminate{}},
		{&pgproto3.Parse{Name: "s", Query: "SHOW VERSION"}, &pgproto3.Describe{ObjectType: 'S', Name: "s"}, &pgproto3.Bind{PreparedStatement: "s", ResultFormatCodes: []int16{1}}, &pgproto3.Execute{MaxRows: 1}, &pgproto3.Close{ObjectType: 'P'}, &pgproto3.Flush{}, &pgproto3.Sync{}},
		{&pgproto3.FunctionCall{}, &pgproto3.CopyDone{}},
	} {
		var seed []byte
		for _, m := range msgs {
			seed, _ = m.Encode(seed)
		}
		f.Add(seed)
	}
	c := NewConsole(ConsoleConfig{Source: fullSource(), Version: "1.2.3", OnPanic: func(r any) { panic(r) }})
	f.Fuzz(func(t *testing.T, input []byte) {
		var out recorder
		who := testAdmin
		who.Received = input
		_ = c.Serve(context.Background(), &out, who)
		for rest := []byte(out.written.String()); len(rest) > 0; {
			if len(rest) < 5 {
				t.Fatalf("half a message header: %q", rest)
			}
			n := 1 + int(rest[1])<<24 + int(rest[2])<<16 + int(rest[3])<<8 + int(rest[4])
			if n < 5 || n > len(rest) {
				t.Fatalf("message %c of %d bytes, %d left", rest[0], n, len(rest))
			}
			rest = rest[n:]
		}
	})
}

// discard is a connection that takes everything and gives nothing.
type discard struct{ net.Conn }

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Read([]byte) (int, error)    { return 0, io.EOF }

func (discard) SetDeadline(time.Time) error      { return nil }
func (discard) SetWriteDeadline(time.Time) error { return nil }

// recorder is a connection that remembers what was written.
type recorder struct {
	discard
	written strings.Builder
}

func (r *recorder) Write(p []byte) (int, error) { return r.written.Write(p) }
