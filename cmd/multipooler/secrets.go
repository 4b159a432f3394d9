package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/multipooler/multipooler/config"
)

// hiddenArg names the variables that carry what was taken out of the command
// line; the argument's position follows. /proc/PID/environ is readable by the
// same user only, /proc/PID/cmdline (and so ps) by everybody.
const hiddenArg = "MULTIPOOLER_HIDDEN_ARGUMENT_"

// hideSecrets keeps passwords out of the process list. A process cannot change
// its own command line reliably, so it starts itself again, in the same
// process, with each secret argument masked and its text in a variable; the
// second time around it puts the arguments together again and returns them with
// an environment that no longer holds the variables. Until the exec, about a
// millisecond after the start, the arguments are as the operator wrote them:
// MULTIPOOLER_TARGET, PGPASSWORD and --target-password-file have no such gap.
//
// argv includes the program's name, the returned args do not. exec is
// syscall.Exec; it returns only on failure, and then nothing starts.
func hideSecrets(argv, env []string, exec func(path string, argv, env []string) error) (args, rest []string, err error) {
	args = slices.Clone(argv[min(1, len(argv)):])
	hidden := map[int]string{}
	rest = slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, text, _ := strings.Cut(e, "=")
		pos, ours := strings.CutPrefix(name, hiddenArg)
		if !ours {
			return false
		}
		if i, err := strconv.Atoi(pos); err == nil && i >= 0 && i < len(args) {
			hidden[i] = text
		}
		return true
	})
	masked := slices.Clone(argv)
	next := slices.Clone(rest)
	for i, a := range args {
		if text, ok := hidden[i]; ok && maskArg(text) == a {
			args[i] = text
			continue
		}
		if m := maskArg(a); m != a || hasSecret(a) {
			masked[i+1] = m
			next = append(next, hiddenArg+strconv.Itoa(i)+"="+a)
		}
	}
	if len(next) == len(rest) {
		return args, rest, nil
	}
	// Arguments restored from a variable stay masked; keep their variables.
	for i, text := range hidden {
		if args[i] == text {
			next = append(next, hiddenArg+strconv.Itoa(i)+"="+text)
		}
	}
	path, err := os.Executable()
	if err == nil {
		err = exec(path, masked, next)
	}
	return nil, nil, fmt.Errorf("hide the password on the command line from the process list: %w; give it by MULTIPOOLER_TARGET, PGPASSWORD or --target-password-file", err)
}

// splitArg cuts --flag=value into "--flag=" and value.
func splitArg(a string) (flag, value string) {
	if strings.HasPrefix(a, "-") {
		if i := strings.IndexByte(a, '='); i >= 0 {
			return a[:i+1], a[i+1:]
		}
		return a, ""
	}
	return "", a
}

func hasSecret(a string) bool {
	_, value := splitArg(a)
	return value != "" && config.HasPassword(value)
}

// maskArg is the argument as the process list may show it.
func maskArg(a string) string {
	if !hasSecret(a) {
		return a
	}
	flag, value := splitArg(a)
	return flag + config.MaskURL(value)
}
