package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// sample holds the figures of one measurement of one target.
type sample map[metric]float64

// result collects a row's samples; samples[name][i] and samples[other][i] were
// taken in the same round.
type result struct {
	row     row
	samples map[string][]sample
}

// measure runs all rounds of a profile's rows.
func (b *bench) measure(ctx context.Context, p profile, rows []row) (results []*result, err error) {
	for _, r := range rows {
		results = append(results, &result{row: r, samples: map[string][]sample{}})
	}
	if p == idle {
		return results, b.measureIdle(ctx, results)
	}
	targets, stop, err := b.targets(ctx, p, "")
	if err != nil {
		return results, err
	}
	defer stop()
	for round := range b.opts.rounds {
		order := slices.Clone(targets)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, res := range results {
			for _, t := range order {
				s, err := b.once(ctx, res.row, t)
				if err != nil {
					return results, fmt.Errorf("%s, %s: %w", res.row.name, t.name, err)
				}
				res.samples[t.name] = append(res.samples[t.name], s)
			}
		}
		say("%s: round %d of %d, load %s", p, round+1, b.opts.rounds, loadAverage())
	}
	if !b.opts.strace {
		return results, nil
	}
	for _, res := range results {
		for _, t := range targets {
			if !res.row.strace || t.proc == nil {
				continue
			}
			n, err := b.countSyscalls(ctx, res.row, t)
			if err != nil {
				say("system calls of %s: %v", t.name, err)
				continue
			}
			res.samples[t.name][0][syscalls] = n
		}
	}
	return results, nil
}

// once measures one row at one target.
func (b *bench) once(ctx context.Context, r row, t target) (sample, error) {
	var before, after time.Duration
	var err error
	if t.proc != nil {
		if before, err = cpuTime(t.proc.pid()); err != nil {
			return nil, err
		}
	}
	var s sample
	var units float64 // transactions or megabytes
	if r.copyOut {
		s, units, err = b.copyOut(ctx, r, t)
	} else {
		s, units, err = b.runPgbench(ctx, r, t, "-T", strconv.FormatFloat(max(1, b.opts.duration.Seconds()), 'f', 0, 64))
	}
	if err != nil {
		return nil, err
	}
	if t.proc == nil {
		return s, nil
	}
	if after, err = cpuTime(t.proc.pid()); err != nil {
		return nil, err
	}
	used := after - before
	if r.copyOut {
		s[cpuPerMB] = float64(used) / float64(time.Millisecond) / units
	} else {
		s[cpu] = float64(used) / float64(time.Microsecond) / units
	}
	return s, nil
}

var (
	processed = regexp.MustCompile(`number of transactions actually processed: (\d+)`)
	perSecond = regexp.MustCompile(`tps = ([\d.]+)`)
)

// runPgbench returns rate and latencies, and how many transactions ran.
func (b *bench) runPgbench(ctx context.Context, r row, t target, length ...string) (sample, float64, error) {
	logs, err := os.MkdirTemp(b.dir, "log-")
	if err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(logs)
	args := append([]string{"-n", "-c", strconv.Itoa(r.clients), "-j", "1", "-l", "--log-prefix", filepath.Join(logs, "log")}, r.pgbench...)
	cmd := exec.CommandContext(ctx, b.pgbenchTool, append(args, length...)...)
	user, mode := clientOf(r.profile)
	cmd.Env = append(os.Environ(), pgEnv(t, user, mode)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, 0, fmt.Errorf("pgbench %s: %w: %s", strings.Join(args, " "), err, lastLines(out))
	}
	n, rate := processed.FindSubmatch(out), perSecond.FindSubmatch(out)
	if n == nil || rate == nil {
		return nil, 0, fmt.Errorf("pgbench said %s", out)
	}
	count, _ := strconv.ParseFloat(string(n[1]), 64)
	s := sample{}
	if s[tps], err = strconv.ParseFloat(string(rate[1]), 64); err != nil || count == 0 {
		return nil, 0, fmt.Errorf("pgbench said %s", out)
	}
	times, err := latencies(logs)
	if err != nil {
		return nil, 0, err
	}
	slices.Sort(times)
	s[p50], s[p99] = quantile(times, 0.5)/1000, quantile(times, 0.99)/1000
	return s, count, nil
}

func lastLines(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], " | ")
}

// latencies reads the third column, microseconds, of pgbench's logs.
func latencies(dir string) (times []float64, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "log.*"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if col := strings.Fields(lines.Text()); len(col) > 2 {
				if us, err := strconv.ParseFloat(col[2], 64); err == nil {
					times = append(times, us)
				}
			}
		}
		f.Close()
		if err := lines.Err(); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// countingWriter discards and counts.
type countingWriter int64

func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return len(p), nil
}

var _ io.Writer = (*countingWriter)(nil)

func (b *bench) copyOut(ctx context.Context, r row, t target) (sample, float64, error) {
	user, mode := clientOf(r.profile)
	conn, err := pgconn.Connect(ctx, t.url(user, mode))
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close(ctx)
	var n countingWriter
	start := time.Now()
	if _, err := conn.CopyTo(ctx, &n, "copy bulk to stdout"); err != nil {
		return nil, 0, err
	}
	mb := float64(n) / 1e6
	return sample{"MB/s": mb / time.Since(start).Seconds()}, mb, nil
}

var straceTotal = regexp.MustCompile(`(?m)^\s*100\.00\s+\S+\s+\S*\s*(\d+)(?:\s+\d+)?\s+total$`)

// countSyscalls attaches strace for a short run. It slows the proxy down, so
// batching differs from a measured run: a figure for comparison only.
func (b *bench) countSyscalls(ctx context.Context, r row, t target) (float64, error) {
	path, err := exec.LookPath("strace")
	if err != nil {
		return 0, errors.New("strace is not installed")
	}
	file := filepath.Join(b.dir, "strace.txt")
	cmd := exec.CommandContext(ctx, path, "-c", "-f", "-o", file, "-p", strconv.Itoa(t.proc.pid()))
	said, err := cmd.StderrPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	// It says "attached" when it is; a refusal ends it.
	first, _ := bufio.NewReader(said).ReadString('\n')
	if !strings.Contains(first, "attached") {
		_ = cmd.Wait()
		return 0, errors.New(strings.TrimSpace(first))
	}
	_, n, runErr := b.runPgbench(ctx, r, t, "-t", strconv.Itoa(max(100, 4000/r.clients)))
	_ = cmd.Process.Signal(os.Interrupt)
	_, _ = io.Copy(io.Discard, said)
	_ = cmd.Wait()
	if runErr != nil {
		return 0, runErr
	}
	out, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	m := straceTotal.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no total in what strace wrote: %s", lastLines(out))
	}
	calls, err := strconv.ParseFloat(string(m[1]), 64)
	return calls / n, err
}
