package endtoend

import (
	"crypto/md5"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

// userlist writes a file in PgBouncer's format.
func userlist(tb testing.TB, lines ...string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "userlist.txt")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

func md5Entry(user, password string) string {
	sum := md5.Sum([]byte(password + user))
	return "md5" + hex.EncodeToString(sum[:])
}

func TestEveryKindOfEntryLogsInByEveryMethodThatItCan(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{Users: []pgtest.User{
		{Name: "app"},
		{Name: "plain", Password: "plain password"},
		{Name: "hashed", Password: "hashed password", Hash: pgtest.MD5},
		{Name: "verified", Password: "verified ü password"},
		{Name: `odd "name"`, Password: `odd "password"`},
	}})
	verifier := one(t, s.Admin(t), "SELECT rolpassword FROM pg_authid WHERE rolname = 'verified'")
	list := userlist(t, `"app" "`+s.Password("app")+`"`, `"plain" "plain password"`, `"hashed" "`+md5Entry("hashed", "hashed password")+`"`,
		`"verified" "`+verifier+`"`, `"odd ""name""" "odd ""password"""`, `; a comment`, ``)
	passwords := map[string]string{"plain": "plain password", "hashed": "hashed password", "verified": "verified ü password", `odd "name"`: `odd "password"`, "app": s.Password("app")}
	for _, method := range []string{"scram-sha-256", "md5", "trust"} {
		t.Run(method, func(t *testing.T) {
			in := mp.Start(t, mp.Options{Target: s.URL("app", "app"), Passwords: passwords, Secrets: []string{verifier}, Args: []string{"--auth-type=" + method, "--auth-file=" + list}})
			for user := range passwords {
				switch {
				case method == "scram-sha-256" && user == "hashed", method == "md5" && user == "hashed" && false:
					if e := refused(t, in.URL(user, "app")); e.Code != "28P01" {
						t.Errorf("%s: %+v", user, e)
					}
					continue
				case method == "trust" && user == "verified":
					// Nobody has proved a password that could be passed on.
					if e := refused(t, in.URL(user, "app")); e.Severity != "FATAL" {
						t.Errorf("%s: %+v", user, e)
					}
					continue
				}
				if got := one(t, connect(t, in.URL(user, "app")), "SELECT session_user::text"); got != user {
					t.Errorf("%s is %s", user, got)
				}
			}
			if method == "trust" {
				return
			}
			// A wrong password and an unknown user look the same.
			wrong := refused(t, mp.URL(in.Addr(), "plain", "wrong", "app"))
			unknown := refused(t, mp.URL(in.Addr(), "nobody", "wrong", "app"))
			if wrong.Code != "28P01" || unknown.Code != "28P01" || strings.ReplaceAll(unknown.Message, "nobody", "plain") != wrong.Message || wrong.Detail != unknown.Detail {
				t.Errorf("wrong password %+v, unknown user %+v", wrong, unknown)
			}
			if got := in.Metric(t, "multipooler_logins_total", `result="failed"`); got < 2 {
				t.Errorf("%v failed logins", got)
			}
		})
	}
}

func TestZeroFilesAreEnoughToStart(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{Databases: []string{"app", "second"}})
	in := before(t, s)
	for _, db := range []string{"app", "second", "postgres"} {
		if got := one(t, connect(t, in.URL("app", db)), "SELECT current_database()::text"); got != db {
			t.Errorf("%s is %s", db, got)
		}
	}
	for _, e := range []struct{ user, password string }{{"app", "wrong"}, {"postgres", ""}, {"somebody", s.Password("app")}} {
		if got := refused(t, mp.URL(in.Addr(), e.user, e.password, "app")); got.Code != "28P01" {
			t.Errorf("%s: %+v", e.user, got)
		}
	}
}

func TestAUserListIsReadAgain(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{Users: []pgtest.User{{Name: "app"}, {Name: "late", Password: "late secret"}}})
	list := userlist(t, `"app" "`+s.Password("app")+`"`)
	in := mp.Start(t, mp.Options{Target: s.URL("app", "app"), Passwords: map[string]string{"late": "late secret"}, Args: []string{"--auth-file=" + list}})
	session := connect(t, in.URL("app", "app"))
	if e := refused(t, in.URL("late", "app")); e.Code != "28P01" {
		t.Errorf("%+v", e)
	}
	if err := os.WriteFile(list, []byte(`"late" "late secret"`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	from := in.LogPosition()
	in.Signal(syscall.SIGHUP)
	in.WaitLog(t, from, "configuration reloaded", limitOfRest)
	if got := one(t, connect(t, in.URL("late", "app")), "SELECT current_user::text"); got != "late" {
		t.Error(got)
	}
	if e := refused(t, in.URL("app", "app")); e.Code != "28P01" {
		t.Errorf("%+v", e)
	}
	if got := one(t, session, "SELECT 'goes on'"); got != "goes on" {
		t.Error(got)
	}
}
