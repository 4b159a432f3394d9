package endtoend

import (
	"context"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(mp.StopAfter(pgtest.StopAfter(m))) }

// front starts a multipooler before the shared server, for user and database
// app, with the given flags.
func front(tb testing.TB, args ...string) (*mp.Instance, *pgtest.Server) {
	tb.Helper()
	s := pgtest.Shared(tb)
	return before(tb, s, args...), s
}

// before starts a multipooler before s.
func before(tb testing.TB, s *pgtest.Server, args ...string) *mp.Instance {
	tb.Helper()
	return mp.Start(tb, mp.Options{Target: s.URL("app", "app"), Args: args})
}

// slots is the flag for n server connections.
func slots(n int) string { return "--connpool-global-capacity=" + strconv.Itoa(n) }

// limited is a context of the test that ends after d.
func limited(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	tb.Cleanup(cancel)
	return ctx
}

// connect opens a connection of pgx, which lives until tb ends.
func connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		tb.Fatal(err)
	}
	// Named statements would pin: tests that want them say so.
	if cfg.RuntimeParams["default_query_exec_mode"] == "" && cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	conn, err := pgx.ConnectConfig(limited(tb, 20*time.Second), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 5*time.Second)
		defer cancel()
		conn.Close(ctx)
	})
	return conn
}

// one asks for one value as text.
func one(tb testing.TB, conn *pgx.Conn, sql string, args ...any) string {
	tb.Helper()
	var v string
	if err := conn.QueryRow(limited(tb, 20*time.Second), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

// do runs statements one by one.
func do(tb testing.TB, conn *pgx.Conn, sql ...string) {
	tb.Helper()
	for _, stmt := range sql {
		if _, err := conn.Exec(limited(tb, 20*time.Second), stmt); err != nil {
			tb.Fatalf("%s: %v", stmt, err)
		}
	}
}

// libpqEnv is what libpq's programs need to reach a URL's server: PGHOST and so
// on. A password in an argument would be in the process list.
func libpqEnv(tb testing.TB, raw string) []string {
	tb.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		tb.Fatal(err)
	}
	pass, _ := u.User.Password()
	env := []string{"PGUSER=" + u.User.Username(), "PGPASSWORD=" + pass, "PGDATABASE=" + u.Path[1:], "PGSSLMODE=prefer"}
	host, port := u.Hostname(), u.Port()
	for k, v := range u.Query() {
		switch k {
		case "host":
			host = v[0]
		case "port":
			port = v[0]
		case "sslmode":
			env = append(env, "PGSSLMODE="+v[0])
		case "options":
			env = append(env, "PGOPTIONS="+v[0])
		}
	}
	return append(env, "PGHOST="+host, "PGPORT="+port, "PGCONNECT_TIMEOUT=10", "LC_ALL=C")
}
