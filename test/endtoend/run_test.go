package endtoend

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// program is a client program to be run.
type program struct {
	path  string
	args  []string
	env   []string
	stdin string
	limit time.Duration // 0 = 60 s
}

// ended is what a program has left.
type ended struct {
	stdout, stderr string
	code           int
}

// run runs a program to its end.
func run(tb testing.TB, p program) ended {
	tb.Helper()
	if p.limit == 0 {
		p.limit = time.Minute
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), p.limit) // clean-ups run programs too
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(p.stdin), &stdout, &stderr
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		tb.Fatalf("%s %q: %v, %v\n%s%s", p.path, p.args, err, ctx.Err(), stdout.String(), stderr.String())
	}
	return ended{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// runOK is run of a program that must succeed; it returns its stdout.
func runOK(tb testing.TB, p program) string {
	tb.Helper()
	r := run(tb, p)
	if r.code != 0 {
		tb.Fatalf("%s %q ended with %d:\n%s%s", p.path, p.args, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}
