package mp

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(StopAfter(m)) }

const nobody = "postgres://app:a%20secret%2F1@127.0.0.1:1/app"

func TestAProcessIsStartedAskedAndEnded(t *testing.T) {
	in := Start(t, Options{Target: nobody})
	if code, body := in.HTTP(t, "/livez"); code != 200 {
		t.Errorf("/livez: %d %s", code, body)
	}
	if got := in.Metric(t, "multipooler_slots_capacity"); got != 100 {
		t.Errorf("capacity %v", got)
	}
	if in.PeakMemory(t) < 1<<20 {
		t.Error("a process has more memory than that")
	}
	if want := "postgres://app:a%20secret%2F1@" + in.Addr() + "/x?sslmode=disable"; in.URL("app", "x") != want {
		t.Errorf("URL %s, want %s", in.URL("app", "x"), want)
	}
	in.Signal(syscall.SIGTERM)
	if code := in.Wait(t, 10*time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if code, _ := in.HTTP(t, "/livez"); code != 0 {
		t.Error("a dead process answers")
	}
}

func TestAProcessThatCannotStartIsReturnedToItsTest(t *testing.T) {
	in := Start(t, Options{Target: nobody, Args: []string{"--pool-mode=x"}, MayFail: true})
	if code := in.Wait(t, time.Second); code != 1 || !strings.Contains(in.Log(), "pool_mode") {
		t.Errorf("exit code %d: %s", code, in.Log())
	}
}

// recorder is a testing.TB that takes note of errors.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Errorf(format string, _ ...any) { r.errors = append(r.errors, format) }
func (r *recorder) Helper()                        {}

func TestTheLogIsJudged(t *testing.T) {
	for _, tt := range []struct {
		line string
		bad  bool
	}{
		{"all is well", false},
		{`{"msg":"it says a secret/1"}`, true},
		{"target a+secret%2F1", true},
		{"panic: oh", true},
		{"WARNING: DATA RACE", true},
	} {
		in := &Instance{}
		in.opts.Passwords = knownPasswords(Options{Target: nobody})
		in.log.add(tt.line+"\n", false)
		r := &recorder{TB: t}
		in.judge(r)
		if (len(r.errors) > 0) != tt.bad {
			t.Errorf("%q: %q", tt.line, r.errors)
		}
	}
}
