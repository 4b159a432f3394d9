package endtoend

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

func TestTheConsoleShowsWhatIsGoingOn(t *testing.T) {
	in, s := front(t, slots(3), "--admin-users=app")
	holder := connect(t, in.URL("app", "app", "application_name=the holder"))
	do(t, holder, "BEGIN", "SET work_mem = '5MB'")
	pid := one(t, holder, "SELECT pg_backend_pid()::text")
	connect(t, in.URL("app", "postgres"))

	for _, mode := range []string{"simple_protocol", "exec", "cache_statement", "describe_exec", "cache_describe"} {
		for _, database := range []string{"multipooler", "pgbouncer"} {
			console := connect(t, in.URL("app", database, "default_query_exec_mode="+mode))
			for _, tt := range []struct{ sql, column, value string }{
				{"SHOW POOLS", "database", "app"},
				{"show pools;", "user", "app"},
				{"SHOW CLIENTS", "application_name", "the holder"},
				{"SHOW SERVERS", "remote_pid", pid},
				{"SHOW PINS", "reasons", "set"},
				{"SHOW PINS", "server_pid", pid},
				{"SHOW DATABASES", "name", "*"},
				{"SHOW USERS", "name", "app"},
				{"SHOW CONFIG", "key", "connpool_global_capacity"},
				{"SHOW LISTS", "list", "pools"},
				{"SHOW STATS", "database", "app"},
				{"SHOW HELP", "command", "SHOW POOLS"},
				{"SHOW VERSION", "version", ""},
			} {
				rows, err := console.Query(limited(t, rawLimit), tt.sql)
				if err != nil {
					t.Fatal(err)
				}
				found, err := pgx.CollectRows(rows, pgx.RowToMap)
				if err != nil {
					t.Fatalf("%s by %s: %v", tt.sql, mode, err)
				}
				if !slices.ContainsFunc(found, func(row map[string]any) bool {
					v, ok := row[tt.column]
					return ok && strings.Contains(fmt.Sprint(v), tt.value)
				}) {
					t.Errorf("%s by %s has no %s %q: %v", tt.sql, mode, tt.column, tt.value, found)
				}
			}
			if _, err := console.Exec(limited(t, rawLimit), "SELECT * FROM pg_class"); err == nil {
				t.Error("the console ran SQL")
			}
			console.Close(t.Context())
		}
	}
	for _, command := range []string{"SHOW POOLS", "SHOW CLIENTS", "SHOW SERVERS", "SHOW PINS", "SHOW VERSION", "SHOW HELP"} {
		r := run(t, program{path: s.Tool(t, "psql"), args: []string{"-X", "-c", command}, env: libpqEnv(t, in.URL("app", "multipooler"))})
		if r.code != 0 || !strings.Contains(r.stdout, "row") {
			t.Errorf("%s in psql: %+v", command, r)
		}
	}
	if out := psql(t, s, in.URL("app", "multipooler"), "-c", "SHOW NONSENSE"); out.code == 0 || !strings.Contains(out.stderr, "ERROR") {
		t.Errorf("%+v", out)
	}
}

func TestOnlyAdminUsersReachTheConsole(t *testing.T) {
	s := pgtest.Shared(t)
	in := before(t, s, "--admin-users=somebody")
	if e := refused(t, in.URL("app", "multipooler")); e.Code != "42501" {
		t.Errorf("%+v", e)
	}
	if e := refused(t, mp.URL(in.Addr(), "somebody", "guess", "multipooler")); e.Code != "28P01" {
		t.Errorf("%+v", e)
	}
}

func TestMetricsMoveWhenWhatTheyCountHappens(t *testing.T) {
	in, s := front(t, slots(2), trusting)
	r, other := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	r.query("SELECT repeat('x', 100000)")
	r.query("BEGIN")
	r.query("SELECT 1")
	check := func(name string, want float64, labels ...string) {
		t.Helper()
		mp.Eventually(t, limitOfRest, fmt.Sprintf("%s %q is %v", name, labels, want), func() bool { return in.Metric(t, name, labels...) == want })
	}
	check("multipooler_clients", 2)
	check("multipooler_slots", 1, `state="active"`)
	check("multipooler_slots_capacity", 2)
	check("db_connections_in_use", 1)
	r.query("COMMIT")
	check("db_connections_in_use", 0)
	check("db_connections_idle", 1)
	check("multipooler_queries_total", 4)
	check("multipooler_transactions_total", 2)
	check("multipooler_logins_total", 2, `result="ok"`)
	check("multipooler_server_connects_total", 1, `result="ok"`)
	check("multipooler_panics_total", 0)
	if got := in.Metric(t, "multipooler_bytes_total", `direction="sent"`); got < 100_000 {
		t.Errorf("%v bytes sent", got)
	}
	if got := in.Metric(t, "multipooler_acquire_seconds_count"); got < 2 {
		t.Errorf("%v connections acquired", got)
	}
	if got := in.Metric(t, "db_connection_acquire_total"); got < 2 {
		t.Errorf("%v connections acquired", got)
	}
	r.query("SET work_mem = '5MB'")
	check("multipooler_pool_pinned", 1)
	check("multipooler_pins", 1, `reason="set"`)
	r.send(&pgproto3.Terminate{})
	r.expect("EOF")
	check("multipooler_pool_pinned", 0)
	check("multipooler_clients", 1)
	check("multipooler_client_disconnects_total", 1, `reason="client_terminate"`)
	do(t, s.Admin(t), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
	check("multipooler_server_closed_total", 1, `reason="server"`)
	other.hangUp()
	check("multipooler_client_disconnects_total", 1, `reason="client_gone"`)
	if e := dialRaw(t, in.Addr()).login(0x30000, "database=nowhere"); !strings.Contains(e, "3D000") {
		t.Error(e)
	}
	check("multipooler_server_connects_total", 1, `result="failed"`)
}

func TestEveryDisconnectIsLoggedWithWhoAndWhy(t *testing.T) {
	in, s := front(t, slots(2), trusting, "--log-level=debug")
	quit, gone, killed := loginRaw(t, in.Addr()), loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	pid := quit.value("SELECT pg_backend_pid()")
	quit.send(&pgproto3.Terminate{})
	gone.query("SELECT 1")
	gone.hangUp()
	killed.send(&pgproto3.Query{String: "SELECT pg_sleep(60), 'killed for the log'"})
	untilRunning(t, s, "killed for the log", 1)
	do(t, s.Admin(t), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%killed for the log%' AND pid <> pg_backend_pid()")
	killed.reply()
	for _, reason := range []string{"client_terminate", "client_gone", "server_fatal"} {
		line := in.WaitLog(t, 0, `"msg":"client disconnected"…"reason":"`+reason+`"`, limitOfRest)
		var e struct {
			Client    int    `json:"client"`
			User      string `json:"user"`
			Database  string `json:"database"`
			Address   string `json:"address"`
			ServerPID int    `json:"server_pid"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Client == 0 || e.User != "app" || e.Database != "app" || e.Address == "" || e.ServerPID == 0 {
			t.Errorf("%s: %v", line, err)
		}
		if reason == "client_terminate" && fmt.Sprint(e.ServerPID) != pid {
			t.Errorf("server pid %d, want %s", e.ServerPID, pid)
		}
	}
	// Nobody's data is in the log, at no level.
	for _, text := range []string{"killed for the log", "pg_sleep", "SELECT"} {
		if strings.Contains(in.Log(), text) {
			t.Errorf("%q is in the log", text)
		}
	}
}

func TestTheSubcommandsTellAndExit(t *testing.T) {
	const target = "postgres://app:s3cret%20word@db.example:5433/shop?sslmode=require"
	file := filepath.Join(t.TempDir(), "mp.yaml")
	if err := os.WriteFile(file, []byte("acquire_timeout: 7s\npool_mode: sometimes\nno_such_key: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args   []string
		code   int
		says   []string
		silent []string
	}{
		{[]string{"version"}, 0, []string{"multipooler ", "go1."}, nil},
		{[]string{"help"}, 0, []string{"--connpool-global-capacity", "MULTIPOOLER_ACQUIRE_TIMEOUT"}, nil},
		{[]string{"check"}, 0, nil, []string{"s3cret"}},
		{[]string{"check", "--config=" + file}, 1, []string{"mp.yaml:2", "pool_mode", "mp.yaml:3", "no_such_key"}, []string{"s3cret"}},
		{[]string{"check", "--acquire-timeout=soon"}, 1, []string{"--acquire-timeout"}, []string{"s3cret"}},
		{[]string{"config", "--acquire-timeout=9s"}, 0, []string{"acquire_timeout", "9s", "flag", "app:****@db.example"}, []string{"s3cret"}},
		{[]string{"config", "--config=/no/such/file"}, 1, []string{"/no/such/file"}, []string{"s3cret"}},
		{[]string{"chekc"}, 1, []string{"no such command"}, nil},
	} {
		out, code := mp.Run(t, mp.Options{Target: target}, tt.args...)
		if code != tt.code {
			t.Errorf("%q: exit code %d, want %d:\n%s", tt.args, code, tt.code, out)
		}
		for _, w := range tt.says {
			if !strings.Contains(out, w) {
				t.Errorf("%q does not say %q:\n%s", tt.args, w, out)
			}
		}
		for _, w := range tt.silent {
			if strings.Contains(out, w) {
				t.Errorf("%q says %q:\n%s", tt.args, w, out)
			}
		}
	}
	in := mp.Start(t, mp.Options{Target: target})
	if out, code := mp.Run(t, mp.Options{}, "wait", "--timeout=10s", "--http-listen="+in.HTTPAddr); code != 0 {
		t.Errorf("wait: %d %s", code, out)
	}
	if out, code := mp.Run(t, mp.Options{}, "wait", "--timeout=300ms", "--http-listen=127.0.0.1:1"); code == 0 {
		t.Errorf("wait for nobody: %d %s", code, out)
	}
	// An address in use is a sentence and exit code 1.
	taken := mp.Start(t, mp.Options{Target: target, Listen: []string{in.Addr()}, MayFail: true})
	if code := taken.Wait(t, limitOfRest); code != 1 || !strings.Contains(taken.Log(), in.Addr()) {
		t.Errorf("%d: %s", code, taken.Log())
	}
}
