package admin

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

var update = flag.Bool("update", false, "rewrite the golden tables")

// wire is a client that speaks messages. It writes from a goroutine of its
// own, because a pipe has no buffer and the console may answer in between.
type wire struct {
	t    *testing.T
	conn net.Conn
	*pgproto3.Frontend
}

func newWire(t *testing.T, conn net.Conn) *wire {
	return &wire{t: t, conn: conn, Frontend: pgproto3.NewFrontend(conn, conn)}
}

// send writes the messages without waiting for anything.
func (w *wire) send(msgs ...pgproto3.FrontendMessage) {
	w.t.Helper()
	var buf []byte
	for _, m := range msgs {
		var err error
		if buf, err = m.Encode(buf); err != nil {
			w.t.Fatal(err)
		}
	}
	w.sendBytes(buf)
}

func (w *wire) sendBytes(p []byte) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = w.conn.Write(p)
	}()
	w.t.Cleanup(func() {
		w.conn.Close()
		<-written
	})
}

// until receives up to and with a message of the same type as last and gives
// them in short form.
func (w *wire) until(last pgproto3.BackendMessage) []string {
	w.t.Helper()
	var got []string
	for {
		m, err := w.Receive()
		if err != nil {
			return append(got, "error: "+err.Error())
		}
		got = append(got, short(m))
		if fmt.Sprintf("%T", m) == fmt.Sprintf("%T", last) {
			return got
		}
	}
}

func short(m pgproto3.BackendMessage) string {
	switch m := m.(type) {
	case *pgproto3.RowDescription:
		var cols []string
		for _, f := range m.Fields {
			cols = append(cols, fmt.Sprintf("%s:%d/%d", f.Name, f.DataTypeOID, f.Format))
		}
		return "RowDescription " + strings.Join(cols, " ")
	case *pgproto3.DataRow:
		return fmt.Sprintf("DataRow %q", m.Values)
	case *pgproto3.CommandComplete:
		return "CommandComplete " + string(m.CommandTag)
	case *pgproto3.ErrorResponse:
		return fmt.Sprintf("%s %s", m.Severity, m.Code)
	case *pgproto3.NoticeResponse:
		return "Notice " + m.Message
	case *pgproto3.ReadyForQuery:
		return "Ready " + string(m.TxStatus)
	case *pgproto3.ParameterStatus:
		return "Parameter " + m.Name + "=" + m.Value
	case *pgproto3.BackendKeyData:
		return fmt.Sprintf("Key %d", m.ProcessID)
	default:
		return strings.TrimPrefix(fmt.Sprintf("%T", m), "*pgproto3.")
	}
}

var untilReady = &pgproto3.ReadyForQuery{}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if g, w := strings.Join(got, "\n\t"), strings.Join(want, "\n\t"); g != w {
		t.Errorf("%s: got\n\t%s\nwant\n\t%s", what, g, w)
	}
}

// dialConsole starts a session and reads its greeting.
func dialConsole(t *testing.T, c *Console, who ConsoleSession) *wire {
	t.Helper()
	conn, _ := serve(t.Context(), t, c, who)
	w := newWire(t, conn)
	w.until(untilReady)
	return w
}

func TestSessionGreetsWithParametersKeyAndReady(t *testing.T) {
	conn, done := serve(t.Context(), t, newTestConsole(t, nil), testAdmin)
	w := newWire(t, conn)
	expect(t, "greeting", w.until(untilReady),
		"Parameter server_version=1.2.3/multipooler",
		"Parameter server_encoding=UTF8",
		"Parameter client_encoding=UTF8",
		"Parameter standard_conforming_strings=on",
		"Parameter DateStyle=ISO",
		"Parameter TimeZone=GMT",
		"Parameter integer_datetimes=on",
		"Parameter in_hot_standby=off",
		"Parameter default_transaction_read_only=off",
		"Key 99",
		"Ready I",
	)
	w.send(&pgproto3.Terminate{})
	if err := <-done; err != nil {
		t.Errorf("Serve returned %v after Terminate", err)
	}
}

func TestBytesBehindTheLoginAreServedFirst(t *testing.T) {
	who := testAdmin
	who.ProcessID = 0
	who.Received, _ = (&pgproto3.Query{String: "show version"}).Encode(nil)
	w := newWire(t, func() net.Conn { c, _ := serve(t.Context(), t, newTestConsole(t, nil), who); return c }())
	w.until(untilReady)
	expect(t, "early query", w.until(untilReady),
		"RowDescription version:25/0", `DataRow ["multipooler 1.2.3"]`, "CommandComplete SHOW", "Ready I")
}

func TestServerVersionStartsWithANumber(t *testing.T) {
	for version, want := range map[string]string{
		"1.2.3": "1.2.3/multipooler", "1.2.3-rc1": "1.2.3/multipooler", "dev": "0.0.0/multipooler",
		"": "0.0.0/multipooler", ".5": "0.0.0/multipooler",
	} {
		if got := serverVersion(version); got != want {
			t.Errorf("serverVersion(%q) = %q, want %q", version, got, want)
		}
	}
}

// TestTablesLookLikePgBouncers compares every table with its golden file; the
// header lines are the contract with exporters.
func TestTablesLookLikePgBouncers(t *testing.T) {
	c := newTestConsole(t, func(cfg *ConsoleConfig) {
		clock := noon.Add(-time.Minute) // counters of fullSource came up within a minute
		cfg.Now = func() time.Time { defer func() { clock = noon }(); return clock }
	})
	w := dialConsole(t, c, testAdmin)
	for name := range c.tables {
		t.Run(name, func(t *testing.T) {
			w.send(&pgproto3.Query{String: "SHOW " + name})
			var b bytes.Buffer
			for {
				m, err := w.Receive()
				if err != nil {
					t.Fatal(err)
				}
				switch m := m.(type) {
				case *pgproto3.RowDescription:
					for _, f := range m.Fields {
						kind := map[uint32]string{oidText: "", oidInt8: "#"}[f.DataTypeOID]
						fmt.Fprintf(&b, "%s%s|", f.Name, kind)
					}
					b.WriteByte('\n')
				case *pgproto3.DataRow:
					for _, v := range m.Values {
						if v == nil {
							v = []byte("NULL")
						}
						fmt.Fprintf(&b, "%s|", v)
					}
					b.WriteByte('\n')
				case *pgproto3.NoticeResponse:
					fmt.Fprintf(&b, "NOTICE: %s%s\n", m.Message, m.Detail)
				case *pgproto3.ErrorResponse:
					t.Fatal(m.Message)
				}
				if _, ok := m.(*pgproto3.ReadyForQuery); ok {
					break
				}
			}
			golden := filepath.Join("testdata", "show_"+strings.ToLower(name)+".txt")
			if *update {
				if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("got\n%s\nwant\n%s", &b, want)
			}
		})
	}
}

func TestSimpleQueries(t *testing.T) {
	version := []string{"RowDescription version:25/0", `DataRow ["multipooler 1.2.3"]`, "CommandComplete SHOW"}
	then := func(parts ...any) (all []string) {
		for _, p := range parts {
			if s, ok := p.(string); ok {
				all = append(all, s)
			} else {
				all = append(all, p.([]string)...)
			}
		}
		return all
	}
	for _, tt := range []struct {
		name, sql string
		want      []string
	}{
		{"a command in any case with a semicolon", "sHoW vErSiOn ;", then(version, "Ready I")},
		{"a quoted name", `SHOW "version"`, then(version, "Ready I")},
		{"PgBouncer's SELECT spelling", "select version;", then(version, "Ready I")},
		{"comments", "/* a /* nested */ one */ SHOW -- to the end\n VERSION -- again", then(version, "Ready I")},
		{"several commands", "SHOW VERSION; ;SHOW VERSION;", then(version, version, "Ready I")},
		{"an error stops the rest", "SHOW VERSION; NONSENSE; SHOW VERSION", then(version, "ERROR 42601", "Ready I")},
		{"the empty query", "", then("EmptyQueryResponse", "Ready I")},
		{"only a comment", "-- ping", then("EmptyQueryResponse", "Ready I")},
		{"an unknown table", "SHOW NONSENSE", then("ERROR 42601", "Ready I")},
		{"too many words", "SHOW POOLS now", then("ERROR 42601", "Ready I")},
		{"SHOW alone", "SHOW", then("ERROR 42601", "Ready I")},
		{"an open quote", "SHOW 'x", then("ERROR 42601", "Ready I")},
		{"an open comment", "SHOW /* /* */", then("ERROR 42601", "Ready I")},
		{"symbols", "?? !!", then("ERROR 42601", "Ready I")},
		{"real SQL", "SELECT * FROM pg_class", then("ERROR 0A000", "Ready I")},
		{"a constant with an alias", "SELECT 1 AS one, 'it''s' x, 2", then(
			"RowDescription one:20/0 x:25/0 ?column?:20/0", `DataRow ["1" "it's" "2"]`, "CommandComplete SELECT 1", "Ready I")},
		{"who and where", "SELECT pg_catalog.current_database(), current_user, pg_backend_pid()", then(
			"RowDescription current_database:25/0 current_user:25/0 pg_backend_pid:20/0",
			`DataRow ["multipooler" "root" "99"]`, "CommandComplete SELECT 1", "Ready I")},
		{"a constant that is too large", "SELECT 99999999999999999999", then("ERROR 0A000", "Ready I")},
		{"half a select list", "SELECT 1,", then("ERROR 0A000", "Ready I")},
		{"half a call", "SELECT version(", then("ERROR 0A000", "Ready I")},
		{"half an alias", "SELECT 1 AS", then("ERROR 0A000", "Ready I")},
		{"half a schema", "SELECT pg_catalog.", then("ERROR 0A000", "Ready I")},
		{"settings that drivers set", "SET extra_float_digits = 3; SET SESSION timezone TO 'UTC'; SET NAMES 'x'; SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", then(
			"CommandComplete SET", "CommandComplete SET", "CommandComplete SET", "CommandComplete SET", "Ready I")},
		{"a setting nobody knows", "SET nonsense = 1", then("ERROR 42704", "Ready I")},
		{"settings that drivers ask for", "SHOW transaction isolation level; show DateStyle; SHOW server_version_num", then(
			"RowDescription transaction_isolation:25/0", `DataRow ["read committed"]`, "CommandComplete SHOW",
			"RowDescription datestyle:25/0", `DataRow ["ISO"]`, "CommandComplete SHOW",
			"RowDescription server_version_num:25/0", `DataRow ["10203"]`, "CommandComplete SHOW", "Ready I")},
		{"what poolers send between borrowers", "DISCARD ALL; RESET ALL; UNLISTEN *; CLOSE ALL; DEALLOCATE ALL", then(
			"CommandComplete DISCARD ALL", "CommandComplete RESET", "CommandComplete UNLISTEN",
			"CommandComplete CLOSE CURSOR ALL", "CommandComplete DEALLOCATE", "Ready I")},
		{"a transaction is remembered", "BEGIN; SAVEPOINT a; ROLLBACK TO a", then(
			"CommandComplete BEGIN", "CommandComplete SAVEPOINT", "CommandComplete ROLLBACK", "Ready T")},
		{"and ended", "COMMIT", then("CommandComplete COMMIT", "Ready I")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := dialConsole(t, newTestConsole(t, nil), testAdmin)
			w.send(&pgproto3.Query{String: tt.sql})
			expect(t, tt.sql, w.until(untilReady), tt.want...)
		})
	}
}

func TestUnknownCommandNamesItAndPointsToHelp(t *testing.T) {
	w := dialConsole(t, newTestConsole(t, nil), testAdmin)
	w.send(&pgproto3.Query{String: "FROB 'a''b' " + strings.Repeat("long ", 50)})
	m, err := w.Receive()
	if err != nil {
		t.Fatal(err)
	}
	e := m.(*pgproto3.ErrorResponse)
	if !strings.HasPrefix(e.Message, `unknown command "FROB 'a''b' long`) || len(e.Message) > 100 || !strings.Contains(e.Hint, "SHOW HELP") {
		t.Errorf("got %q, hint %q", e.Message, e.Hint)
	}
}

func TestVerbsNeedAnAdministrator(t *testing.T) {
	var ran []string
	c := newTestConsole(t, nil)
	c.RegisterVerb(Verb{Name: "PAUSE", Usage: "PAUSE [database]", Help: "stop", Run: func(_ context.Context, s ConsoleSession, args []string) error {
		ran = append(ran, s.User+": "+strings.Join(args, "|"))
		if len(args) > 1 {
			return &Error{State: "22023", Message: "one database at most"}
		}
		return nil
	}})
	c.RegisterVerb(Verb{Name: "SET", Usage: "SET key = value", ReadOnly: true, Run: func(_ context.Context, _ ConsoleSession, args []string) error {
		ran = append(ran, strings.Join(args, "|"))
		return errors.New("not today")
	}})

	w := dialConsole(t, c, testAdmin)
	w.send(&pgproto3.Query{String: `pause "My DB"; pause a b`})
	expect(t, "as administrator", w.until(untilReady), "CommandComplete PAUSE", "ERROR 22023", "Ready I")

	reader := testAdmin
	reader.User, reader.Admin = "bob", false
	w = dialConsole(t, c, reader)
	w.send(&pgproto3.Query{String: "pause x"})
	expect(t, "as reader", w.until(untilReady), "ERROR 42501", "Ready I")
	w.send(&pgproto3.Query{String: "SET log_level = 'debug'"})
	expect(t, "read-only verb", w.until(untilReady), "ERROR XX000", "Ready I")

	if got, want := strings.Join(ran, "\n"), "root: My DB\nroot: a|b\nlog_level|=|debug"; got != want {
		t.Errorf("ran %q, want %q", got, want)
	}
}

func TestPanicsOfCommandsAreContained(t *testing.T) {
	var panics []any
	c := newTestConsole(t, func(cfg *ConsoleConfig) { cfg.OnPanic = func(r any) { panics = append(panics, r) } })
	row := func(name string, rows func(context.Context) ([][]Value, error)) {
		c.Register(Command{Name: name, Columns: columns("n#"), Rows: rows})
	}
	row("BOOM", func(context.Context) ([][]Value, error) { panic("boom") })
	row("WIDE", func(context.Context) ([][]Value, error) { return [][]Value{{Int(1), Int(2)}}, nil })
	row("MISTYPED", func(context.Context) ([][]Value, error) { return [][]Value{{Text("x")}}, nil })
	w := dialConsole(t, c, testAdmin)
	for _, name := range []string{"BOOM", "WIDE", "MISTYPED"} {
		w.send(&pgproto3.Query{String: "SHOW " + name})
		expect(t, name, w.until(untilReady), "ERROR XX000", "Ready I")
	}
	if len(panics) != 3 || panics[0] != "boom" {
		t.Errorf("reported %v", panics)
	}
}

func TestRegisteringNonsenseIsABug(t *testing.T) {
	c := newTestConsole(t, nil)
	rows := func(context.Context) ([][]Value, error) { return nil, nil }
	run := func(context.Context, ConsoleSession, []string) error { return nil }
	for name, register := range map[string]func(){
		"a name in lower case": func() { c.Register(Command{Name: "pools2", Columns: columns("a"), Rows: rows}) },
		"two words":            func() { c.Register(Command{Name: "A B", Columns: columns("a"), Rows: rows}) },
		"a taken table":        func() { c.Register(Command{Name: "POOLS", Columns: columns("a"), Rows: rows}) },
		"no columns":           func() { c.Register(Command{Name: "NEW", Rows: rows}) },
		"no rows":              func() { c.Register(Command{Name: "NEW", Columns: columns("a")}) },
		"the verb SHOW":        func() { c.RegisterVerb(Verb{Name: "SHOW", Run: run}) },
		"the verb BEGIN":       func() { c.RegisterVerb(Verb{Name: "BEGIN", Run: run}) },
		"a verb without Run":   func() { c.RegisterVerb(Verb{Name: "PAUSE"}) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if r := fmt.Sprint(recover()); !strings.HasPrefix(r, "bug: ") {
					t.Errorf("recovered %v", r)
				}
			}()
			register()
		})
	}
}

func TestClientTextReachesTheConsoleAsUTF8(t *testing.T) {
	src := &fakeSource{clients: []ClientRow{{ID: 1, ApplicationName: "a\xffb\x00c"}}}
	c := newTestConsole(t, func(cfg *ConsoleConfig) { cfg.Source = src })
	w := dialConsole(t, c, testAdmin)
	w.send(&pgproto3.Query{String: "SHOW CLIENTS"})
	if got := w.until(untilReady); !strings.Contains(got[1], `"a\uFFFDb\uFFFDc"`) && !strings.Contains(got[1], `"a�b�c"`) {
		t.Errorf("got %s", got[1])
	}
}

func TestProtocolViolationsEndTheSession(t *testing.T) {
	message := func(typ byte, length uint32, body string) []byte {
		return append([]byte{typ, byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)}, body...)
	}
	for name, p := range map[string][]byte{
		"an unknown type":          message('!', 4, ""),
		"a length below 4":         message('Q', 3, ""),
		"a message that is long":   message('Q', maxMessage+5, ""),
		"a Bind that is truncated": message('B', 5, "x"),
		"a password":               message('p', 5, "\x00"),
	} {
		t.Run(name, func(t *testing.T) {
			conn, done := serve(t.Context(), t, newTestConsole(t, nil), testAdmin)
			w := newWire(t, conn)
			w.until(untilReady)
			w.sendBytes(p)
			if got := w.until(&pgproto3.ErrorResponse{}); got[0] != "FATAL 08P01" {
				t.Errorf("got %v", got)
			}
			e, ok := errors.AsType[*Error](<-done)
			if !ok || e.SQLState() != "08P01" {
				t.Errorf("Serve returned %v", e)
			}
		})
	}
}

func TestLongestAllowedMessageIsServed(t *testing.T) {
	w := dialConsole(t, newTestConsole(t, nil), testAdmin)
	const cmd = "SHOW VERSION"
	w.send(&pgproto3.Query{String: cmd + strings.Repeat(" ", maxMessage-len(cmd)-1)})
	if got := w.until(untilReady); len(got) != 4 {
		t.Errorf("got %v", got)
	}
}

func TestStrayMessagesDoNotHurt(t *testing.T) {
	w := dialConsole(t, newTestConsole(t, nil), testAdmin)
	w.send(&pgproto3.CopyData{Data: []byte("x")}, &pgproto3.CopyDone{}, &pgproto3.CopyFail{Message: "x"}, &pgproto3.FunctionCall{Function: 1})
	expect(t, "function call", w.until(untilReady), "ERROR 0A000", "Ready I")
}

func TestClientThatVanishesEndsTheSessionQuietly(t *testing.T) {
	conn, done := serve(t.Context(), t, newTestConsole(t, nil), testAdmin)
	newWire(t, conn).until(untilReady)
	conn.Close()
	if err := <-done; err != nil {
		t.Errorf("Serve returned %v", err)
	}
}

func TestShutdownTellsTheClientAndReturnsTheCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	conn, done := serve(ctx, t, newTestConsole(t, nil), testAdmin)
	w := newWire(t, conn)
	w.until(untilReady)
	why := errors.New("draining")
	cancel(why)
	if got := w.until(&pgproto3.ErrorResponse{}); got[0] != "FATAL 57P01" {
		t.Errorf("client read %v", got)
	}
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("Serve returned %v, want %v", err, why)
	}
}

func TestCommandsSeeTheEndOfTheSession(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := newTestConsole(t, nil)
	started := make(chan struct{})
	c.RegisterVerb(Verb{Name: "WAIT_CLOSE", Usage: "WAIT_CLOSE", Run: func(ctx context.Context, _ ConsoleSession, _ []string) error {
		close(started)
		<-ctx.Done()
		return context.Cause(ctx)
	}})
	conn, done := serve(ctx, t, c, testAdmin)
	w := newWire(t, conn)
	w.until(untilReady)
	w.send(&pgproto3.Query{String: "WAIT_CLOSE"})
	<-started
	cancel()
	w.until(&pgproto3.ReadyForQuery{})
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Serve returned %v", err)
	}
}

func TestClientThatDoesNotReadIsGivenUpAfterTheWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		defer server.Close()
		start := time.Now()
		err := newTestConsole(t, nil).Serve(t.Context(), server, testAdmin)
		if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() {
			t.Errorf("Serve returned %v", err)
		}
		if took := time.Since(start); took != writeTimeout {
			t.Errorf("gave up after %v, want %v", took, writeTimeout)
		}
	})
}

func TestShutdownDoesNotWaitForAClientThatDoesNotRead(t *testing.T) {
	for name, tt := range map[string]struct {
		end  time.Duration // of ctx, after the reply was begun; 0 = before
		want time.Duration
	}{
		"while the command runs":       {0, farewellTimeout},
		"in the middle of the writing": {5 * time.Second, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := newTestConsole(t, nil)
				c.RegisterVerb(Verb{Name: "STOP", Usage: "STOP", Run: func(context.Context, ConsoleSession, []string) error {
					if tt.end == 0 {
						cancel()
						synctest.Wait() // the interruption is through
					} else {
						time.AfterFunc(tt.end, cancel)
					}
					return nil
				}})
				conn, done := serve(ctx, t, c, testAdmin)
				w := newWire(t, conn)
				w.until(untilReady)
				w.send(&pgproto3.Query{String: "STOP"})
				start := time.Now()
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Errorf("Serve returned %v", err)
				}
				if took := time.Since(start); took != tt.want {
					t.Errorf("took %v, want %v", took, tt.want)
				}
			})
		})
	}
}

func TestLargeTablesAreWrittenInPortions(t *testing.T) {
	src := &fakeSource{}
	for i := range 5000 {
		src.clients = append(src.clients, ClientRow{ID: uint64(i + 1), ApplicationName: strings.Repeat("x", 64)})
	}
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close() })
	counting := &largestWrite{Conn: server}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer server.Close()
		_ = newTestConsole(t, func(cfg *ConsoleConfig) { cfg.Source = src }).Serve(t.Context(), counting, testAdmin)
	}()
	w := newWire(t, client)
	w.until(untilReady)
	w.send(&pgproto3.Query{String: "SHOW CLIENTS"})
	if got := w.until(untilReady); len(got) != 5003 {
		t.Errorf("%d messages", len(got))
	}
	client.Close()
	<-ended
	if counting.size > 2*flushSize {
		t.Errorf("one write had %d bytes", counting.size)
	}
}

// largestWrite remembers the size of the largest write.
type largestWrite struct {
	net.Conn
	size int
}

func (l *largestWrite) Write(p []byte) (int, error) {
	l.size = max(l.size, len(p))
	return l.Conn.Write(p)
}
