package endtoend

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
)

func TestADrainLetsTransactionsEndAndExitsWith0(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		in, s := front(t, slots(3), trusting)
		idle, pinned, open := loginRaw(t, in.Addr()), loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
		pinned.query("SET work_mem = '9MB'")
		open.query("BEGIN")
		running := loginRaw(t, in.Addr())
		running.send(&pgproto3.Query{String: "SELECT pg_sleep(0.3), 'runs while draining'"})
		untilRunning(t, s, "runs while draining", 1)
		in.Signal(sig)
		for name, r := range map[string]*raw{"idle": idle, "pinned": pinned} {
			if got := r.reply(); got != "E(FATAL 57P01) EOF" {
				t.Errorf("%s: %s", name, got)
			}
		}
		if got := running.reply() + " " + running.reply(); !strings.Contains(got, "D(|runs while draining)") || !strings.HasSuffix(got, "Z(I) E(FATAL 57P01) EOF") {
			t.Errorf("running: %s", got)
		}
		if code, body := in.HTTP(t, "/readyz"); code != 503 || !strings.Contains(body, "draining") {
			t.Errorf("/readyz: %d %s", code, body)
		}
		if code, _ := in.HTTP(t, "/livez"); code != 200 {
			t.Errorf("/livez: %d", code)
		}
		if got := open.value("SELECT 'still inside'"); got != "still inside" {
			t.Error(got)
		}
		if got := open.query("COMMIT") + " " + open.reply(); got != "C(COMMIT) Z(I) E(FATAL 57P01) EOF" {
			t.Errorf("open: %s", got)
		}
		if code := in.Wait(t, limitOfRest); code != 0 {
			t.Errorf("exit code %d", code)
		}
		untilRunning(t, s, "", 0) // and the server has no backend of it left
	}
}

func TestADrainThatTakesTooLongCutsAndExitsWith2(t *testing.T) {
	for name, hurry := range map[string]bool{"the timeout": false, "a second signal": true} {
		t.Run(name, func(t *testing.T) {
			timeout := "--drain-timeout=400ms"
			if hurry {
				timeout = "--drain-timeout=1h"
			}
			in, s := front(t, slots(2), trusting, timeout)
			idle, running := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
			idle.query("BEGIN")
			running.send(&pgproto3.Query{String: "SELECT pg_sleep(60), 'to be cut'"})
			untilRunning(t, s, "to be cut", 1)
			start := time.Now()
			in.Signal(syscall.SIGTERM)
			if hurry {
				in.WaitLog(t, 0, `"msg":"draining"`, limitOfRest)
				in.Signal(syscall.SIGTERM)
			}
			for name, r := range map[string]*raw{"idle in a transaction": idle, "running": running} {
				if got := r.reply(); !strings.HasSuffix(got, "E(FATAL 57P01) EOF") {
					t.Errorf("%s: %s", name, got)
				}
			}
			if took := time.Since(start); !hurry && took < 350*time.Millisecond {
				t.Errorf("cut after %v", took)
			}
			if code := in.Wait(t, 20*time.Second); code != 2 {
				t.Errorf("exit code %d", code)
			}
			untilRunning(t, s, "to be cut", 0) // the statement was cancelled, nobody else will
		})
	}
}

func TestADrainDelayServesOn(t *testing.T) {
	in, _ := front(t, slots(2), trusting, "--drain-delay=500ms")
	idle := loginRaw(t, in.Addr())
	in.Signal(syscall.SIGTERM)
	mp.Eventually(t, limitOfRest, "/readyz fails", func() bool { code, _ := in.HTTP(t, "/readyz"); return code == 503 })
	if got := loginRaw(t, in.Addr()).value("SELECT 'a late one'"); got != "a late one" {
		t.Error(got)
	}
	if got := idle.value("SELECT 'served'"); got != "served" {
		t.Error(got)
	}
	if got := idle.reply(); got != "E(FATAL 57P01) EOF" {
		t.Error(got)
	}
	if code := in.Wait(t, limitOfRest); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestAThirdSignalEndsTheProcessAsItIs(t *testing.T) {
	in, _ := front(t, slots(1), trusting, "--drain-delay=1h")
	in.Signal(syscall.SIGTERM)
	in.WaitLog(t, 0, `"msg":"draining"`, limitOfRest)
	in.Signal(syscall.SIGINT)
	in.Signal(syscall.SIGTERM)
	if code := in.Wait(t, limitOfRest); code != 0 && code != 2 {
		t.Errorf("exit code %d", code)
	}
}
