// Command bench measures multipooler beside PgBouncer and direct PostgreSQL in
// one run, on loopback, with everything it needs started by itself.
//
// Every figure that is judged is a ratio of two measurements of the same round:
// a round measures all targets of a row right after each other, every second
// round backwards, and the median of the rounds' ratios is printed with the
// spread. So a machine that is slower than yesterday, or busy, changes the
// figures less than it changes the absolutes. docs/performance.md tells more.
//
// It starts PostgreSQL (package pgserver), pgbouncer and multipooler as child
// processes and ends them by process id; main owns them all. A target that
// cannot be started is left out with a message.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	rows        string
	rounds      int
	duration    time.Duration
	clients     int // idle clients of the memory rows
	limit       time.Duration
	quick       bool
	strace      bool
	list        bool
	multipooler string
	extra       string
	skip        string
}

func parseOptions() options {
	var o options
	flag.StringVar(&o.rows, "rows", "", "only rows whose name contains one of these comma-separated words (see -list)")
	flag.IntVar(&o.rounds, "rounds", 6, "rounds; odd ones run backwards")
	flag.DurationVar(&o.duration, "duration", 2500*time.Millisecond, "of one measurement")
	flag.IntVar(&o.clients, "idle-clients", 5000, "clients of the memory rows")
	flag.DurationVar(&o.limit, "limit", 15*time.Minute, "the whole run ends here, with what it has")
	flag.BoolVar(&o.quick, "quick", false, "2 rounds of 1 s and 1000 idle clients: under 2 minutes, figures for orientation only")
	flag.BoolVar(&o.strace, "strace", true, "count system calls per query where strace exists")
	flag.BoolVar(&o.list, "list", false, "print the rows and end")
	flag.StringVar(&o.multipooler, "multipooler", "", "binary to measure; empty builds ./cmd/multipooler")
	flag.StringVar(&o.extra, "multipooler-flags", "", "more flags for it, separated by spaces")
	flag.StringVar(&o.skip, "skip", "", "comma-separated targets to leave out (direct, pgbouncer, multipooler)")
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if o.quick {
		for name, set := range map[string]func(){
			"rounds":       func() { o.rounds = 2 },
			"duration":     func() { o.duration = time.Second },
			"idle-clients": func() { o.clients = 1000 },
			"limit":        func() { o.limit = 2 * time.Minute },
		} {
			if !given[name] {
				set()
			}
		}
	}
	return o
}

func main() {
	o := parseOptions()
	if o.list {
		for _, r := range rows {
			fmt.Printf("%-28s %s\n", r.name, r.describe())
		}
		return
	}
	if err := measure(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// measure is run within the limit, and until a signal.
func measure(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("the limit of %s is over (-limit)", o.limit))
	defer cancel()
	return run(ctx, o)
}

// run measures the chosen rows, profile by profile, and prints the table. What
// was measured before an error is printed too.
func run(ctx context.Context, o options) error {
	chosen := chooseRows(o.rows)
	if len(chosen) == 0 {
		return fmt.Errorf("no row matches -rows %q; -list shows them", o.rows)
	}
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	defer b.close()
	say("%s/%s, %d cores, %s, %s, PostgreSQL %s, load %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), kernel(), b.server.Version, loadAverage())

	var results []*result
	for _, p := range profiles {
		inProfile := filterRows(chosen, p)
		if len(inProfile) == 0 {
			continue
		}
		got, measureErr := b.measure(ctx, p, inProfile)
		results = append(results, got...)
		if err = measureErr; err != nil {
			break
		}
	}
	printReport(os.Stdout, results, b.names())
	say("load at the end %s", loadAverage())
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return errors.Join(cause, err)
	}
	return err
}

// say reports progress; the table alone goes to standard output.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func kernel() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return "Linux " + strings.TrimSpace(string(b))
}

func loadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(b))
	return strings.Join(f[:min(3, len(f))], " ")
}
