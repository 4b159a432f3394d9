package pgtest

import (
	"errors"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Python is an interpreter that can import psycopg: scripts/deps.sh installs it
// as the distribution's package, or without root into .cache/venv.
func Python(tb testing.TB) string {
	tb.Helper()
	candidates := []string{"python3", "/usr/bin/python3"} // a pyenv may hide the distribution's
	if _, here, _, ok := runtime.Caller(0); ok && filepath.IsAbs(here) {
		root := filepath.Dir(filepath.Dir(filepath.Dir(here)))
		candidates = append([]string{filepath.Join(root, ".cache/venv/bin/python")}, candidates...)
	}
	var errs error
	for _, python := range candidates {
		out, err := exec.Command(python, "-c", "import psycopg").CombinedOutput()
		if err == nil {
			return python
		}
		errs = errors.Join(errs, errors.New(python+": "+err.Error()+" "+string(out)))
	}
	tb.Fatalf("no Python with psycopg: run scripts/deps.sh e2e, or `apt-get install python3-psycopg`\n%v", errs)
	return ""
}
