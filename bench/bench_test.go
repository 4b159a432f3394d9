package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRatiosArePairedByRound(t *testing.T) {
	// The machine got twice as slow after the second round; the ratio did not change.
	ours := []sample{{cpu: 10}, {cpu: 11}, {cpu: 20}, {cpu: 22}}
	theirs := []sample{{cpu: 20}, {cpu: 20}, {cpu: 40}, {cpu: 40}}
	r, ok := paired(ours, theirs, cpu)
	if !ok || r.median != 0.525 || r.low != 0.5 || r.high != 0.55 || r.n != 4 {
		t.Fatalf("got %+v, %v", r, ok)
	}
	if _, ok := paired(ours, nil, cpu); ok {
		t.Fatal("a ratio to nothing")
	}
	if _, ok := paired(ours, theirs, tps); ok {
		t.Fatal("a ratio of what was not measured")
	}
}

func TestVerdictsFollowTheBounds(t *testing.T) {
	row := row{bounds: []bound{cpuBound(1.15, 1), tpsBound(1, 1.1), {metric: memory, must: 2, goal: 1, absolute: true}}}
	res := &result{row: row, samples: map[string][]sample{"multipooler": {{memory: 1.5}}}}
	for _, c := range []struct {
		m    metric
		r    float64
		have bool
		want string
	}{
		{cpu, 1.0, true, "goal"},
		{cpu, 1.15, true, "pass"},
		{cpu, 1.16, true, "short"},
		{cpu, 0, false, "not measured"},
		{tps, 1.1, true, "goal"},
		{tps, 1.05, true, "pass"},
		{tps, 0.99, true, "short"},
		{memory, 9, true, "pass"},
		{p99, 1, true, ""},
	} {
		if _, _, got := judge(res, c.m, ratio{median: c.r}, c.have); got != c.want {
			t.Errorf("%s at %g: got %q, want %q", c.m, c.r, got, c.want)
		}
	}
}

func TestTheTableHoldsMediansAndVerdicts(t *testing.T) {
	res := &result{row: rows[0], samples: map[string][]sample{
		"pgbouncer":   {{cpu: 20, tps: 1000}, {cpu: 22, tps: 1100}},
		"multipooler": {{cpu: 30, tps: 900}, {cpu: 33, tps: 990}},
	}}
	var b strings.Builder
	printReport(&b, []*result{res}, []string{"pgbouncer", "multipooler"})
	for _, want := range []string{
		"| select simple 1 | CPU µs/tx | 21.0 | 31.5 | 1.50 (1.50–1.50 of 2) | ≤ 1.15 | ≤ 1 | short |",
		"| select simple 1 | tps | 1050 | 945 | 0.90 (0.90–0.90 of 2) |  |  |  |",
		"1 figures are short",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no line %q in\n%s", want, b.String())
		}
	}
}

func TestRowsAreChosenByWord(t *testing.T) {
	for words, want := range map[string]int{"": len(rows) - 2, "tls": 3, "prepared": 2, "simple 64, copy": 2, "nothing": 0} {
		if got := len(chooseRows(words)); got != want {
			t.Errorf("%q: %d rows, want %d", words, got, want)
		}
	}
	for _, r := range rows {
		if len(r.bounds) == 0 || r.profile == "" {
			t.Errorf("row %q demands nothing", r.name)
		}
	}
}

func TestQuantilesInterpolate(t *testing.T) {
	v := []float64{1, 2, 3, 4}
	if quantile(v, 0.5) != 2.5 || quantile(v, 1) != 4 || quantile(v, 0) != 1 || quantile(nil, 0.5) != 0 {
		t.Fatal(quantile(v, 0.5), quantile(v, 1))
	}
}

func TestCPUAndMemoryOfAProcessAreRead(t *testing.T) {
	cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done; read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		_ = cmd.Wait()
	}()
	_, _ = out.Read(make([]byte, 5))
	used, err := cpuTime(cmd.Process.Pid)
	if err != nil || used < 20*time.Millisecond || used > 30*time.Second {
		t.Errorf("a busy shell used %s, %v", used, err)
	}
	rssKiB, pssKiB, err := memoryOf(cmd.Process.Pid)
	if err != nil || rssKiB < 100 || pssKiB > rssKiB {
		t.Errorf("RSS %g, PSS %g, %v", rssKiB, pssKiB, err)
	}
}

func TestTheToolsOutputIsUnderstood(t *testing.T) {
	strace := `% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 50.00    0.000100           1       100           read
------ ----------- ----------- --------- --------- ----------------
100.00    0.000200           1       321        12 total
`
	if m := straceTotal.FindStringSubmatch(strace); m == nil || m[1] != "321" {
		t.Errorf("strace: %q", m)
	}
	if m := straceTotal.FindStringSubmatch(strings.Replace(strace, "        12 total", "           total", 1)); m == nil || m[1] != "321" {
		t.Errorf("strace without errors: %q", m)
	}
	out := "number of transactions actually processed: 4242\nlatency average = 1 ms\ntps = 1234.5 (without initial connection time)\n"
	if processed.FindStringSubmatch(out)[1] != "4242" || perSecond.FindStringSubmatch(out)[1] != "1234.5" {
		t.Error("pgbench's summary")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "log.123"), []byte("0 1 250 0 1700000000 1\n1 1 750 0 1700000000 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if times, err := latencies(dir); err != nil || len(times) != 2 || times[1] != 750 {
		t.Errorf("latencies %v, %v", times, err)
	}
}
