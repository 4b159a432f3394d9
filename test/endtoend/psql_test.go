package endtoend

import (
	"strings"
	"testing"

	"github.com/multipooler/multipooler/test/pgtest"
)

// psql runs psql against a URL: unaligned, tuples only, without a start-up file.
func psql(tb testing.TB, s *pgtest.Server, url string, args ...string) ended {
	tb.Helper()
	return psqlScript(tb, s, url, "", args...)
}

func psqlScript(tb testing.TB, s *pgtest.Server, url, stdin string, args ...string) ended {
	tb.Helper()
	return run(tb, program{
		path: s.Tool(tb, "psql"), args: append([]string{"-XqAt", "-v", "VERBOSITY=verbose"}, args...),
		env: libpqEnv(tb, url), stdin: stdin,
	})
}

func TestPsqlSeesNoDifference(t *testing.T) {
	in, s := front(t, slots(3))
	psql(t, s, s.URL("app", "app"), "-c", "CREATE TABLE psql_t (id int PRIMARY KEY, note text)", "-c", "CREATE SEQUENCE psql_s")
	t.Cleanup(func() { psql(t, s, s.URL("app", "app"), "-c", "DROP TABLE psql_t", "-c", "DROP SEQUENCE psql_s") })
	for _, tt := range []struct {
		name  string
		args  []string
		stdin string
	}{
		{name: "one statement", args: []string{"-c", "SELECT 1, 'two', NULL, 3.5"}},
		{name: "several statements in one query", args: []string{"-c", "SELECT 1; SELECT 2"}},
		{name: "several -c", args: []string{"-c", "SELECT 1", "-c", "SELECT 2", "-c", "SELECT 3"}},
		{name: "an error with its place", args: []string{"-c", "SELECT 1 +"}},
		{name: "an error that stops a script", args: []string{"-v", "ON_ERROR_STOP=1"}, stdin: "SELECT 1;\nSELECT 1/0;\nSELECT 2;\n"},
		{name: "errors that do not", stdin: "SELECT 1;\nSELECT 1/0;\nSELECT 2;\n"},
		{name: "single transaction that fails", args: []string{"-1"}, stdin: "INSERT INTO psql_t VALUES (77);\nSELECT nope;\n"},
		{name: "describe a table", args: []string{"-c", `\d psql_t`}},
		{name: "describe all", args: []string{"-c", `\d`}},
		{name: "list databases", args: []string{"-c", `\l`}},
		{name: "transaction", stdin: "BEGIN;\nINSERT INTO psql_t VALUES (1, 'a'), (2, 'b');\nSAVEPOINT x;\nINSERT INTO psql_t VALUES (1);\nROLLBACK TO x;\nSELECT * FROM psql_t ORDER BY 1;\nROLLBACK;\nSELECT count(*) FROM psql_t;\n"},
		{name: "copy in and out", stdin: "COPY psql_t FROM stdin;\n1\tone\n2\t\\N\n\\.\nCOPY psql_t TO stdout;\nTRUNCATE psql_t;\n"},
		{name: "copy that fails", stdin: "COPY psql_t FROM stdin;\n1\tone\nx\ttwo\n\\.\nSELECT count(*) FROM psql_t;\n"},
		{name: "meta copy", args: []string{"-c", `\copy (SELECT g, repeat('x', g) FROM generate_series(1, 5) g) TO STDOUT WITH CSV`}},
		{name: "settings", stdin: "SET DateStyle = 'German';\nSELECT DATE '2026-11-21';\nSHOW DateStyle;\nRESET DateStyle;\nSHOW DateStyle;\n"},
		{name: "cursor in portions", stdin: "\\set FETCH_COUNT 7\nSELECT g FROM generate_series(1, 30) g;\n"},
		{name: "prepare and execute", stdin: "PREPARE p (int) AS SELECT $1 * 2;\nEXECUTE p (21);\nDEALLOCATE p;\nEXECUTE p (1);\n"},
		{name: "gexec, gset, watch nothing", stdin: "SELECT 'SELECT ' || g FROM generate_series(1, 3) g \\gexec\nSELECT 5 AS five \\gset\nSELECT :five + 1;\n"},
		{name: "notice", args: []string{"-c", "DO $$ BEGIN RAISE NOTICE 'hear %', 'me'; END $$"}},
		{name: "conninfo of the encoding", args: []string{"-c", `\encoding`}},
		{name: "latin1", stdin: "\\encoding latin1\nSELECT length('\xe4'), '\xe4';\n"},
		{name: "timing of an empty query", args: []string{"-c", ";"}},
		{name: "sequences", stdin: "SELECT setval('psql_s', 5);\nSELECT nextval('psql_s'), currval('psql_s');\n"},
		{name: "large objects", stdin: "BEGIN;\nSELECT lo_create(4711);\nSELECT lo_put(4711, 0, 'abc');\nSELECT convert_from(lo_get(4711), 'UTF8');\nSELECT lo_unlink(4711);\nCOMMIT;\n"},
		{name: "crosstab and gdesc", stdin: "SELECT 1 AS a, 'x'::text AS b \\gdesc\nSELECT 1 a, 2 b, 3 c \\crosstabview\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			direct := psqlScript(t, s, s.URL("app", "app"), tt.stdin, tt.args...)
			pooled := psqlScript(t, s, in.URL("app", "app"), tt.stdin, tt.args...)
			if direct != pooled {
				t.Errorf("directly:\n%d\n%s%s\nthrough multipooler:\n%d\n%s%s",
					direct.code, direct.stdout, direct.stderr, pooled.code, pooled.stdout, pooled.stderr)
			}
			if direct.stdout+direct.stderr == "" && tt.name != "timing of an empty query" {
				t.Error("nothing was said at all")
			}
		})
	}
}

func TestAPsqlScriptOfManyKindsLeavesWhatItLeavesDirectly(t *testing.T) {
	in, s := front(t, slots(2))
	script := `CREATE SCHEMA script;
SET search_path = script;
CREATE TABLE t (id serial PRIMARY KEY, at timestamptz DEFAULT now(), body jsonb);
CREATE FUNCTION f(i int) RETURNS int LANGUAGE plpgsql AS $f$ BEGIN RETURN i + 1; END $f$;
INSERT INTO t (body) SELECT jsonb_build_object('n', f(g)) FROM generate_series(1, 100) g;
CREATE TEMP TABLE tt AS SELECT * FROM t WHERE id % 2 = 0;
SELECT count(*), sum((body->>'n')::int) FROM tt;
BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE t SET body = '{}' WHERE id = 1; COMMIT;
DO $$ BEGIN PERFORM f(1); END $$;
EXPLAIN (COSTS OFF) SELECT * FROM t WHERE id = 5;
VACUUM t;
DROP SCHEMA script CASCADE;
`
	r := psqlScript(t, s, in.URL("app", "app"), script, "-v", "ON_ERROR_STOP=1")
	if r.code != 0 || !strings.Contains(r.stdout, "50|2600\n") {
		t.Errorf("%d\n%s%s", r.code, r.stdout, r.stderr)
	}
	// Every session was clean when it ended: the next one sees nothing of it.
	if out := psql(t, s, in.URL("app", "app"), "-c", "SHOW search_path", "-c", "SELECT to_regclass('tt') IS NULL").stdout; out != "\"$user\", public\nt\n" {
		t.Errorf("left behind: %q", out)
	}
}
