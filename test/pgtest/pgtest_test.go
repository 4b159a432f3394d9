package pgtest_test

import (
	"crypto/tls"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/multipooler/multipooler/test/pgtest"
	"github.com/multipooler/multipooler/test/pgtest/pgserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.StopAfter(m)) }

func TestAppLogsInOverTCPAndTheSocket(t *testing.T) {
	s := pgtest.Shared(t)
	for _, url := range []string{s.URL("app", "app"), s.SocketURL("app", "app")} {
		var user, db string
		if err := pgtest.Connect(t, url).QueryRow(t.Context(), "select current_user, current_database()").Scan(&user, &db); err != nil {
			t.Fatal(err)
		}
		if user != "app" || db != "app" {
			t.Errorf("logged in as %s to %s", user, db)
		}
	}
}

func TestTheSharedServerIsOneServer(t *testing.T) {
	if a, b := pgtest.Shared(t), pgtest.Shared(t); a != b {
		t.Error("two servers")
	}
}

func TestWrongPasswordsAndTheSuperuserAreRefusedOverTCP(t *testing.T) {
	s := pgtest.Shared(t)
	wrong := strings.Replace(s.URL("app", "app"), "app:", "app:x", 1)
	for name, url := range map[string]string{"wrong password": wrong, "superuser": s.URL("postgres", "app")} {
		t.Run(name, func(t *testing.T) {
			_, err := pgx.Connect(t.Context(), url)
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "28P01" {
				t.Errorf("got %v, want 28P01", err)
			}
		})
	}
}

func TestSettingsUsersAndHBALinesAreApplied(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{
		Settings:  map[string]string{"max_connections": "7", "cluster_name": `it's a \ test`},
		Users:     []pgtest.User{{Name: "Odd \"user'", Hash: pgtest.MD5}, {Name: "two", Options: "CONNECTION LIMIT 1"}, {Name: "free"}},
		Databases: []string{"one", "two dbs"},
		HBA:       []string{"host all free 127.0.0.1/32 trust"},
	})
	admin := s.Admin(t)
	for query, want := range map[string]string{
		"show max_connections": "7",
		"show cluster_name":    `it's a \ test`,
		"select left(rolpassword, 3) from pg_authid where rolname = 'Odd \"user'''":  "md5",
		"select left(rolpassword, 5) from pg_authid where rolname = 'two'":           "SCRAM",
		"select pg_get_userbyid(datdba) from pg_database where datname = 'two dbs'":  "Odd \"user'",
		"select rolconnlimit::text from pg_authid where rolname = 'two'":             "1",
		"select count(*)::text from pg_hba_file_rules where error is not null":       "0",
		"select setting from pg_settings where name = 'dynamic_shared_memory_type'":  "mmap",
		"select setting from pg_settings where name = 'standard_conforming_strings'": "on",
	} {
		var got string
		if err := admin.QueryRow(t.Context(), query).Scan(&got); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", query, got, err, want)
		}
	}
	for _, url := range []string{s.URL("Odd \"user'", "two dbs"), s.URL("two", "one"), strings.Replace(s.URL("free", "one"), "free:", "free:x", 1)} {
		if err := pgtest.Connect(t, url).Ping(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestTLSVerifiesBothSides(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{TLS: true, HBA: []string{"hostssl all app all cert"}})
	client, err := s.Certs.Client("app")
	if err != nil {
		t.Fatal(err)
	}
	url := s.URL("app", "app", "sslmode=verify-full", "sslrootcert="+s.Certs.CAFile, "sslcert="+client.CertFile, "sslkey="+client.KeyFile)
	conn := pgtest.Connect(t, url)
	if _, ok := conn.PgConn().Conn().(*tls.Conn); !ok {
		t.Errorf("the connection is a %T", conn.PgConn().Conn())
	}
	if _, err := pgx.Connect(t.Context(), s.URL("app", "app", "sslmode=require")); err == nil {
		t.Error("logged in without the client certificate")
	}
}

func TestDataAndPortSurviveRestartAndCrash(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	s.Exec(t, "create table kept as select 1 as x", "checkpoint")
	port, pid := s.Port, s.PID()
	check := func(how string) {
		t.Helper()
		var x int
		if err := s.Admin(t).QueryRow(t.Context(), "select x from kept").Scan(&x); err != nil || x != 1 {
			t.Errorf("after %s: %d, %v", how, x, err)
		}
		if s.Port != port || s.PID() == pid {
			t.Errorf("after %s: port %d -> %d, pid %d -> %d", how, port, s.Port, pid, s.PID())
		}
		pid = s.PID()
	}
	for how, mode := range map[string]pgtest.Mode{"fast": pgtest.Fast, "immediate": pgtest.Immediate} {
		s.Restart(t, mode)
		check(how)
	}
	conn := pgtest.Connect(t, s.URL("app", "app"))
	s.Crash()
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a session survived the crash")
	} else if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		t.Errorf("a crashed server said goodbye: %v", err)
	}
	s.Recover(t)
	check("crash")
}

func TestClosingLeavesNeitherProcessNorFolder(t *testing.T) {
	for _, how := range []string{"running", "stopped", "crashed"} {
		t.Run(how, func(t *testing.T) {
			s := pgtest.Start(t, pgtest.Options{})
			pid := s.PID()
			if n := sharedMemorySegments(t, pid); n != 1 {
				t.Errorf("%d shared memory segments while it runs, want 1", n)
			}
			switch how {
			case "stopped":
				if err := s.Stop(pgtest.Fast); err != nil {
					t.Fatal(err)
				}
			case "crashed":
				s.Crash()
			}
			if err := errors.Join(s.Close(), s.Close()); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("process %d: %v", pid, err)
			}
			if _, err := os.Stat(s.DataDir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", s.DataDir, err)
			}
			if n := sharedMemorySegments(t, pid); n != 0 {
				t.Errorf("%d shared memory segments are left", n)
			}
			if s.PID() != 0 {
				t.Errorf("PID() = %d", s.PID())
			}
			if err := s.Server.Start(t.Context()); err == nil {
				t.Error("a closed server started")
			}
		})
	}
}

// sharedMemorySegments counts the System V segments that process pid created
// (column 5); servers of other packages may come and go meanwhile.
func sharedMemorySegments(t *testing.T, pid int) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == strconv.Itoa(pid) {
			n++
		}
	}
	return n
}

func TestTheServerDoesNotRunAsRoot(t *testing.T) {
	s := pgtest.Shared(t)
	info, err := os.Stat("/proc/" + strconv.Itoa(s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid == 0 {
		t.Error("it does")
	}
}

func TestTheLogIsReadFromAPosition(t *testing.T) {
	s := pgtest.Shared(t)
	_, from := s.LogSince(0)
	s.Exec(t, "do $$ begin raise log 'marker %', 17; end $$")
	s.Admin(t) // its login is behind the marker
	text, _ := s.LogSince(from)
	if !strings.Contains(text, "marker 17") || strings.Contains(text, "ready to accept") {
		t.Errorf("got %q", text)
	}
}

func TestABadSettingFailsTheStartWithPostgreSQLsWords(t *testing.T) {
	for name, o := range map[string]pgtest.Options{
		"setting": {Settings: map[string]string{"max_connections": "many"}},
		"user":    {Users: []pgtest.User{{Name: "x", Options: "NOSUCHWORD"}}},
	} {
		t.Run(name, func(t *testing.T) {
			err := tryStart(t, o)
			if want := map[string]string{"setting": "max_connections", "user": "NOSUCHWORD"}[name]; err == nil || !strings.Contains(strings.ToUpper(err.Error()), strings.ToUpper(want)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func tryStart(t *testing.T, o pgtest.Options) error {
	t.Helper()
	s, err := pgserver.Start(t.Context(), o)
	if err == nil {
		err2 := s.Close()
		return err2
	}
	return err
}

func TestPythonImportsPsycopg(t *testing.T) {
	s := pgtest.Shared(t)
	script := "import sys, psycopg; print(psycopg.connect(sys.argv[1]).execute('select 6 * 7').fetchone()[0])"
	out, err := exec.Command(pgtest.Python(t), "-c", script, s.URL("app", "app")).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "42" {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestToolsOfTheServerAreFound(t *testing.T) {
	s := pgtest.Shared(t)
	for _, tool := range []string{"psql", "pgbench", "pg_dump"} {
		if out, err := exec.Command(s.Tool(t, tool), "--version").CombinedOutput(); err != nil || !strings.Contains(string(out), "PostgreSQL") {
			t.Errorf("%s: %v\n%s", tool, err, out)
		}
	}
}
