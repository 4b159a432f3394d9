package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// ratio is the median of paired ratios with their spread.
type ratio struct {
	median, low, high float64
	n                 int
}

// paired divides a by b round by round.
func paired(a, b []sample, m metric) (r ratio, ok bool) {
	var all []float64
	for i := range min(len(a), len(b)) {
		x, okX := a[i][m]
		y, okY := b[i][m]
		if okX && okY && y > 0 {
			all = append(all, x/y)
		}
	}
	if len(all) == 0 {
		return ratio{}, false
	}
	slices.Sort(all)
	return ratio{quantile(all, 0.5), all[0], all[len(all)-1], len(all)}, true
}

// quantile of sorted values, interpolated, so that the median of an even
// number is the mean of the two in the middle.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// median of one metric over a target's samples.
func median(samples []sample, m metric) (float64, bool) {
	var all []float64
	for _, s := range samples {
		if v, ok := s[m]; ok {
			all = append(all, v)
		}
	}
	slices.Sort(all)
	return quantile(all, 0.5), len(all) > 0
}

// reported metrics in the order of the table.
var reported = []metric{cpu, cpuPerMB, tps, "MB/s", p50, p99, syscalls, memory, rss, "logins/s"}

// printReport writes a Markdown table: a line per row and metric, medians per
// target, the paired ratio to PgBouncer, and the verdict where one is due.
func printReport(w io.Writer, results []*result, names []string) {
	head := append([]string{"work", "figure"}, names...)
	head = append(head, "multipooler ÷ pgbouncer (min–max of n)", "must", "goal", "result")
	line := func(cells []string) { fmt.Fprintln(w, "| "+strings.Join(cells, " | ")+" |") }
	line(head)
	line(slices.Repeat([]string{"---"}, len(head)))
	short := 0
	for _, res := range results {
		for _, m := range reported {
			cells := []string{res.row.name, string(m)}
			any := false
			for _, name := range names {
				v, ok := median(res.samples[name], m)
				any = any || ok
				cells = append(cells, number(v, ok))
			}
			if !any {
				continue
			}
			r, ok := paired(res.samples["multipooler"], res.samples["pgbouncer"], m)
			ratioCell := ""
			if ok {
				ratioCell = fmt.Sprintf("%.2f (%.2f–%.2f of %d)", r.median, r.low, r.high, r.n)
			}
			must, goal, verdict := judge(res, m, r, ok)
			if verdict == "short" {
				short++
			}
			line(append(cells, ratioCell, must, goal, verdict))
		}
	}
	fmt.Fprintf(w, "\n%d figures are short of what they must be.\n", short)
}

// judge compares with the row's bounds: "goal", "pass" (what it must), "short",
// or "not measured".
func judge(res *result, m metric, r ratio, haveRatio bool) (must, goal, verdict string) {
	for _, b := range res.row.bounds {
		if b.metric != m {
			continue
		}
		sign := "≤ "
		if b.atLeast {
			sign = "≥ "
		}
		must, goal = sign+fmt.Sprint(b.must), sign+fmt.Sprint(b.goal)
		value, ok := r.median, haveRatio
		if b.absolute {
			value, ok = median(res.samples["multipooler"], m)
		}
		switch {
		case !ok:
			verdict = "not measured"
		case b.met(value, b.goal):
			verdict = "goal"
		case b.met(value, b.must):
			verdict = "pass"
		default:
			verdict = "short"
		}
	}
	return must, goal, verdict
}

// number prints with three digits that matter.
func number(v float64, ok bool) string {
	switch {
	case !ok:
		return ""
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
