package endtoend

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

// fixture is a database with a bit of everything that pg_dump has to ask for.
const fixture = `CREATE SCHEMA shop;
CREATE TYPE shop.state AS ENUM ('new', 'paid', 'sent');
CREATE DOMAIN shop.positive AS int CHECK (VALUE > 0);
CREATE SEQUENCE shop.numbers START 1000 INCREMENT 7;
CREATE TABLE shop.orders (id bigserial PRIMARY KEY, number int DEFAULT nextval('shop.numbers'), state shop.state DEFAULT 'new',
  amount shop.positive, at timestamptz DEFAULT '2026-11-21 12:00Z', price numeric(12,4), body jsonb, tags text[], raw bytea, f8 float8, d interval);
CREATE TABLE shop.items (order_id bigint REFERENCES shop.orders ON DELETE CASCADE, n int, name text COLLATE "C", UNIQUE (order_id, n));
CREATE INDEX items_name ON shop.items (lower(name)) WHERE n > 0;
CREATE TABLE shop.parts (k int, v text) PARTITION BY RANGE (k);
CREATE TABLE shop.parts_1 PARTITION OF shop.parts FOR VALUES FROM (0) TO (500);
CREATE TABLE shop.parts_2 PARTITION OF shop.parts DEFAULT;
CREATE FUNCTION shop.touch() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN NEW.at := now(); RETURN NEW; END $f$;
CREATE TRIGGER touched BEFORE UPDATE ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.touch();
CREATE FUNCTION shop.total(o bigint) RETURNS bigint LANGUAGE sql STABLE AS 'SELECT sum(n) FROM shop.items WHERE order_id = o';
CREATE VIEW shop.open AS SELECT * FROM shop.orders WHERE state <> 'sent';
CREATE MATERIALIZED VIEW shop.sums AS SELECT order_id, count(*) FROM shop.items GROUP BY 1;
CREATE RULE quiet AS ON DELETE TO shop.open DO INSTEAD NOTHING;
ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY everybody ON shop.orders USING (true);
COMMENT ON TABLE shop.orders IS 'orders; with a '' quote';
INSERT INTO shop.orders (state, amount, price, body, tags, raw, f8, d)
  SELECT (ARRAY['new','paid','sent'])[1 + g % 3]::shop.state, g, g / 7.0, jsonb_build_object('g', g, 't', E'tab\tä'),
         ARRAY['a' || g, E'back\\slash'], decode(md5(g::text), 'hex'), pi() * g, g * interval '1 minute' FROM generate_series(1, 2000) g;
INSERT INTO shop.items SELECT 1 + g % 2000, g, 'item ' || g FROM generate_series(1, 5000) g;
INSERT INTO shop.parts SELECT g, repeat('v', g % 50) FROM generate_series(1, 1000) g;
REFRESH MATERIALIZED VIEW shop.sums;
SELECT lo_from_bytea(5000 + g, decode(repeat(md5(g::text), 200), 'hex')) FROM generate_series(1, 20) g;
`

func TestADatabaseIsDumpedAndRestoredInTransactionMode(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{Databases: []string{"app", "plain", "custom", "parallel"}})
	in := before(t, s, slots(12))
	if r := psqlScript(t, s, in.URL("app", "app"), fixture, "-v", "ON_ERROR_STOP=1"); r.code != 0 {
		t.Fatalf("%d %s", r.code, r.stderr)
	}
	want := dump(t, s, s.URL("app", "app"))
	if got := dump(t, s, in.URL("app", "app")); got != want {
		t.Fatalf("the dump through multipooler differs: %s", firstDifference(got, want))
	}
	if len(want) < 500<<10 {
		t.Fatalf("a dump of %d bytes has not everything", len(want))
	}

	if r := psqlScript(t, s, in.URL("app", "plain"), want, "-v", "ON_ERROR_STOP=1"); r.code != 0 {
		t.Errorf("restore by psql: %d %s", r.code, r.stderr)
	}
	// A dump begins with SET and set_config('search_path', '', false): none of
	// it may be seen by the next session on the same server connection.
	if out := psql(t, s, in.URL("app", "plain"), "-c", "SHOW search_path", "-c", "SHOW check_function_bodies").stdout; out != "\"$user\", public\non\n" {
		t.Errorf("the restore has left %q", out)
	}
	for db, args := range map[string][]string{"custom": {"-Fc"}, "parallel": {"-Fd", "-j", "3"}} {
		file := filepath.Join(t.TempDir(), "dump")
		runOK(t, program{path: s.Tool(t, "pg_dump"), args: append(args, "-f", file), env: libpqEnv(t, in.URL("app", "app"))})
		restore := []string{"-d", db, "--exit-on-error"}
		if db == "parallel" {
			restore = append(restore, "-j", "3")
		}
		runOK(t, program{path: s.Tool(t, "pg_restore"), args: append(restore, file), env: libpqEnv(t, in.URL("app", db))})
	}
	for _, db := range []string{"plain", "custom", "parallel"} {
		if got := dump(t, s, s.URL("app", db)); got != want {
			t.Errorf("database %s is not what was dumped: %s", db, firstDifference(got, want))
		}
	}
	mp.Eventually(t, limitOfRest, "no session is pinned", func() bool { return in.Metric(t, "multipooler_pool_pinned") == 0 })
}

// restricted are the random keys that newer versions of pg_dump write.
var restricted = regexp.MustCompile(`(?m)^\\(un)?restrict .*$`)

func dump(tb testing.TB, s *pgtest.Server, url string) string {
	tb.Helper()
	out := runOK(tb, program{path: s.Tool(tb, "pg_dump"), env: libpqEnv(tb, url)})
	return restricted.ReplaceAllString(out, "")
}

// firstDifference shows where two texts part.
func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return "got line " + g[i] + ", want " + w[i]
		}
	}
	return "one is longer"
}
