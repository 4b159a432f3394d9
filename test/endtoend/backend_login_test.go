package endtoend

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
	"github.com/multipooler/multipooler/test/pgtest/testcert"
)

// authOf is how the only server connection of a multipooler has logged in, from
// its log.
func authOf(tb testing.TB, in *mp.Instance) string {
	tb.Helper()
	line := in.WaitLog(tb, 0, `"msg":"server connection opened"`, limitOfRest)
	_, method, _ := strings.Cut(line, `"auth":"`)
	method, _, _ = strings.Cut(method, `"`)
	return method
}

func TestMultipoolerLogsInToTheServerByEveryMethod(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{
		TLS: true,
		Users: []pgtest.User{
			{Name: "app"}, {Name: "hashed", Hash: pgtest.MD5}, {Name: "clear"}, {Name: "certified"}, {Name: "trusted"}, {Name: "tls_only"}, {Name: "plain_only"},
		},
		HBA: []string{
			"host all clear all password", "hostssl all certified all cert", "host all certified all reject", "host all trusted all trust",
			"hostnossl all tls_only all reject", "hostssl all plain_only all reject",
		},
	})
	pair, err := s.Certs.Client("certified")
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := testcert.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ca, wrongCA := "sslrootcert="+s.Certs.CAFile, "sslrootcert="+stranger.CAFile
	for _, tt := range []struct {
		user   string
		params []string
		auth   string // "" = the login must fail
		ssl    string
	}{
		{"app", []string{"sslmode=disable"}, "scram-sha-256", "f"},
		{"app", []string{"sslmode=allow"}, "scram-sha-256", "f"},
		{"app", []string{"sslmode=prefer"}, "scram-sha-256-plus", "t"},
		{"app", []string{"sslmode=require", "channel_binding=require"}, "scram-sha-256-plus", "t"},
		{"app", []string{"sslmode=require", "channel_binding=disable"}, "scram-sha-256", "t"},
		{"app", []string{"sslmode=verify-ca", ca}, "scram-sha-256-plus", "t"},
		{"app", []string{"sslmode=verify-full", ca}, "scram-sha-256-plus", "t"},
		{"app", []string{"sslmode=verify-full", wrongCA}, "", ""},
		{"app", []string{"sslmode=verify-ca", wrongCA}, "", ""},
		{"app", []string{"sslmode=disable", "channel_binding=require"}, "", ""},
		{"hashed", []string{"sslmode=disable"}, "md5", "f"},
		{"clear", []string{"sslmode=require"}, "password", "t"},
		{"trusted", []string{"sslmode=disable"}, "trust", "f"},
		{"tls_only", []string{"sslmode=allow"}, "scram-sha-256-plus", "t"},
		{"plain_only", []string{"sslmode=prefer"}, "scram-sha-256", "f"},
		{"certified", []string{"sslmode=verify-full", ca, "sslcert=" + pair.CertFile, "sslkey=" + pair.KeyFile}, "trust", "t"}, // on the wire the two look the same,
		{"certified", []string{"sslmode=require"}, "", ""},
	} {
		t.Run(tt.user+" "+strings.Join(tt.params, " "), func(t *testing.T) {
			// pgx reads certificates of a URL; multipooler reads them itself.
			target := s.URL(tt.user, "app", tt.params...)
			o := mp.Options{Target: target, MayFail: strings.Contains(strings.Join(tt.params, " "), "channel_binding=require") && tt.auth == ""}
			if o.MayFail {
				if out, code := mp.Run(t, o, "check"); code == 1 { // a contradiction that check can see
					if !strings.Contains(out, "needs TLS to the server") {
						t.Errorf("check says %s", out)
					}
					return
				}
				o.MayFail = false
			}
			in := mp.Start(t, o)
			if tt.auth == "" {
				if e := refused(t, in.URL(tt.user, "app")); e.Code != "08006" && e.Code != "28000" && e.Code != "28P01" {
					t.Errorf("%+v", e)
				}
				return
			}
			c := connect(t, in.URL(tt.user, "app"))
			if got := one(t, c, "SELECT left(ssl::text, 1) FROM pg_stat_ssl WHERE pid = pg_backend_pid()"); got != tt.ssl {
				t.Errorf("ssl %s, want %s", got, tt.ssl)
			}
			if got := authOf(t, in); !strings.EqualFold(got, tt.auth) {
				t.Errorf("logged in by %s, want %s", got, tt.auth)
			}
			big := strings.Repeat("x", 300_000)
			if got := one(t, c, "SELECT $1::text", big); got != big {
				t.Errorf("%d bytes came back", len(got))
			}
		})
	}
}

func TestTheServerIsReachedOverItsUnixSocket(t *testing.T) {
	s := pgtest.Shared(t)
	in := mp.Start(t, mp.Options{Target: s.SocketURL("app", "app")})
	c := connect(t, in.URL("app", "app"))
	if got := one(t, c, "SELECT coalesce(client_addr::text, 'unix') FROM pg_stat_activity WHERE pid = pg_backend_pid()"); got != "unix" {
		t.Error(got)
	}
	if _, err := c.Exec(limited(t, rawLimit), "SELECT 1/0"); sqlState(err) != "22012" {
		t.Error(err)
	}
}

func TestACancelTravelsOverTLSToTheServer(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{TLS: true, HBA: []string{"hostnossl all all all reject"}})
	in := mp.Start(t, mp.Options{Target: s.URL("app", "app", "sslmode=verify-full", "sslrootcert="+s.Certs.CAFile), Args: []string{trusting, slots(1)}})
	r := loginRaw(t, in.Addr())
	r.send(&pgproto3.Query{String: "SELECT pg_sleep(60), 'encrypted both ways'"})
	untilRunning(t, s, "encrypted both ways", 1)
	if err := r.cancel(t.Context(), in.Addr()); err != nil {
		t.Error(err)
	}
	if got := r.reply(); !strings.Contains(got, "57014") {
		t.Error(got)
	}
}

func TestAWrongServerPasswordIsAClearErrorForTheClient(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	in := mp.Start(t, mp.Options{
		Target: strings.Replace(s.URL("app", "app"), "app:", "app:not-the-", 1), Args: []string{trusting},
	})
	r := dialRaw(t, in.Addr())
	if got := r.login(0x30000); got != "R E(FATAL 28P01) EOF" {
		t.Error(got)
	}
	in.WaitLog(t, 0, `"msg":"server connection failed"…password authentication failed`, limitOfRest)
}

func TestTheServersCertificatesAreReadAgain(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{TLS: true, Databases: []string{"app", "two"}})
	stranger, err := testcert.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// The CA of another server first, then the right one.
	ca := filepath.Join(t.TempDir(), "ca.crt")
	write := func(from string) {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(ca, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(stranger.CAFile)
	in := mp.Start(t, mp.Options{Target: s.URL("app", "app", "sslmode=verify-full", "sslrootcert="+ca)})
	if e := refused(t, in.URL("app", "app")); e.Code != "08006" {
		t.Errorf("%+v", e)
	}
	write(s.Certs.CAFile)
	from := in.LogPosition()
	in.Signal(syscall.SIGHUP)
	in.WaitLog(t, from, "configuration reloaded", limitOfRest)
	mp.Eventually(t, limitOfRest, "the new CA is in force", func() bool {
		c, err := pgx.Connect(limited(t, rawLimit), in.URL("app", "app"))
		if err == nil {
			c.Close(t.Context())
		}
		return err == nil
	})
}

func TestAServerThatIsDownIsToldAtOnceAndUsedWhenItIsBack(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	in := before(t, s, slots(3))
	c := connect(t, in.URL("app", "app"))
	for round, mode := range []pgtest.Mode{pgtest.Fast, pgtest.Immediate} {
		one(t, c, "SELECT 'up'")
		if err := s.Stop(mode); err != nil {
			t.Fatal(err)
		}
		// The idle connections are noticed without a client's help.
		mp.Eventually(t, limitOfRest, "no server connection is left", func() bool {
			return in.Metric(t, "multipooler_slots", `state="idle"`)+in.Metric(t, "multipooler_slots", `state="active"`) == 0
		})
		start := time.Now()
		for range 3 {
			if _, err := c.Exec(limited(t, rawLimit), "SELECT 1"); sqlState(err) != "08006" && sqlState(err) != "57P03" {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("the errors took %v", took)
		}
		if code, body := in.HTTP(t, "/readyz"); code != 200 || !strings.Contains(body, "server_down") {
			t.Errorf("/readyz: %d %s", code, body)
		}
		s.Recover(t)
		mp.Eventually(t, limitOfRest, "the session works again", func() bool {
			_, err := c.Exec(limited(t, rawLimit), "SELECT 1")
			return err == nil
		})
	}
}

func TestAfterARestartNoQueryFails(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	in := before(t, s, slots(5))
	conns := []string{"a", "b", "c", "d", "e"}
	for range conns {
		c := connect(t, in.URL("app", "app"))
		do(t, c, "BEGIN", "SELECT 1")
		defer do(t, c, "SELECT 'after the restart'")
		do(t, c, "COMMIT")
	}
	for _, mode := range []pgtest.Mode{pgtest.Fast, pgtest.Immediate} {
		c := connect(t, in.URL("app", "app"))
		s.Restart(t, mode)
		mp.Eventually(t, limitOfRest, "dead connections are noticed", func() bool { return in.Metric(t, "multipooler_slots", `state="idle"`) == 0 })
		for range 20 {
			do(t, c, "SELECT 1")
		}
	}
}
