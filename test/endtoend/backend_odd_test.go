package endtoend

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

// oddServer accepts connections and does with each what odd says; it counts the
// most that were open at once.
func oddServer(tb testing.TB, odd func(net.Conn)) (url string, most func() int) {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var mu sync.Mutex
	var open, peak int
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open++
			peak = max(peak, open)
			mu.Unlock()
			all.Go(func() {
				_ = conn.SetDeadline(time.Now().Add(rawLimit))
				odd(conn)
				conn.Close()
				mu.Lock()
				open--
				mu.Unlock()
			})
		}
	})
	tb.Cleanup(func() {
		ln.Close()
		all.Wait()
	})
	return fmt.Sprintf("postgres://app:secret@%s/app?sslmode=disable", ln.Addr()), func() int {
		mu.Lock()
		defer mu.Unlock()
		return peak
	}
}

func TestAServerThatIsNoPostgreSQLIsAClearErrorAndNoHarm(t *testing.T) {
	for name, odd := range map[string]func(net.Conn){
		"hangs up at once":     func(net.Conn) {},
		"says nothing":         func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"speaks HTTP":          func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") },
		"a message of 2 GiB":   func(c net.Conn) { _, _ = c.Write([]byte{'R', 0x7f, 0xff, 0xff, 0xff}) },
		"a length of 0":        func(c net.Conn) { _, _ = c.Write([]byte{'R', 0, 0, 0, 0}) },
		"ready without a word": func(c net.Conn) { _, _ = c.Write([]byte{'Z', 0, 0, 0, 5, 'I'}) },
		"wants Kerberos":       func(c net.Conn) { _, _ = c.Write([]byte{'R', 0, 0, 0, 8, 0, 0, 0, 7}) },
		"begins SCRAM with nothing": func(c net.Conn) {
			_, _ = c.Write([]byte{'R', 0, 0, 0, 9, 0, 0, 0, 10, 0})
			_, _ = io.Copy(io.Discard, c)
		},
		"endless notices": func(c net.Conn) {
			for {
				if _, err := c.Write([]byte{'N', 0, 0, 0, 5, 0}); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			url, most := oddServer(t, odd)
			in := mp.Start(t, mp.Options{Target: url, Args: []string{trusting, slots(2), "--server-connect-timeout=500ms", "--acquire-timeout=5s"}})
			start := time.Now()
			var all sync.WaitGroup
			for range 10 {
				r := dialRaw(t, in.Addr())
				all.Go(func() {
					if got := r.login(0x30000); got != "R E(FATAL 08006) EOF" {
						t.Errorf("got %s", got)
					}
				})
			}
			all.Wait()
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("after %v", took)
			}
			in.WaitLog(t, 0, `"server connection failed"…"error":"…"cause":"`, limitOfRest)
			if most() > 2 {
				t.Errorf("%d connections for 2 slots", most())
			}
			if code, _ := in.HTTP(t, "/livez"); code != 200 {
				t.Errorf("/livez: %d", code)
			}
		})
	}
}

func TestEachDatabaseIsServedByItsTarget(t *testing.T) {
	first := pgtest.Shared(t)
	second := pgtest.Start(t, pgtest.Options{Users: []pgtest.User{{Name: "other", Password: "the other's"}}, Databases: []string{"orders", "billing"}})
	in := mp.Start(t, mp.Options{
		Config: fmt.Sprintf(`
targets:
  - {name: main, host: 127.0.0.1, port: %d, user: app, password: %q, databases: [app]}
  - {name: second, host: 127.0.0.1, port: %d, user: other, password: "the other's", databases: [orders, billing], connpool_global_capacity: 1}
`, first.Port, first.Password("app"), second.Port),
		Passwords: map[string]string{"app": first.Password("app"), "other": "the other's"},
	})
	for db, want := range map[string]*pgtest.Server{"app": first, "orders": second, "billing": second} {
		user := map[*pgtest.Server]string{first: "app", second: "other"}[want]
		got := one(t, connect(t, in.URL(user, db)), "SELECT current_database() || ' ' || current_setting('port') || ' ' || session_user")
		if got != fmt.Sprintf("%s %d %s", db, want.Port, user) {
			t.Errorf("%s is at %s", db, got)
		}
	}
	if e := refused(t, in.URL("app", "nowhere")); e.Code != "3D000" || !strings.Contains(e.Message, "nowhere") {
		t.Errorf("%+v", e)
	}
}

func TestWhatAServerReportsAnewIsWhatLaterClientsAreTold(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	in := before(t, s, slots(2))
	session := connect(t, in.URL("app", "app"))
	do(t, session, "SELECT 1")
	s.Exec(t, "ALTER SYSTEM SET TimeZone = 'Asia/Tokyo'", "SELECT pg_reload_conf()")
	mp.Eventually(t, limitOfRest, "a new client is told of the new time zone", func() bool {
		do(t, session, "SELECT 1") // the server says it with a reply, and only to whom it replies
		return connect(t, in.URL("app", "app")).PgConn().ParameterStatus("TimeZone") == "Asia/Tokyo"
	})
	if got := one(t, session, "SHOW TimeZone"); got != "Asia/Tokyo" {
		t.Error(got)
	}
}

func TestACrashedServerIsUsedAgainWhenItHasRecovered(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	in := before(t, s, slots(2), trusting)
	inside, idle := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	inside.query("BEGIN")
	s.Crash()
	if got := inside.reply(); got != "E(FATAL 08006) EOF" {
		t.Errorf("in a transaction: %s", got)
	}
	s.Recover(t)
	mp.Eventually(t, limitOfRest, "the idle session works again", func() bool {
		return idle.query("SELECT 1") == "T D(1) C(SELECT 1) Z(I)"
	})
}

func TestReplicationConnectionsAreRefusedInASentence(t *testing.T) {
	in, _ := front(t, trusting)
	for _, value := range []string{"database", "true", "1"} {
		if got := dialRaw(t, in.Addr()).login(0x30000, "replication="+value); got != "E(FATAL 0A000) EOF" {
			t.Errorf("replication=%s: %s", value, got)
		}
	}
	if got := dialRaw(t, in.Addr()).login(0x30000, "replication=false"); got != "R K Z(I)" {
		t.Error(got)
	}
}
