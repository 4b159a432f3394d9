package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestSecretArgumentsMoveToTheEnvironmentAndBack(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want []string // what the process list shows; nil = not started again
	}{
		{"no secret", []string{"postgres://app@h/x", "--max-clients=3", "env:MAIN"}, nil},
		{"argument", []string{"--max-clients=3", sole}, []string{"--max-clients=3", "postgres://app:****@127.0.0.1:1/app"}},
		{"flag", []string{"--target=" + sole}, []string{"--target=postgres://app:****@127.0.0.1:1/app"}},
		{"flag and value", []string{"--target", sole}, []string{"--target", "postgres://app:****@127.0.0.1:1/app"}},
		{"after a command", []string{"check", sole}, []string{"check", "postgres://app:****@127.0.0.1:1/app"}},
		{"query", []string{"postgres://h/x?user=u&password=hunter2"}, []string{"postgres://h/x?user=u&password=****"}},
		{"a URL that does not parse", []string{"postgres://app:hun/ter2@h"}, []string{"postgres://****"}},
		{"a connection string", []string{"host=h password=hunter2"}, []string{"****"}},
		{"two", []string{sole, "--target=" + sole}, []string{"postgres://app:****@127.0.0.1:1/app", "--target=postgres://app:****@127.0.0.1:1/app"}},
		{"a password that is the mask", []string{"postgres://app:****@h"}, []string{"postgres://app:****@h"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var shown, env []string
			gone := errors.New("the process was replaced")
			execed := func(path string, argv, e []string) error {
				shown, env = argv, e
				return gone
			}
			args, _, err := hideSecrets(append([]string{"mp"}, tt.args...), []string{"HOME=/"}, execed)
			if tt.want == nil {
				if err != nil || shown != nil || !slices.Equal(args, tt.args) {
					t.Fatalf("got %q, %v; shown %q", args, err, shown)
				}
				return
			}
			if !errors.Is(err, gone) || !slices.Equal(shown, append([]string{"mp"}, tt.want...)) {
				t.Fatalf("shown %q, %v", shown, err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("shown in the error: %v", err)
			}
			// The second start sees what was given, and starts no third one.
			again := func(string, []string, []string) error { t.Fatal("started a third time"); return nil }
			args, rest, err := hideSecrets(shown, env, again)
			if err != nil || !slices.Equal(args, tt.args) || !slices.Equal(rest, []string{"HOME=/"}) {
				t.Fatalf("got %q with %q, %v; want %q", args, rest, err, tt.args)
			}
		})
	}
}

func TestAStaleVariableDoesNotReplaceAnArgument(t *testing.T) {
	never := func(string, []string, []string) error { t.Fatal("started again"); return nil }
	for _, stale := range []string{hiddenArg + "0=" + sole, hiddenArg + "7=" + sole, hiddenArg + "x=" + sole, hiddenArg + "-1=" + sole} {
		args, env, err := hideSecrets([]string{"mp", "--max-clients=3"}, []string{stale}, never)
		if err != nil || !slices.Equal(args, []string{"--max-clients=3"}) || len(env) != 0 {
			t.Errorf("%s: got %q, %q, %v", stale, args, env, err)
		}
	}
}

// start runs the program as a process and returns once it has logged a line
// that contains text.
func start(t *testing.T, text string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = []string{asProgram + "=1"}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	lines := bufio.NewScanner(stderr)
	var seen strings.Builder
	for lines.Scan() {
		fmt.Fprintln(&seen, lines.Text())
		if strings.Contains(lines.Text(), text) {
			return cmd
		}
	}
	t.Fatalf("the process ended without saying %q:\n%s", text, seen.String())
	return nil
}

// TestTheProcessListNeverShowsThePassword reads what ps reads.
func TestTheProcessListNeverShowsThePassword(t *testing.T) {
	for _, args := range [][]string{
		{"--listen=127.0.0.1:0", "--http-listen=off", sole},
		{"--listen=127.0.0.1:0", "--http-listen=off", "--target=" + sole},
	} {
		cmd := start(t, "the password came by the command line", args...)
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(line); strings.Contains(got, "hunter2") || !strings.Contains(got, "app:****@") {
			t.Errorf("ps shows %q", got)
		}
	}
}

func TestAProcessEndsWithTheExitCodeOfItsDrain(t *testing.T) {
	cmd := start(t, "the password came by the command line", "--listen=127.0.0.1:0", "--http-listen=off", "--drain-timeout=1s", sole)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != int(exitDrained) {
		t.Fatalf("exit code %d (%s)", got, cmd.ProcessState)
	}
}
