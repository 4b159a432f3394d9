// Package pgserver runs a private PostgreSQL: it finds the binaries, makes a
// data folder from a cached template, starts the server on a free port, and
// takes everything away again. Tests reach it through pgtest; scripts/devrun
// uses it directly, which is why nothing in here knows of package testing.
//
// A Server owns one postmaster process, the goroutine that waits for it and
// the goroutine that reads its log. Both end when the postmaster and its
// children have; Close waits for them. The kernel ends the postmaster when our
// process dies without closing (Pdeathsig), and the next start on the machine
// sweeps the folder that was left (folder.go).
//
// Linux only, like the product: privileges are dropped with SysProcAttr.
package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	minVersion       = 13 // older servers are not supported by the project
	preferredVersion = 15 // the oldest one the tests were written against
)

// Binaries is one PostgreSQL installation.
type Binaries struct {
	Dir     string // holds postgres and initdb
	Major   int    // 15
	Version string // "15.18 (Debian 15.18-0+deb12u1)"
}

// ErrNotFound says in one sentence what to do.
var ErrNotFound = errors.New("no PostgreSQL server found in $PGBIN, PATH, `pg_config --bindir` or /usr/lib/postgresql/*/bin: " +
	"run scripts/deps.sh or `apt-get install postgresql`, or set PGBIN to the folder that holds postgres and initdb")

// Find looks for PostgreSQL in $PGBIN, PATH, `pg_config --bindir` and the
// versioned folders of the distributions, newest first. The first installation
// of version 15 or newer wins, else the first of version 13 or newer. A PGBIN
// that is set but unusable is an error: it was a wish, not a hint.
func Find() (Binaries, error) {
	if dir := os.Getenv("PGBIN"); dir != "" {
		b, err := inspect(dir)
		if err != nil {
			return Binaries{}, fmt.Errorf("PGBIN=%s: %w", dir, err)
		}
		return b, nil
	}
	var found []Binaries
	for _, dir := range candidates() {
		if b, err := inspect(dir); err == nil {
			found = append(found, b)
		}
	}
	return choose(found)
}

// choose picks from installations in order of preference.
func choose(found []Binaries) (Binaries, error) {
	for _, least := range []int{preferredVersion, minVersion} {
		if i := slices.IndexFunc(found, func(b Binaries) bool { return b.Major >= least }); i >= 0 {
			return found[i], nil
		}
	}
	if len(found) > 0 {
		return Binaries{}, fmt.Errorf("PostgreSQL %s in %s is too old, %d or newer is needed: %w",
			found[0].Version, found[0].Dir, minVersion, ErrNotFound)
	}
	return Binaries{}, ErrNotFound
}

func candidates() []string {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		// Follow links: Debian users link single programs into /usr/local/bin,
		// and initdb must be the one next to the real postgres.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin"} {
		matches, _ := filepath.Glob(pattern) // the only error is a bad pattern
		slices.SortFunc(matches, func(a, b string) int { return folderVersion(b) - folderVersion(a) })
		dirs = append(dirs, matches...)
	}
	return dirs
}

var digits = regexp.MustCompile(`\d+`)

// folderVersion reads 15 out of /usr/lib/postgresql/15/bin. Sorting by text
// would put 9 in front of 15.
func folderVersion(dir string) int {
	n, _ := strconv.Atoi(digits.FindString(dir))
	return n
}

func inspect(dir string) (Binaries, error) {
	for _, program := range []string{"postgres", "initdb"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return Binaries{}, err
		}
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return Binaries{}, fmt.Errorf("ask %s/postgres for its version: %w", dir, err)
	}
	return parseVersion(dir, string(out))
}

// parseVersion reads the answer of postgres --version,
// "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)" or "… 18beta1".
func parseVersion(dir, answer string) (Binaries, error) {
	_, version, ok := strings.Cut(strings.TrimSpace(answer), "(PostgreSQL) ")
	major, err := strconv.Atoi(digits.FindString(version))
	if !ok || err != nil {
		return Binaries{}, fmt.Errorf("no version in %q", answer)
	}
	return Binaries{Dir: dir, Major: major, Version: version}, nil
}

// Tool is the path of a client program (psql, pgbench, pg_dump) of this
// installation, or the one in PATH where the installation has none.
func (b Binaries) Tool(name string) (string, error) {
	path := filepath.Join(b.Dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither in %s nor in PATH: run scripts/deps.sh or `apt-get install postgresql-client`", name, b.Dir)
	}
	return path, nil
}
