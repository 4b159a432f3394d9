// Command multipooler is a connection pooler for PostgreSQL.
//
// It turns flags, environment and file into a config.Config, hands that to the
// pooler (run.go), and carries signals, reloads and exit codes. All state lives
// in values that main makes; the process has no globals.
//
// Goroutines: one that runs the pooler, owned and waited for by
// daemon.serve, which itself runs on the main goroutine.
package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/multipooler/multipooler/config"
)

// exitCode is what the process says to who started it.
type exitCode int

const (
	exitDrained exitCode = 0 // everything asked for was done; a daemon ended with no session cut
	exitFailed  exitCode = 1 // configuration or start failed, or a check found mistakes
	exitCut     exitCode = 2 // the daemon ended, and sessions were cut
)

func main() {
	args, env, err := hideSecrets(os.Args, os.Environ(), syscall.Exec)
	if err != nil {
		fmt.Fprintln(os.Stderr, "multipooler:", err)
		os.Exit(int(exitFailed))
	}
	os.Exit(int(dispatch(args, env, os.Stdout, os.Stderr)))
}

const usage = `multipooler [flags] [postgres://user:password@host:port/dbname]   serve
multipooler check  [flags] [URL]      name every mistake of the configuration, and its place
multipooler config [flags] [URL]      print what is in force, and where each value came from
multipooler wait   [--timeout 60s] [flags]   until a multipooler on this machine has started
multipooler version
multipooler help
`

// dispatch runs the subcommand, or the daemon when none is named.
func dispatch(args, env []string, stdout, stderr *os.File) exitCode {
	if asksFor(args, "--help", "-h") {
		return help(stdout)
	}
	if asksFor(args, "--version") {
		return version(stdout)
	}
	if len(args) > 0 && isWord(args[0]) {
		rest := args[1:]
		switch args[0] {
		case "check":
			return check(rest, env, stdout)
		case "config":
			return effective(rest, env, stdout, stderr)
		case "wait":
			return wait(rest, env, stdout, stderr)
		case "version":
			return version(stdout)
		case "help":
			return help(stdout)
		}
		fmt.Fprintf(stderr, "multipooler: there is no such command; these are:\n%s", usage)
		return exitFailed
	}
	signals := make(chan os.Signal, 8)
	// Until the process is gone: a second signal that comes after everything has
	// ended must not change the exit code.
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	d := &daemon{args: args, env: env, stderr: stderr, terminal: isTerminal(stderr), signals: signals, run: run}
	return d.serve()
}

var word = regexp.MustCompile(`^[a-z]+$`)

func isWord(s string) bool { return word.MatchString(s) }

// asksFor says whether one of the flags stands among the arguments.
func asksFor(args []string, flags ...string) bool {
	for _, a := range args {
		if a == "--" {
			return false
		}
		if slices.Contains(flags, a) {
			return true
		}
	}
	return false
}

func help(out io.Writer) exitCode {
	fmt.Fprintf(out, "multipooler: few server connections serve many PostgreSQL clients\n\n%s\n%s", usage, config.Help())
	return exitDrained
}

// printMistakes writes one line per mistake.
func printMistakes(out io.Writer, prefix string, err error) int {
	list := config.Mistakes(err)
	for _, m := range list {
		fmt.Fprintln(out, prefix+strings.ReplaceAll(m.Error(), "\n", " "))
	}
	return len(list)
}
