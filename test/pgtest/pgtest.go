// Package pgtest gives tests a real PostgreSQL of their own. Start runs one
// for a test, Shared one for a test binary that wraps its TestMain:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// with leak detection: goleak.VerifyTestMain(pgtest.StopAfter(m)).
//
// A test fails where no PostgreSQL is found; it never skips. The server's log
// is printed with the test that failed. What runs and who waits for it is in
// package pgserver.
package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/multipooler/multipooler/test/pgtest/pgserver"
)

// What tests need of pgserver, so that one import is enough.
type (
	Options = pgserver.Options
	User    = pgserver.User
	Mode    = pgserver.Mode
)

// See pgserver.
const (
	SCRAM           = pgserver.SCRAM
	MD5             = pgserver.MD5
	Fast            = pgserver.Fast
	Smart           = pgserver.Smart
	Immediate       = pgserver.Immediate
	Superuser       = pgserver.Superuser
	DefaultPassword = pgserver.DefaultPassword
)

// Server is a running PostgreSQL. Methods that take a testing.TB fail it.
type Server struct{ *pgserver.Server }

// Start runs a new server for tb, which stops and removes it at its end.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	inner, err := pgserver.Start(context.WithoutCancel(tb.Context()), o)
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{inner}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	s.showLog(tb)
	return s
}

// showLog prints what the server writes from now on if tb fails.
func (s *Server) showLog(tb testing.TB) {
	_, from := s.LogSince(0)
	tb.Cleanup(func() {
		if tb.Failed() {
			text, _ := s.LogSince(from)
			tb.Logf("PostgreSQL's log:\n%s", text)
		}
	})
}

var shared struct {
	sync.Mutex
	server *Server
	err    error
	owned  bool // by Run, which will stop it
}

// Shared is one server with default options for all tests of a binary,
// started by the first that asks. Its TestMain must be wrapped by this package.
// A test that restarts the server or changes its settings starts its own.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if !shared.owned {
		tb.Fatal("pgtest.Shared without func TestMain(m *testing.M) { pgtest.Main(m) }: nobody would stop the server")
	}
	if shared.server == nil && shared.err == nil {
		inner, err := pgserver.Start(context.Background(), Options{})
		shared.server, shared.err = &Server{inner}, err
	}
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	shared.server.showLog(tb)
	return shared.server
}

// Main runs the tests, stops the shared server and exits.
func Main(m *testing.M) {
	os.Exit(StopAfter(m).Run()) //nolint:forbidigo // it is the body of a TestMain
}

// StopAfter is m with the shared server stopped behind it.
func StopAfter(m interface{ Run() int }) interface{ Run() int } { return stopAfter{m} }

type stopAfter struct{ tests interface{ Run() int } }

func (s stopAfter) Run() int {
	shared.Lock()
	shared.owned = true
	shared.Unlock()
	code := s.tests.Run()

	shared.Lock()
	defer shared.Unlock()
	shared.owned = false
	if shared.server == nil || shared.err != nil {
		return code
	}
	if err := shared.server.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the shared PostgreSQL:", err)
		return max(code, 1)
	}
	shared.server = nil
	return code
}

// Connect opens a connection to a URL that lives until tb ends.
func Connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close(context.WithoutCancel(tb.Context())) })
	return conn
}

// Admin opens a superuser's connection to database postgres that lives until
// tb ends. It goes around the pooler and counts as one of the server's.
func (s *Server) Admin(tb testing.TB) *pgx.Conn {
	tb.Helper()
	return Connect(tb, s.AdminURL("postgres"))
}

// Exec runs statements as the superuser in database postgres.
func (s *Server) Exec(tb testing.TB, sql ...string) {
	tb.Helper()
	if err := s.Server.Exec(tb.Context(), sql...); err != nil {
		tb.Fatal(err)
	}
}

// Restart stops the server in the given mode and starts it again on the same
// port with the same data.
func (s *Server) Restart(tb testing.TB, m Mode) {
	tb.Helper()
	if err := s.Server.Restart(tb.Context(), m); err != nil {
		tb.Fatal(err)
	}
}

// Crash kills every process of the server with SIGKILL; Recover brings it back.
func (s *Server) Crash() { s.Kill() }

// Recover starts a stopped or crashed server again.
func (s *Server) Recover(tb testing.TB) {
	tb.Helper()
	if err := s.Server.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// Tool is the path of a client program such as psql; tb fails without it.
func (s *Server) Tool(tb testing.TB, name string) string {
	tb.Helper()
	path, err := s.Binaries.Tool(name)
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// ErrNotFound is what every test fails with where PostgreSQL is missing.
var ErrNotFound = pgserver.ErrNotFound
