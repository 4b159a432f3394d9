// Package operations holds no code: its tests operate the built multipooler as
// docs/operations.md says.
package operations

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(mp.StopAfter(pgtest.StopAfter(m))) }

// limit is for what takes milliseconds on a quiet machine.
const limit = 30 * time.Second

// reload sends SIGHUP and waits for the line that tells the outcome.
func reload(t *testing.T, in *mp.Instance, outcome string) {
	t.Helper()
	from := in.LogPosition()
	in.Signal(syscall.SIGHUP)
	in.WaitLog(t, from, outcome, limit)
}

const (
	taken   = `"configuration reloaded"`
	refused = `"reload failed, what was in force stays"`
)

func TestAReloadChangesTheCapacityWhileClientsWait(t *testing.T) {
	s := pgtest.Shared(t)
	in := mp.Start(t, mp.Options{Target: s.URL("app", "app"), Config: "connpool_global_capacity: 1\n"})
	first := pgtest.Connect(t, in.URL("app", "app"))
	tx, err := first.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second := pgtest.Connect(t, in.URL("app", "app"))
	done := make(chan error, 1)
	go func() {
		_, err := second.Exec(t.Context(), "select 1", pgx.QueryExecModeSimpleProtocol)
		done <- err
	}()
	mp.Eventually(t, limit, "the second client waits", func() bool {
		return in.Metric(t, "multipooler_pool_waiting") == 1
	})
	in.WriteConfig(t, "connpool_global_capacity: 2\n")
	reload(t, in, taken)
	if err := <-done; err != nil {
		t.Fatalf("with a second slot: %v", err)
	}
	if got := in.Metric(t, "multipooler_slots_capacity"); got != 2 {
		t.Errorf("capacity %v, want 2", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}

	in.WriteConfig(t, "connpool_global_capacity: 1\n")
	reload(t, in, taken)
	mp.Eventually(t, limit, "the idle connection over the capacity goes", func() bool {
		return in.Metric(t, "multipooler_slots", `state="idle"`)+in.Metric(t, "multipooler_slots", `state="draining"`) <= 1
	})
}

func TestARefusedReloadChangesNothingAndShows(t *testing.T) {
	s := pgtest.Shared(t)
	const valid = "acquire_timeout: 7s\n"
	in := mp.Start(t, mp.Options{Target: s.URL("app", "app"), Config: valid, Args: []string{"--service-name=shop-7"}})
	if in.Metric(t, "multipooler_build_info", `service="shop-7"`) != 1 {
		t.Error("service_name is not in multipooler_build_info")
	}
	loaded := in.Metric(t, "multipooler_config_last_reload_success_timestamp_seconds")
	if age := float64(time.Now().UnixMilli())/1e3 - loaded; age < 0 || age > limit.Seconds() {
		t.Errorf("the configuration was read %v s ago", age)
	}

	in.WriteConfig(t, "acquire_timeout: soon\n")
	reload(t, in, refused)
	if in.Metric(t, "multipooler_config_last_reload_successful") != 0 || in.Metric(t, "multipooler_config_last_reload_success_timestamp_seconds") != loaded {
		t.Error("the metrics do not show the refusal")
	}
	if code, body := in.HTTP(t, "/readyz"); code != http.StatusOK || !strings.Contains(body, "config_reload_failed") {
		t.Errorf("/readyz: %d %s", code, body)
	}

	in.WriteConfig(t, valid)
	reload(t, in, taken)
	if in.Metric(t, "multipooler_config_last_reload_successful") != 1 || in.Metric(t, "multipooler_config_last_reload_success_timestamp_seconds") <= loaded {
		t.Error("the metrics do not show the success")
	}
	if _, body := in.HTTP(t, "/readyz"); strings.Contains(body, "config_reload_failed") {
		t.Errorf("/readyz: %s", body)
	}
}

func TestAReloadTakesOverANewPasswordOnBothSides(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	file := func(password string) string {
		return fmt.Sprintf("targets:\n- {name: main, host: %s, port: %d, user: app, password: %q, databases: ['*'], connpool_global_capacity: 3}\n",
			"127.0.0.1", s.Port, password)
	}
	in := mp.Start(t, mp.Options{Config: file(s.Password("app")), Passwords: map[string]string{"app": s.Password("app")}, Secrets: []string{"n3w-secret"}})
	conn := pgtest.Connect(t, in.URL("app", "app"))
	if _, err := conn.Exec(t.Context(), "alter role app password 'n3w-secret'"); err != nil {
		t.Fatal(err)
	}
	in.WriteConfig(t, file("n3w-secret"))
	reload(t, in, taken)

	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	if old, err := pgx.Connect(ctx, in.URL("app", "app")); err == nil {
		old.Close(ctx)
		t.Error("the old password is still good")
	}
	fresh := pgtest.Connect(t, mp.URL(in.Addr(), "app", "n3w-secret", "app"))
	// The old client's transaction keeps the connection of before busy, so that
	// a new one is made with the new password.
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := fresh.Exec(ctx, "select 1"); err != nil {
		t.Error(err)
	}
}

func TestAServerThatCannotBeReachedIsANoteInReadyz(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	in := mp.Start(t, mp.Options{Target: s.URL("app", "app")})
	conn := pgtest.Connect(t, in.URL("app", "app"))
	if err := s.Stop(pgtest.Fast); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	if _, err := conn.Exec(ctx, "select 1"); err == nil {
		t.Error("a statement without a server")
	}
	note := func() (int, bool) {
		code, body := in.HTTP(t, "/readyz")
		return code, strings.Contains(body, "server_down:")
	}
	mp.Eventually(t, limit, "the note", func() bool {
		_, _ = pgx.Connect(ctx, in.URL("app", "app")) // makes it dial
		code, down := note()
		if code != http.StatusOK {
			t.Fatalf("/readyz answers %d: a dead database takes nobody out of service", code)
		}
		return down
	})
	if err := s.Server.Start(ctx); err != nil {
		t.Fatal(err)
	}
	mp.Eventually(t, limit, "the end of the note", func() bool {
		if again, err := pgx.Connect(ctx, in.URL("app", "app")); err == nil {
			_, _ = again.Exec(ctx, "select 1")
			again.Close(ctx)
		}
		_, down := note()
		return !down
	})
}

func TestAReloadTakesOverATargetsPasswordThatNoUserListHas(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{})
	users := filepath.Join(t.TempDir(), "userlist.txt")
	if err := os.WriteFile(users, []byte(`"somebody" "else"`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	target := func(password string) string {
		u, err := url.Parse(s.URL("app", "app"))
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword("app", password)
		return fmt.Sprintf("auth_type: trust\nauth_file: %s\ntarget: %q\n", users, u)
	}
	in := mp.Start(t, mp.Options{Config: target("wrong-one")})
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	if conn, err := pgx.Connect(ctx, in.URL("app", "app")); err == nil {
		conn.Close(ctx)
		t.Fatal("the server took a wrong password")
	}
	in.WriteConfig(t, target(s.Password("app")))
	reload(t, in, taken)
	mp.Eventually(t, limit, "a login with the new password", func() bool { // the back-off of the failed one ends
		conn, err := pgx.Connect(ctx, in.URL("app", "app"))
		if err == nil {
			conn.Close(ctx)
		}
		return err == nil
	})
}
