package endtoend

import (
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/multipooler/multipooler/test/pgtest"
)

// reported are the parameters that PostgreSQL reports, as the client has them.
func reported(c *pgx.Conn) map[string]string {
	all := map[string]string{}
	for _, name := range []string{
		"application_name", "client_encoding", "DateStyle", "default_transaction_read_only", "in_hot_standby", "integer_datetimes", "IntervalStyle",
		"is_superuser", "server_encoding", "server_version", "session_authorization", "standard_conforming_strings", "TimeZone",
	} {
		all[name] = c.PgConn().ParameterStatus(name)
	}
	return all
}

// Two clients with different wishes share the one server connection: each is
// reported and gets its own, as it would directly.
func TestStartupParametersAreAppliedAndReportedAsDirectly(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{Users: []pgtest.User{{Name: "app"}, {Name: "boss"}}})
	s.Exec(t, "GRANT boss TO app", "ALTER ROLE app SET statement_timeout = '77s'", "ALTER DATABASE app SET lock_timeout = '66s'")
	in := before(t, s, slots(2))
	plain := connect(t, in.URL("app", "app"))
	for _, params := range [][]string{
		nil,
		{"application_name=shop ü'"},
		{"search_path=a, \"B b\",pg_catalog"},
		{"extra_float_digits=0"},
		{"datestyle=German, DMY"},
		{"timezone=Asia/Kathmandu"},
		{"client_encoding=LATIN1"},
		{"options=-c work_mem=9MB -c geqo=off"},
		{`options=-c search_path=x,y\ ,z --enable_seqscan=off`},
		{"options=-c statement_timeout=5000", "statement_timeout=6000"},
		{"options=-c role=boss"},
		{"role=boss", "application_name=as the boss"},
		{"my.own=some value", "application_name=x"},
		{"intervalstyle=iso_8601", "timezone=UTC", "extra_float_digits=3", "bytea_output=escape"},
		{"standard_conforming_strings=off"},
		{"default_transaction_read_only=on"},
		{"statement_timeout=1min"},
		{"jit=off", "plan_cache_mode=force_custom_plan"},
	} {
		t.Run(strings.Join(params, " "), func(t *testing.T) {
			look := `SELECT string_agg(name || '=' || setting, E'\n' ORDER BY name) FROM pg_settings WHERE name IN ('work_mem','geqo','search_path','enable_seqscan',
				'statement_timeout','lock_timeout','extra_float_digits','DateStyle','TimeZone','client_encoding','application_name','IntervalStyle','bytea_output',
				'standard_conforming_strings','default_transaction_read_only','jit','plan_cache_mode','my.own') UNION ALL
				SELECT current_user || ' ' || coalesce(current_setting('my.own', true), '') || ' ' || (SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid())`
			ask := func(url string) (string, map[string]string) {
				c := connect(t, url)
				res, err := c.PgConn().Exec(limited(t, rawLimit), look).ReadAll() // in any encoding
				if err != nil {
					t.Fatal(err)
				}
				r := reported(c)
				c.Close(t.Context())
				return string(res[0].Rows[0][0]) + "\n" + string(res[0].Rows[1][0]), r
			}
			wantSettings, wantReported := ask(s.URL("app", "app", params...))
			for range 2 { // the second finds the connection as the first has left it
				settings, got := ask(in.URL("app", "app", params...))
				if settings != wantSettings {
					t.Errorf("settings\n%s\nwant\n%s", settings, wantSettings)
				}
				if !maps.Equal(got, wantReported) {
					t.Errorf("reported\n%v\nwant\n%v", got, wantReported)
				}
				if w := one(t, plain, "SELECT current_setting('work_mem') || current_setting('statement_timeout') || current_user || current_setting('DateStyle')"); w != "4MB77sappISO, MDY" {
					t.Errorf("a client without wishes has %s", w)
				}
			}
		})
	}
}

func TestAStartupParameterThatTheServerRefusesIsItsOwnErrorAtConnect(t *testing.T) {
	in, s := front(t, slots(2))
	for _, params := range [][]string{
		{"work_mem=much"},
		{"no_such_setting=1"},
		{"options=-c no_such_setting=1"},
		{"role=nobody_here"},
		{"timezone=Mars/Olympus"},
		{"client_encoding=KLINGON"},
		{"wal_level=minimal"},
		{"options=-c"},
		{"options=--nonsense"},
		{"options=nonsense"},
		{"shared_buffers=1GB"},
		{"log_statement=all"},
		{"search_path=\x01"},
		{"default_transaction_isolation=chaos"},
	} {
		try := func(url string) (code, message string) {
			c, err := pgconn.Connect(limited(t, rawLimit), url)
			if err == nil {
				c.Close(t.Context())
				return "ok", ""
			}
			e := pgError(t, err)
			return e.Severity + " " + e.Code, e.Message
		}
		code, message := try(s.URL("app", "app", params...))
		gotCode, gotMessage := try(in.URL("app", "app", params...))
		if gotCode != code || gotMessage != message {
			t.Errorf("%q: %s %s, want %s %s", params, gotCode, gotMessage, code, message)
		}
	}
	if got := one(t, connect(t, in.URL("app", "app")), "SELECT 'alive'"); got != "alive" {
		t.Error(got)
	}
	for _, url := range []func(user, db string, params ...string) string{s.URL, in.URL} {
		if e := refused(t, url("app", "no_such_database")); e.Code != "3D000" || e.Severity != "FATAL" {
			t.Errorf("%+v", e)
		}
	}
}

// RESET goes back to what the startup packet said, not to the server's default.
func TestAResetGoesBackToTheStartupPacket(t *testing.T) {
	in, s := front(t, slots(1))
	params := []string{"options=-c work_mem=9MB -c DateStyle=German", "timezone=Asia/Tokyo", "application_name=mine"}
	const look = "SELECT concat_ws(' ', current_setting('work_mem'), current_setting('DateStyle'), current_setting('TimeZone'), current_setting('application_name'))"
	for _, script := range [][]string{
		{"RESET ALL"},
		{"DISCARD ALL"},
		{"SET work_mem = '1MB'", "RESET work_mem"},
		{"SET work_mem = '1MB'", "SET TimeZone = 'UTC'", "RESET ALL"},
		{"SET work_mem = '1MB'", "DISCARD ALL"},
		{"SET DateStyle = 'ISO'", "RESET DateStyle", "SET work_mem = '2MB'"},
		{"BEGIN", "SET work_mem = '1MB'", "ROLLBACK"},
		{"BEGIN", "RESET ALL", "COMMIT"},
	} {
		direct, pooled := connect(t, s.URL("app", "app", params...)), connect(t, in.URL("app", "app", params...))
		do(t, direct, script...)
		do(t, pooled, script...)
		want := one(t, direct, look)
		if got := one(t, pooled, look); got != want {
			t.Errorf("after %q: %s, want %s", script, got, want)
		}
		got, told := reported(pooled), reported(direct)
		delete(got, "application_name") // put back with the next statement, without a word
		delete(told, "application_name")
		if !maps.Equal(got, told) {
			t.Errorf("after %q reported %v, want %v", script, got, told)
		}
		pooled.Close(t.Context())
		plain := connect(t, in.URL("app", "app"))
		if got := one(t, plain, look); got != "4MB ISO, MDY UTC" && got != "4MB ISO, MDY UTC " {
			t.Errorf("after %q another client has %q", script, got)
		}
		plain.Close(t.Context())
	}
}
