package main

import (
	"bytes"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// asProgram, when set, makes the test binary behave as the program itself, so
// that tests can start it as a process.
const asProgram = "TEST_RUN_AS_MULTIPOOLER"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		main()
	}
	goleak.VerifyTestMain(m)
}

const sole = "postgres://app:hunter2@127.0.0.1:1/app"

// capture gives a command *os.File outputs and returns what it wrote.
func capture(t *testing.T, f func(stdout, stderr *os.File) exitCode) (stdout, stderr string, code exitCode) {
	t.Helper()
	open := func() *os.File {
		file, err := os.CreateTemp(t.TempDir(), "out")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		return file
	}
	out, errs := open(), open()
	code = f(out, errs)
	read := func(f *os.File) string {
		data, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	return read(out), read(errs), code
}

func TestCommandsAnswerWithTextAndExitCode(t *testing.T) {
	for _, tt := range []struct {
		name    string
		args    []string
		env     []string
		stdout  string // contained
		stderr  string // contained
		code    exitCode
		exactly bool // stdout is the whole text
	}{
		{name: "check, good", args: []string{"check", sole}, code: exitDrained, exactly: true, stdout: `warning: argument: target: the password came by the command line; it is hidden from the process list, but a shell history may hold it: prefer target_password_file, PGPASSWORD or MULTIPOOLER_TARGET
ok: clients log in on 127.0.0.1:6432 by scram-sha-256; target default at 127.0.0.1:1 for databases * with at most 100 connections; pool mode transaction
`},
		{name: "check, bad", args: []string{"check", sole, "--pool-mode=x", "--drain-delay=5", "--liste=:1"}, env: []string{"DB_MAX_OPEN_CONNS=x"}, code: exitFailed, exactly: true, stdout: `argument: unknown flag --liste; did you mean "--listen"?
flag --drain-delay: drain_delay: "5" lacks its unit: write 5s or 5ms
flag --pool-mode: pool_mode: "x" must be one of transaction, session, statement
env DB_MAX_OPEN_CONNS: connpool_global_capacity: "x" is not a whole number
4 mistakes
`},
		{name: "check, one", args: []string{"check"}, code: exitFailed, stdout: "\n1 mistake\n"},
		{name: "config", args: []string{"config", "--acquire-timeout=3s"}, env: []string{"MULTIPOOLER_TARGET=" + sole}, code: exitDrained, stdout: "acquire_timeout: 3s  # flag --acquire-timeout\n"},
		{name: "config, bad", args: []string{"config", "--acquire-timeout=3"}, code: exitFailed, stdout: "acquire_timeout: 5s  # default\n", stderr: "multipooler: flag --acquire-timeout"},
		{name: "version", args: []string{"version"}, code: exitDrained, stdout: "multipooler "},
		{name: "version flag", args: []string{sole, "--version"}, code: exitDrained, stdout: "multipooler "},
		{name: "help", args: []string{"help"}, code: exitDrained, stdout: "--connpool-global-capacity N (100)"},
		{name: "help flag anywhere", args: []string{"check", "-h"}, code: exitDrained, stdout: "WHERE CLIENTS CONNECT"},
		{name: "no such command", args: []string{"chek"}, code: exitFailed, stderr: "there is no such command"},
		{name: "serve, bad", args: []string{"--pool-mode=x", sole}, code: exitFailed, stderr: "multipooler: flag --pool-mode: pool_mode: \"x\" must be one of"},
		{name: "wait, off", args: []string{"wait", "--http-listen=off"}, code: exitFailed, stderr: "http_listen is off"},
		{name: "wait, bad timeout", args: []string{"wait", "--timeout=5"}, code: exitFailed, stderr: "lacks its unit"},
		{name: "wait, no timeout", args: []string{"wait", "--timeout"}, code: exitFailed, stderr: "missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr, code := capture(t, func(o, e *os.File) exitCode { return dispatch(tt.args, tt.env, o, e) })
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if tt.exactly && stdout != tt.stdout || !strings.Contains(stdout, tt.stdout) {
				t.Errorf("stdout:\n%s\nwant:\n%s", stdout, tt.stdout)
			}
			if !strings.Contains(stderr, tt.stderr) || tt.stderr == "" && stderr != "" {
				t.Errorf("stderr:\n%s\nwant:\n%s", stderr, tt.stderr)
			}
			if strings.Contains(stdout+stderr, "hunter2") {
				t.Error("a secret is shown")
			}
		})
	}
}

func TestTheVersionNamesModuleCommitAndGo(t *testing.T) {
	info := &debug.BuildInfo{
		Main:     debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
	}
	if got := versionLine(info); !strings.HasPrefix(got, "multipooler v1.2.3 (commit abc, modified, go1.") {
		t.Error(got)
	}
	if got := versionLine(&debug.BuildInfo{}); !strings.HasPrefix(got, "multipooler (devel) (commit unknown, go1.") {
		t.Error(got)
	}
}

func TestOnlyATerminalIsATerminal(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if isTerminal(f) {
		t.Error("a file is taken for a terminal")
	}
	// A pseudo-terminal's master is one; not every sandbox has /dev/ptmx.
	if pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err == nil {
		defer pty.Close()
		if !isTerminal(pty) {
			t.Error("a terminal is not recognised")
		}
	}
}

func TestEachCommandOfTheUsageExists(t *testing.T) {
	for line := range strings.Lines(usage) {
		word := strings.Fields(line)[1]
		if !isWord(word) {
			continue
		}
		var b bytes.Buffer
		stdout, stderr, _ := capture(t, func(o, e *os.File) exitCode {
			return dispatch([]string{word, "--http-listen=off"}, nil, o, e)
		})
		b.WriteString(stdout + stderr)
		if strings.Contains(b.String(), "no such command") {
			t.Errorf("%s is not a command", word)
		}
	}
}
