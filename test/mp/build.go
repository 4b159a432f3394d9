package mp

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built is the program under test.
var built struct {
	sync.Mutex
	dir  string
	path string
	err  error
}

// Program is the path of the built multipooler.
func Program(tb testing.TB) string {
	tb.Helper()
	built.Lock()
	defer built.Unlock()
	if built.path == "" && built.err == nil {
		built.path, built.err = build()
	}
	if built.err != nil {
		tb.Fatal(built.err)
	}
	return built.path
}

// build compiles the program into a folder that StopAfter removes.
func build() (string, error) {
	var err error
	if built.dir, err = os.MkdirTemp("", "multipooler-e2e-"); err != nil {
		return "", err
	}
	path := filepath.Join(built.dir, "multipooler")
	args := []string{"build", "-o", path}
	if RaceDetector {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "github.com/multipooler/multipooler/cmd/multipooler")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build multipooler: %w\n%s", err, out)
	}
	return path, nil
}

// StopAfter is m with the built program removed behind it.
func StopAfter(m interface{ Run() int }) interface{ Run() int } { return stopAfter{m} }

type stopAfter struct{ tests interface{ Run() int } }

func (s stopAfter) Run() int {
	code := s.tests.Run()
	built.Lock()
	defer built.Unlock()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	return code
}
