package endtoend

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

// stateful are statements that leave something in the server's session, what a
// foreign client would see of it, and what a fresh session says instead.
var stateful = []struct {
	name, sql, pin, look string
}{
	{"a setting", "SET work_mem = '7MB'", "set", "SHOW work_mem"},
	{"a search path", "SET search_path = pg_catalog", "set", "SHOW search_path"},
	{"a role", "SET ROLE leak_role", "set", "SELECT current_user"},
	{"a setting of one's own", "SET my.secret = 'mine'", "set", "SELECT coalesce(current_setting('my.secret', true), 'never')"},
	{"set_config", "SELECT set_config('my.other', 'mine', false)", "set", "SELECT coalesce(current_setting('my.other', true), 'never')"},
	{"a time zone", "SET TIME ZONE 'Asia/Tokyo'", "set", "SHOW TimeZone"},
	{"isolation", "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "set", "SHOW default_transaction_read_only"},
	{"a temporary table", "CREATE TEMP TABLE leak_t (n int)", "temporary_object", "SELECT count(*) FROM pg_class WHERE relname = 'leak_t'"},
	{"SELECT INTO TEMP", "SELECT 1 AS n INTO TEMP leak_i", "temporary_object", "SELECT count(*) FROM pg_class WHERE relname = 'leak_i'"},
	{"an advisory lock", "SELECT pg_advisory_lock(4711)", "advisory_lock", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"},
	{"LISTEN", "LISTEN leak", "listen", "SELECT count(*) FROM pg_listening_channels()"},
	{"PREPARE", "PREPARE leak_p AS SELECT 1", "prepared_statement", "SELECT count(*) FROM pg_prepared_statements"},
	{"a held cursor", "DECLARE leak_c CURSOR WITH HOLD FOR SELECT 1", "with_hold_cursor", "SELECT count(*) FROM pg_cursors WHERE is_holdable"},
	{"LOAD", "LOAD '$libdir/plpgsql'", "load", "SELECT 'nothing to be seen'"},
	{"a seed", "SELECT setseed(0.5)", "setseed", "SELECT 'nothing to be seen'"},
	{"a sequence", "SELECT nextval('leak_s')", "sequence", "SELECT 'nothing to be seen'"},
	{"a DO block", "DO $$ BEGIN PERFORM set_config('work_mem', '9MB', false); END $$", "unknown_statement", "SHOW work_mem"},
}

func prepareLeaks(tb testing.TB) *pgtest.Server {
	s := pgtest.Start(tb, pgtest.Options{Users: []pgtest.User{{Name: "app", Options: "SUPERUSER"}, {Name: "leak_role"}}})
	s.Exec(tb, "GRANT leak_role TO app")
	psql(tb, s, s.URL("app", "app"), "-c", "CREATE SEQUENCE leak_s", "-c", "CREATE TABLE t (n int)")
	return s
}

func TestStateOfASessionPinsItAndIsNeverSeenByAnother(t *testing.T) {
	s := prepareLeaks(t)
	in := before(t, s, slots(1), trusting)
	console := connect(t, in.URL("app", "multipooler", "default_query_exec_mode=simple_protocol"))
	for _, tt := range stateful {
		t.Run(tt.name, func(t *testing.T) {
			clean := loginRaw(t, in.Addr())
			want := clean.value(tt.look)
			owner := loginRaw(t, in.Addr())
			if got := owner.query(tt.sql); !strings.HasSuffix(got, "Z(I)") || strings.Contains(got, "E(") {
				t.Fatalf("%s: %s", tt.sql, got)
			}
			if got := pinReasons(t, console); got != tt.pin {
				t.Errorf("SHOW PINS says %q, want %q", got, tt.pin)
			}
			if in.Metric(t, "multipooler_pins", `reason="`+tt.pin+`"`) != 1 {
				t.Error("the pin is not counted")
			}
			// The only slot is the owner's while it is pinned: another client
			// waits, and gets a connection without a trace once it has gone.
			clean.send(&pgproto3.Query{String: tt.look})
			mp.Eventually(t, limitOfRest, "the other client waits", func() bool { return in.Metric(t, "multipooler_pool_waiting") == 1 })
			owner.value("SELECT 'still mine'")
			owner.send(&pgproto3.Terminate{})
			owner.expect("EOF")
			if got := clean.reply(); !strings.Contains(got, "D("+want+")") {
				t.Errorf("after %s another client sees %s, want %s", tt.sql, got, want)
			}
			clean.send(&pgproto3.Terminate{})
			clean.expect("EOF")
		})
	}
}

// pinReasons are the reasons in the one row of SHOW PINS, "" without one.
func pinReasons(tb testing.TB, console *pgx.Conn) string {
	tb.Helper()
	rows, err := console.Query(tb.Context(), "SHOW PINS")
	if err != nil {
		tb.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToMap)
	if err != nil || len(found) > 1 {
		tb.Fatalf("SHOW PINS: %v, %v", found, err)
	}
	if len(found) == 0 {
		return ""
	}
	return fmt.Sprint(found[0]["reasons"])
}

// A fresh connection may have a role, that of ALTER ROLE or of its startup
// packet; so must one that somebody has used.
func TestTheRoleOfAFreshConnectionComesBack(t *testing.T) {
	s := prepareLeaks(t)
	in := before(t, s, slots(1), trusting)
	const look = "SELECT current_user || ' ' || current_setting('role')"
	check := func(why string, params ...string) {
		t.Helper()
		for _, script := range [][]string{{"SET work_mem = '1MB'"}, {"DISCARD ALL"}, {"SET ROLE none"}, {"LISTEN x", "DISCARD ALL"}} {
			owner := connect(t, in.URL("app", "app", params...))
			do(t, owner, script...)
			owner.Close(t.Context())
			other := connect(t, in.URL("app", "app", params...))
			if got := one(t, other, look); got != "leak_role leak_role" {
				t.Errorf("%s, after %q of another client: %s", why, script, got)
			}
			other.Close(t.Context())
		}
	}
	check("startup packet", "role=leak_role")
	s.Exec(t, "ALTER ROLE app SET role = 'leak_role'")
	in = before(t, s, slots(1), trusting)
	check("ALTER ROLE")
}

// A table goes to pg_temp also when only a search_path says so.
func TestATableOfASearchPathIsNeverSeenByAnother(t *testing.T) {
	s := prepareLeaks(t)
	in := before(t, s, slots(1), trusting)
	for _, c := range []struct {
		params []string
		sql    string
	}{
		{[]string{"search_path=pg_temp"}, "CREATE TABLE hidden (n int)"},
		{[]string{"options=-csearch_path=pg_temp"}, "CREATE TABLE hidden (n int)"},
		{[]string{"search_path=pg_temp", "role=leak_role"}, "CREATE TABLE hidden (n int)"},
		{nil, "BEGIN; SET LOCAL search_path = 'pg_temp'; CREATE TABLE hidden (n int); COMMIT"},
	} {
		owner := loginRaw(t, in.Addr(), c.params...)
		if got := owner.query(c.sql); strings.Contains(got, "E(") {
			t.Fatalf("%s: %s", c.sql, got)
		}
		owner.conn.Close()
		params := slices.DeleteFunc(slices.Clone(c.params), func(p string) bool { return !strings.HasPrefix(p, "role=") })
		if len(params) > 0 {
			params = c.params // such connections are shared with those who ask for the same
		}
		other := connect(t, in.URL("app", "app", params...))
		if got := one(t, other, "SELECT coalesce(to_regclass('hidden')::text, '')"); got != "" {
			t.Errorf("%v %s: another client sees the table", c.params, c.sql)
		}
		other.Close(t.Context())
	}
}

func TestDiscardAllUnpins(t *testing.T) {
	s := prepareLeaks(t)
	in := before(t, s, slots(1), trusting)
	owner, other := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	for _, tt := range stateful {
		switch tt.pin {
		case "load", "setseed", "unknown_statement": // DISCARD ALL may not undo these
			continue
		}
		if strings.Contains(tt.sql, "my.") { // nor unset a setting's name
			continue
		}
		if got := owner.query(tt.sql); strings.Contains(got, "E(") {
			t.Fatalf("%s: %s", tt.sql, got)
		}
		if got := owner.query("DISCARD ALL"); got != "C(DISCARD ALL) Z(I)" {
			t.Fatalf("%s: %s", tt.name, got)
		}
		// Were it still pinned, this would wait for the acquire timeout.
		if got := other.query(tt.look); strings.Contains(got, "E(") {
			t.Errorf("%s: %s", tt.name, got)
		}
	}
}

func TestWhatATransactionEndsDoesNotPin(t *testing.T) {
	s := prepareLeaks(t)
	in := before(t, s, slots(1), trusting)
	owner, other := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	for _, sql := range []string{
		"BEGIN; SET LOCAL work_mem = '3MB'; COMMIT", "BEGIN; DECLARE c CURSOR FOR SELECT 1; FETCH c; COMMIT", "SELECT pg_advisory_xact_lock(1)",
		"BEGIN; SAVEPOINT a; ROLLBACK TO a; RELEASE a; COMMIT AND CHAIN; ROLLBACK", "SHOW work_mem", "EXPLAIN SELECT 1", "NOTIFY leak", "ANALYZE t",
		"SELECT 'SET work_mem', $$LISTEN x$$ /* PREPARE */ -- LOAD", "INSERT INTO t VALUES (1)", "LOCK TABLE t", "VALUES (1)", "TABLE t",
	} {
		if got := owner.query(sql); !strings.HasSuffix(got, "Z(I)") && !strings.Contains(got, "25P01") {
			t.Fatalf("%s: %s", sql, got)
		}
		if got := other.value("SELECT 'free'"); got != "free" {
			t.Errorf("after %s: %s", sql, got)
		}
	}
	if n := in.Metric(t, "multipooler_pins"); n != 0 {
		t.Errorf("%v pins", n)
	}
}

func TestSettingsOfAFailedTransactionAreNotSeen(t *testing.T) {
	s := prepareLeaks(t)
	in := before(t, s, slots(1), trusting)
	other := loginRaw(t, in.Addr())
	for _, script := range [][]string{
		{"BEGIN", "SET work_mem = '3MB'", "ROLLBACK"},
		{"BEGIN", "SET work_mem = '3MB'", "SELECT 1/0", "COMMIT"},
		{"BEGIN", "SAVEPOINT a", "SET work_mem = '3MB'", "ROLLBACK TO a", "COMMIT"},
		{"BEGIN", "SET work_mem = '3MB'", "COMMIT AND CHAIN", "ROLLBACK"},
		{"BEGIN; SET work_mem = '3MB'; SELECT 1/0; COMMIT", "ROLLBACK"},
	} {
		owner := loginRaw(t, in.Addr())
		for _, sql := range script {
			owner.query(sql)
		}
		owner.send(&pgproto3.Terminate{})
		owner.expect("EOF")
		if got := other.value("SHOW work_mem"); got != "4MB" {
			t.Errorf("after %q: work_mem %s", script, got)
		}
	}
}

func TestTheUnnamedStatementBelongsToItsSession(t *testing.T) {
	in, _ := front(t, slots(1), trusting)
	a, b := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	a.send(parse("", "SELECT 'of a' || $1"), syncNow)
	if got := a.reply(); got != "1 Z(I)" {
		t.Fatal(got)
	}
	// b's statement replaces it on the one server connection.
	b.send(parse("", "SELECT 'of b' || $1"), syncNow)
	b.reply()
	for i := range 3 {
		a.send(bind("", fmt.Sprint(i)), execute, syncNow)
		if got := a.reply(); got != fmt.Sprintf("2 D(of a%d) C(SELECT 1) Z(I)", i) {
			t.Errorf("a got %s", got)
		}
		b.send(bind("", fmt.Sprint(i)), execute, syncNow)
		if got := b.reply(); got != fmt.Sprintf("2 D(of b%d) C(SELECT 1) Z(I)", i) {
			t.Errorf("b got %s", got)
		}
	}
	// A simple query ends it, as it does directly.
	a.query("SELECT 1")
	a.send(bind("", "x"), execute, syncNow)
	if got := a.reply(); got != "E(ERROR 26000) Z(I)" {
		t.Errorf("a got %s", got)
	}
	// Who never had one gets nobody else's.
	c := loginRaw(t, in.Addr())
	c.send(bind("", "x"), execute, syncNow)
	if got := c.reply(); got != "E(ERROR 26000) Z(I)" {
		t.Errorf("c got %s", got)
	}
	b.send(bind("", "9"), execute, syncNow)
	if got := b.reply(); got != "2 D(of b9) C(SELECT 1) Z(I)" {
		t.Errorf("b got %s", got)
	}
}

func TestPortalsWithRowLimitsFlushAndFailedBatches(t *testing.T) {
	in, _ := front(t, slots(1), trusting)
	a, b := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	a.send(parse("", "SELECT g FROM generate_series(1, 5) g"), bind(""), &pgproto3.Execute{MaxRows: 2}, flush)
	a.expect("1", "2", "D(1)", "D(2)", "s")
	b.send(&pgproto3.Query{String: "SELECT 'b'"}) // waits: the batch is open
	a.send(&pgproto3.Execute{MaxRows: 2}, flush)
	a.expect("D(3)", "D(4)", "s")
	a.send(execute, syncNow)
	a.expect("D(5)", "C(SELECT 1)", "Z(I)")
	if got := b.reply(); got != "T D(b) C(SELECT 1) Z(I)" {
		t.Error(got)
	}
	// After an error all is skipped up to the Sync, once each.
	a.send(parse("", "SELECT 1/$1::int"), bind("", "0"), execute, bind("", "1"), execute, syncNow, bind("", "1"), execute, syncNow)
	if got := a.reply() + " " + a.reply(); got != "1 E(ERROR 22012) Z(I) 2 D(1) C(SELECT 1) Z(I)" {
		t.Error(got)
	}
	if got := b.query(""); got != "I Z(I)" {
		t.Error(got)
	}
}

func TestPoolModeSessionKeepsTheConnectionAndStatementRefusesTransactions(t *testing.T) {
	s := pgtest.Shared(t)
	in := mp.Start(t, mp.Options{
		Target: s.URL("app", "app"), Args: []string{trusting, "--connpool-global-capacity=3"},
		Config: "pool_mode: transaction\nusers:\n  app:\n    pool_mode: session\ndatabases:\n  postgres:\n    pool_mode: transaction\n",
	})
	a := loginRaw(t, in.Addr())
	pid := a.value("SELECT pg_backend_pid()")
	for range 5 {
		passing := loginRaw(t, in.Addr())
		passing.value("SELECT 1")
		passing.send(&pgproto3.Terminate{})
		passing.expect("EOF")
		if got := a.value("SELECT pg_backend_pid()"); got != pid {
			t.Fatalf("pid %s, before %s", got, pid)
		}
	}
	a.query("SET work_mem = '5MB'")
	if got := a.value("SHOW work_mem"); got != "5MB" {
		t.Error(got)
	}

	in = before(t, s, trusting, slots(1), "--pool-mode=statement")
	st, other := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	if got := st.query("SELECT 1"); got != "T D(1) C(SELECT 1) Z(I)" {
		t.Error(got)
	}
	got := st.query("BEGIN")
	if !strings.Contains(got, "E(") {
		t.Errorf("a transaction in statement mode: %s", got)
	}
	if got := other.value("SELECT 'free'"); got != "free" {
		t.Error(got)
	}
}
