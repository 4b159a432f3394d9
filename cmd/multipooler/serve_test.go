package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/config"
)

// bench runs a daemon with a pooler that the test plays.
type bench struct {
	signals chan os.Signal
	stderr  bytes.Buffer
	ctl     control
	cfg     *config.Config
	ctx     context.Context
	finish  chan error // ends the pooler
	how     outcome
	code    chan exitCode
}

// newBench starts it; call inside a synctest bubble.
func newBench(args ...string) *bench {
	b := &bench{signals: make(chan os.Signal), finish: make(chan error), code: make(chan exitCode, 1)}
	d := &daemon{args: args, env: []string{"MULTIPOOLER_TARGET=" + sole}, stderr: &b.stderr, signals: b.signals}
	d.run = func(ctx context.Context, cfg *config.Config, _ *zap.Logger, ctl control) (outcome, error) {
		b.ctx, b.cfg, b.ctl = ctx, cfg, ctl
		err := <-b.finish
		return b.how, err
	}
	go func() { b.code <- d.serve() }()
	synctest.Wait()
	return b
}

func (b *bench) end(t *testing.T, how outcome, err error, want exitCode) {
	t.Helper()
	b.how = how
	b.finish <- err
	if got := <-b.code; got != want {
		t.Errorf("exit code %d, want %d\n%s", got, want, b.stderr.String())
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestTheExitCodeSaysHowItEnded(t *testing.T) {
	for _, tt := range []struct {
		how  outcome
		err  error
		want exitCode
	}{
		{drained, nil, exitDrained},
		{cut, nil, exitCut},
		{drained, errors.New("listen: address in use"), exitFailed},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench()
			b.end(t, tt.how, tt.err, tt.want)
		})
	}
}

func TestTheFirstSignalDrainsTheSecondCutsTheThirdEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		if b.ctx.Err() != nil {
			t.Fatal("drains without a signal")
		}
		b.signals <- syscall.SIGTERM
		synctest.Wait()
		if b.ctx.Err() == nil || isClosed(b.ctl.cut) {
			t.Fatal("the first signal must drain, and only that")
		}
		if got := context.Cause(b.ctx).Error(); got != "signal: terminated" {
			t.Errorf("cause: %s", got)
		}
		b.signals <- syscall.SIGINT
		synctest.Wait()
		if !isClosed(b.ctl.cut) {
			t.Fatal("the second signal must cut")
		}
		b.signals <- syscall.SIGINT
		if got := <-b.code; got != exitCut {
			t.Errorf("exit code %d", got)
		}
		b.finish <- nil // the pooler that hung
	})
}

func writeConfig(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSIGHUPReadsTheConfigurationAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mp.yaml")
	writeConfig(t, path, "acquire_timeout: 1s\n")
	synctest.Test(t, func(t *testing.T) {
		b := newBench("--config", path)
		if b.cfg.Pool.AcquireTimeout != time.Second {
			t.Fatal(b.cfg.Pool.AcquireTimeout)
		}
		writeConfig(t, path, "acquire_timeout: 2s\nevent_loops: 3\nlog_level: error\n")
		b.signals <- syscall.SIGHUP
		got := <-b.ctl.reload
		if got.err != nil || got.config.Pool.AcquireTimeout != 2*time.Second || got.config.EventLoops != 0 || len(got.changes) != 3 {
			t.Errorf("got %+v", got)
		}
		if !strings.Contains(b.stderr.String(), `"effective after a restart"`) && !strings.Contains(b.stderr.String(), "after a restart") {
			t.Errorf("the restart is not mentioned:\n%s", b.stderr.String())
		}
		if b.cfg.Pool.AcquireTimeout != time.Second {
			t.Error("the running configuration was changed in place")
		}
		b.stderr.Reset()
		b.end(t, drained, nil, exitDrained)
		if b.stderr.Len() != 0 {
			t.Errorf("the new log level is not in force: %s", b.stderr.String())
		}
	})
}

func TestAMistakeInAReloadChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mp.yaml")
	writeConfig(t, path, "acquire_timeout: 1s\n")
	synctest.Test(t, func(t *testing.T) {
		b := newBench("--config", path)
		writeConfig(t, path, "acquire_timeout: 2s\npool_mode: x\n")
		b.signals <- syscall.SIGHUP
		got := <-b.ctl.reload
		if got.err == nil || got.config != nil {
			t.Errorf("got %+v", got)
		}
		if want := path + ":2: pool_mode"; !strings.Contains(b.stderr.String(), want) {
			t.Errorf("%s is not in\n%s", want, b.stderr.String())
		}
		b.end(t, drained, nil, exitDrained)
	})
}

func TestAChangedFileIsReadWithoutASignal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mp.yaml")
	writeConfig(t, path, "acquire_timeout: 1s\n")
	synctest.Test(t, func(t *testing.T) {
		b := newBench("--config", path)
		began := time.Now()
		select {
		case got := <-b.ctl.reload:
			t.Fatalf("a reload without a change: %+v", got)
		case <-time.After(10*watchInterval + time.Second):
		}
		writeConfig(t, path, "acquire_timeout: 3s\n")
		got := <-b.ctl.reload
		if got.err != nil || got.config.Pool.AcquireTimeout != 3*time.Second {
			t.Errorf("got %+v", got)
		}
		if took := time.Since(began); took != 11*watchInterval {
			t.Errorf("seen after %s", took)
		}
		// A mistake is reported once, not at each look; a file that is away
		// for a moment keeps the configuration.
		writeConfig(t, path, "pool_mode: x\n")
		if got := <-b.ctl.reload; got.err == nil {
			t.Error("the mistake is not seen")
		}
		select {
		case got := <-b.ctl.reload:
			t.Errorf("reported twice: %+v", got)
		case <-time.After(10*watchInterval + time.Second):
		}
		b.end(t, drained, nil, exitDrained)
	})
}

func TestOnlyTheNewestReloadWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mp.yaml")
	writeConfig(t, path, "max_clients: 1\n")
	synctest.Test(t, func(t *testing.T) {
		b := newBench("--config", path)
		for n := range 5 {
			writeConfig(t, path, fmt.Sprintf("max_clients: %d\n", n+2))
			b.signals <- syscall.SIGHUP
			synctest.Wait()
		}
		if got := <-b.ctl.reload; got.config.Client.Max != 6 {
			t.Errorf("got %d", got.config.Client.Max)
		}
		if len(b.ctl.reload) != 0 {
			t.Error("an older one is left")
		}
		b.end(t, drained, nil, exitDrained)
	})
}

func TestTheLogIsJSONUnlessAPersonReadsIt(t *testing.T) {
	for _, tt := range []struct {
		log      config.Log
		terminal bool
		json     bool
	}{
		{config.Log{Level: "info"}, false, true},
		{config.Log{Level: "info"}, true, false},
		{config.Log{Level: "info", Format: config.LogJSON}, true, true},
		{config.Log{Level: "info", Format: config.LogConsole}, false, false},
	} {
		var b bytes.Buffer
		log, _ := newLogger(tt.log, &b, tt.terminal)
		log.Debug("quiet")
		log.Info("event", zap.Duration("took", time.Second))
		if got := strings.HasPrefix(b.String(), "{"); got != tt.json || strings.Count(b.String(), "\n") != 1 {
			t.Errorf("%+v: %s", tt, b.String())
		}
	}
}

func TestTheNeededFilesFollowTheLimits(t *testing.T) {
	c, err := config.Load(config.Input{Args: []string{sole, "--max-clients=1000", "--connpool-global-capacity=50", "--cancel-concurrency=2"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := filesNeeded(c); got != 1000+50+2+filesBeside {
		t.Fatal(got)
	}
}
