package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/test/pgtest"
)

// seams may stand between two tokens.
var seams = []string{" ", "\n", "\t", "\r", "/**/", "/* ; ' */", "/*/**/*/", "--;'\n", " -- $$ \"\n ", ""}

// serverStatements are statements as tokens that go through when they are cut
// right. The dots stand for themselves.
var serverStatements = [][]string{
	{},
	{"select", "1"},
	{"select", "'a;'"},
	{"select", "'a'", "'b;'"}, // one string with a newline between, else an error
	{"select", `e'\';'`},
	{"select", `e'a'`, `'\'; set a.b = 1; --'`},
	{"select", `'a\';'`},
	{"select", `'\'; set a.b = 1; --'`},
	{"select", "b'1'"},
	{"select", `n';'`},
	{"select", `u&'\0041;'`},
	{"select", "$$;$$"},
	{"select", "$a$ ; $b$ ; $a $a$"},
	{"select", "1", "as", `"x;""y"`},
	{"select", "1", "as", "a$b$"},
	{"select", "1", "+", "-", "1"},
	{"select", "1.", "+", ".5e1", "*", "1e-1"},
	{"select", "1", "-", "-", "1"},
	{"(", "select", "1", ")"},
	{"values", "(", "1", ")"},
	{"table", "pg_am"},
	{"explain", "(", "costs", "off", ")", "select", "1"},
	{"explain", "analyze", "create", "temp", "table", "et", "as", "select", "1"},
	{"do", "$x$ begin null; end $x$"},
	{"begin"},
	{"start", "transaction"},
	{"savepoint", "s"},
	{"commit"},
	{"rollback", "and", "chain"},
	{"set", "a.b", "=", "'x'"},
	{"set", "session", "a", ".", "b", "to", "x"},
	{"set", "local", "a.b", "=", "'x'"},
	{"set", "local", ".", "x", "=", "1"},
	{"set", "transaction", ".", "x", "=", "1"},
	{"set", "constraints", ".", "x", "=", "1"},
	{"set", "session", ".", "x", "=", "1"},
	{"set", "role", ".", "x", "=", "1"},
	{"set", "transaction", "read", "write"},
	{"set", "constraints", "all", "deferred"},
	{"set", "session", "characteristics", "as", "transaction", "read", "only"},
	{"set", "role", "app"},
	{"set", `"ROLE"`, "=", "app"},
	{"set", "session", "role", "app"},
	{"set", "local", "role", "app"},
	{"set", "time", "zone", "'CET'"},
	{"reset", "a.b"},
	{"select", "set_config", "(", "'a.b'", ",", "'x'", ",", "false", ")"},
	{"select", "PG_CATALOG", ".", `"set_config"`, "(", "'a.b'", ",", "'x'", ",", "false", ")"},
	{"select", `u&"set\005fconfig"`, "(", "'a.b'", ",", "'x'", ",", "false", ")"},
	{"create", "temp", "table", "t1", "(", ")"},
	{"create", "local", "temporary", "sequence", "t2"},
	{"create", "table", "pg_temp", ".", "t3", "(", ")"},
	{"create", "or", "replace", "function", "pg_temp", ".", "f", "(", ")", "returns", "int", "language", "sql", "as", "'select 1;'"},
	{"select", "1", "into", "temp", "t4"},
	{"select", "1.", "into", "temporary", "table", "t5"},
	{"create", "or", "replace", "function", "f1", "(", ")", "returns", "int", "begin", "atomic", "select", "1", ";", "select", "case", "when", "true", "then", "1", "end", ";", "end"},
	{"create", "or", "replace", "function", "f2", "(", ")", "returns", "int", "begin", "atomic", "select", "1", "as", "case", ";", "return", "1", ";", "end"},
	{"create", "or", "replace", "function", "begin", "(", ")", "returns", "int", "language", "sql", "return", "1"},
	{"create", "or", "replace", "rule", "r", "as", "on", "insert", "to", "ruled", "do", "also", "(", "select", "1", ";", "notify", "c", ")"},
	{"listen", "c"},
	{"unlisten", "*"},
	{"notify", "c", ",", "';'"},
	{"prepare", "p1", "as", "select", "1"},
	{"prepare", "transaction", "as", "select", "1"},
	{"deallocate", "all"},
	{"declare", "c1", "cursor", "with", "hold", "for", "select", "1"},
	{"declare", "c2", "cursor", "for", "select", "1"},
	{"select", "pg_advisory_lock", "(", "1", ")"},
	{"select", "pg_try_advisory_lock_shared", "(", "2", ")"},
	{"select", "pg_advisory_xact_lock", "(", "3", ")"},
	{"discard", "all"},
}

// leaks are what a session can be left with, and the effect that must have
// announced it.
var leaks = []struct {
	query  string
	effect protocol.Effects
}{
	{
		`select count(*) from pg_settings where source = 'session' and name not in ('standard_conforming_strings', 'client_min_messages', 'role', 'session_authorization') and name not like 'transaction\_%'`,
		protocol.EffectSet,
	},
	{
		`select count(*) from unnest('{a.b,local.x,transaction.x,constraints.x,session.x,role.x}'::text[]) n where coalesce(current_setting(n, true), '') <> ''`,
		protocol.EffectSet,
	},
	{`select (current_user <> session_user)::int`, protocol.EffectSetRole},
	{`select count(*) from pg_listening_channels()`, protocol.EffectListen},
	{`select count(*) from pg_prepared_statements`, protocol.EffectPrepare},
	{`select count(*) from pg_cursors where is_holdable`, protocol.EffectDeclareHold},
	{
		`select (select count(*) from pg_class where relnamespace = pg_my_temp_schema()) + (select count(*) from pg_proc where pronamespace = pg_my_temp_schema())`,
		protocol.EffectTemp,
	},
	{`select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()`, protocol.EffectAdvisoryLock},
}

// run executes a text as one Query and returns the number of its results and
// the error of the server.
func run(t *rapid.T, conn *pgconn.PgConn, sql string) (results []*pgconn.Result, err error) {
	results, err = conn.Exec(context.Background(), sql).ReadAll()
	if _, refused := errors.AsType[*pgconn.PgError](err); err != nil && !refused {
		t.Fatalf("%q: %v", sql, err)
	}
	return results, err
}

// The server's own answer: it runs what it understands, and afterwards its
// catalogues say what stayed behind. Everything that did must have been
// announced, and it must have seen as many statements as the scanner.
func TestNothingStaysOnARealServerThatTheScannerDidNotAnnounce(t *testing.T) {
	server := pgtest.Start(t, pgtest.Options{Settings: map[string]string{"max_connections": "10"}})
	server.Exec(t, "create table ruled (a int)")
	conn := server.Admin(t).PgConn()
	tried, ran := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		tried++
		standard := rapid.Bool().Draw(t, "standard_conforming_strings")
		seam := rapid.SampledFrom(seams)
		var texts []string
		for range rapid.IntRange(1, 4).Draw(t, "statements") {
			tokens := rapid.SampledFrom(serverStatements).Draw(t, "statement")
			var b strings.Builder
			for _, token := range tokens {
				between := seam.Draw(t, "seam")
				if between == "" && rapid.Bool().Draw(t, "space") {
					between = " "
				}
				b.WriteString(between + token)
			}
			texts = append(texts, b.String())
		}
		sql := strings.Join(texts, ";")

		for _, reset := range []string{
			"rollback", "discard all", "set client_min_messages = error",
			fmt.Sprintf("set standard_conforming_strings = %v", standard),
		} {
			if _, err := run(t, conn, reset); err != nil {
				t.Fatal(err)
			}
		}
		verdict := protocol.Scan([]byte(sql), protocol.ScanOptions{StandardConforming: standard})
		results, err := run(t, conn, sql)
		if err == nil {
			ran++
			results = slices.DeleteFunc(results, func(r *pgconn.Result) bool { return r.CommandTag.String() == "" }) // EmptyQueryResponse
			if len(results) != verdict.Statements {
				t.Fatalf("%q: the server ran %d statements, the scanner saw %+v", sql, len(results), verdict)
			}
		}
		if _, err := run(t, conn, "rollback"); err != nil {
			t.Fatal(err)
		}
		if verdict.Effects.Has(protocol.EffectUnknown) {
			return
		}
		for _, leak := range leaks {
			results, err := run(t, conn, leak.query)
			if err != nil {
				t.Fatal(err)
			}
			if left := string(results[0].Rows[0][0]); left != "0" && !verdict.Effects.Has(leak.effect) {
				t.Fatalf("%q left %s of %v behind, the scanner saw %+v", sql, left, leak.effect, verdict)
			}
		}
	})
	if t.Logf("%d of %d texts went through", ran, tried); ran < tried/5 {
		t.Errorf("only %d of %d texts went through: the property proves too little", ran, tried)
	}
}

// Each statement goes through on its own, so that the property above means
// something for it; what needs a transaction, or the newline, is named.
func TestTheStatementsOfThePropertyAreValid(t *testing.T) {
	server := pgtest.Start(t, pgtest.Options{Settings: map[string]string{"max_connections": "10"}})
	server.Exec(t, "create table ruled (a int)")
	conn := server.Admin(t).PgConn()
	refused := []string{"savepoint", "and chain", "declare c2", "'a' 'b;'", `e'a'`, `'\';`, "- - 1", `'a\';'`}
	for _, tokens := range serverStatements {
		sql := strings.Join(tokens, " ")
		_, err := conn.Exec(t.Context(), sql).ReadAll()
		if err != nil && !slices.ContainsFunc(refused, func(part string) bool { return strings.Contains(sql, part) }) {
			t.Errorf("%s: %v", sql, err)
		}
		for _, reset := range []string{"rollback", "discard all"} {
			if _, err := conn.Exec(t.Context(), reset).ReadAll(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
