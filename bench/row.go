package main

import (
	"fmt"
	"slices"
	"strings"
)

// profile is how the proxies are configured; each has its own processes.
type profile string

const (
	plain  profile = "plain"  // clients are trusted
	secure profile = "tls"    // the same over TLS
	login  profile = "scram"  // clients log in with SCRAM-SHA-256
	idle   profile = "memory" // fresh processes per measurement
)

var profiles = []profile{plain, secure, login, idle}

// metric is one figure of a measurement.
type metric string

const (
	cpu      metric = "CPU µs/tx"
	cpuPerMB metric = "CPU ms/MB"
	tps      metric = "tps"
	p50      metric = "p50 ms"
	p99      metric = "p99 ms"
	syscalls metric = "syscalls/tx"
	memory   metric = "KiB/idle client" // growth of PSS
	rss      metric = "KiB/idle client, RSS"
)

// bound judges the median of a metric's paired ratios multipooler/pgbouncer,
// or, when absolute, multipooler's own median.
type bound struct {
	metric     metric
	must, goal float64
	atLeast    bool // tps: more is better
	absolute   bool
}

func (b bound) String() string {
	sign, unit := "≤", " ×"
	if b.atLeast {
		sign = "≥"
	}
	if b.absolute {
		unit = ""
	}
	return fmt.Sprintf("%s %s %g%s, goal %g%s", b.metric, sign, b.must, unit, b.goal, unit)
}

func (b bound) met(value, limit float64) bool {
	if b.atLeast {
		return value >= limit
	}
	return value <= limit
}

// row is one kind of work.
type row struct {
	name    string
	profile profile
	clients int
	pgbench []string // arguments; nil for COPY and memory
	copyOut bool
	strace  bool
	tls     bool
	more    bool // only when asked for by name
	bounds  []bound
}

func (r row) describe() string {
	var b []string
	for _, x := range r.bounds {
		b = append(b, x.String())
	}
	if r.more {
		b = append(b, "only when named in -rows")
	}
	return strings.Join(b, "; ")
}

func cpuBound(must, goal float64) bound { return bound{metric: cpu, must: must, goal: goal} }
func tpsBound(must, goal float64) bound {
	return bound{metric: tps, must: must, goal: goal, atLeast: true}
}

var (
	selectSimple   = []string{"-S"}
	selectExtended = []string{"-S", "-M", "extended"}
	selectPrepared = []string{"-S", "-M", "prepared"}
)

// rows with what is demanded of multipooler.
var rows = []row{
	{name: "select simple 1", clients: 1, pgbench: selectSimple, profile: plain, strace: true, bounds: []bound{cpuBound(1.15, 1)}},
	{name: "select simple 8", clients: 8, pgbench: selectSimple, profile: plain, strace: true, bounds: []bound{cpuBound(1.15, 1)}},
	{name: "select simple 64", clients: 64, pgbench: selectSimple, profile: plain, strace: true, bounds: []bound{cpuBound(1, 0.85), tpsBound(1, 1.1)}},
	{name: "select extended 1", clients: 1, pgbench: selectExtended, profile: plain, bounds: []bound{cpuBound(1.15, 1)}},
	{name: "select extended 8", clients: 8, pgbench: selectExtended, profile: plain, bounds: []bound{cpuBound(1.15, 1)}},
	{name: "select extended 64", clients: 64, pgbench: selectExtended, profile: plain, bounds: []bound{cpuBound(1, 0.85), tpsBound(1, 1.1)}},
	// PgBouncer knows prepared statements in transaction mode from 1.21 on.
	{name: "select prepared 8", clients: 8, pgbench: selectPrepared, profile: plain, more: true, bounds: []bound{cpuBound(1, 0.9)}},
	{name: "select prepared 64", clients: 64, pgbench: selectPrepared, profile: plain, more: true, bounds: []bound{cpuBound(0.8, 0.7)}},
	{name: "TPC-B 32", clients: 32, pgbench: []string{}, profile: plain, bounds: []bound{cpuBound(1.1, 1), tpsBound(1, 1.1)}},
	{name: "COPY OUT 150 MB", clients: 1, copyOut: true, profile: plain, bounds: []bound{{metric: cpuPerMB, must: 0.7, goal: 0.5}}},
	{name: "select TLS 8", clients: 8, pgbench: selectSimple, profile: secure, tls: true, bounds: []bound{cpuBound(1.05, 0.9)}},
	{name: "select TLS 64", clients: 64, pgbench: selectSimple, profile: secure, tls: true, bounds: []bound{cpuBound(1.05, 0.9)}},
	{name: "connect SCRAM 8", clients: 8, pgbench: []string{"-S", "-C"}, profile: login, bounds: []bound{cpuBound(1.5, 1)}},
	{name: "idle clients plain", profile: idle, bounds: []bound{{metric: memory, must: 2, goal: 1, absolute: true}}},
	{name: "idle clients TLS", profile: idle, tls: true, bounds: []bound{{metric: memory, must: 1, goal: 0.8}}},
}

// chooseRows picks by words of the name; no words is everything but "more".
func chooseRows(words string) (chosen []row) {
	for _, r := range rows {
		take := words == "" && !r.more
		for w := range strings.SplitSeq(words, ",") {
			w = strings.TrimSpace(w)
			take = take || (w != "" && strings.Contains(strings.ToLower(r.name), strings.ToLower(w)))
		}
		if take {
			chosen = append(chosen, r)
		}
	}
	return chosen
}

func filterRows(all []row, p profile) []row {
	return slices.DeleteFunc(slices.Clone(all), func(r row) bool { return r.profile != p })
}
