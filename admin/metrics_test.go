package admin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
)

func TestEveryDeclaredMetricIsEmittedFromAFullSource(t *testing.T) {
	m := NewMetrics(MetricsConfig{Source: fullSource(), Version: "1.2.3", Revision: "abc"})
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(m)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	emitted := make(map[string]*dto.MetricFamily)
	for _, f := range families {
		emitted[f.GetName()] = f
	}
	for _, d := range m.Catalogue() {
		f, ok := emitted[d.Name]
		if !ok {
			t.Errorf("%s is declared and not emitted", d.Name)
			continue
		}
		if got := strings.ToLower(f.GetType().String()); got != d.Type {
			t.Errorf("%s is a %s, declared as %s", d.Name, got, d.Type)
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		if want := slices.Sorted(slices.Values(d.Labels)); !slices.Equal(labels, want) {
			t.Errorf("%s has labels %v, declared %v", d.Name, labels, want)
		}
	}
	if len(emitted) != len(m.Catalogue()) {
		t.Errorf("%d metrics emitted, %d declared", len(emitted), len(m.Catalogue()))
	}
	if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

func TestMetricsSayWhatTheSourceSays(t *testing.T) {
	m := NewMetrics(MetricsConfig{Source: fullSource(), Version: "1.2.3"})
	want := `
# HELP multipooler_clients Logged-in clients.
# TYPE multipooler_clients gauge
multipooler_clients{pool="alice@shop",state="active"} 11
multipooler_clients{pool="alice@shop",state="idle"} 12
multipooler_clients{pool="alice@shop",state="waiting"} 13
multipooler_clients{pool="bob@shop",state="active"} 0
multipooler_clients{pool="bob@shop",state="idle"} 1
multipooler_clients{pool="bob@shop",state="waiting"} 0
# HELP multipooler_servers Server connections; each holds a slot.
# TYPE multipooler_servers gauge
multipooler_servers{pool="alice@shop",state="active"} 91
multipooler_servers{pool="alice@shop",state="dialing"} 26
multipooler_servers{pool="alice@shop",state="draining"} 27
multipooler_servers{pool="alice@shop",state="idle"} 24
multipooler_servers{pool="bob@shop",state="active"} 0
multipooler_servers{pool="bob@shop",state="dialing"} 0
multipooler_servers{pool="bob@shop",state="draining"} 0
multipooler_servers{pool="bob@shop",state="idle"} 0
# HELP multipooler_client_maxwait_seconds How long the oldest waiting client has waited.
# TYPE multipooler_client_maxwait_seconds gauge
multipooler_client_maxwait_seconds{pool="alice@shop"} 3.00025
multipooler_client_maxwait_seconds{pool="bob@shop"} 0
# HELP multipooler_bytes_total Bytes received from and sent to clients.
# TYPE multipooler_bytes_total counter
multipooler_bytes_total{direction="received"} 1000
multipooler_bytes_total{direction="sent"} 2000
# HELP multipooler_config_last_reload_successful Whether the configuration was read without a mistake the last time.
# TYPE multipooler_config_last_reload_successful gauge
multipooler_config_last_reload_successful 0
# HELP multipooler_config_last_reload_success_timestamp_seconds When the configuration in force was read.
# TYPE multipooler_config_last_reload_success_timestamp_seconds gauge
multipooler_config_last_reload_success_timestamp_seconds 1.7723664e+09
# HELP db_connections_in_use Current number of database connections in use.
# TYPE db_connections_in_use gauge
db_connections_in_use 40
# HELP db_connections_idle Current number of idle database connections.
# TYPE db_connections_idle gauge
db_connections_idle 30
# HELP db_connection_acquire_total Total number of database connection acquisitions.
# TYPE db_connection_acquire_total counter
db_connection_acquire_total 3
# HELP db_connection_acquire_timeout_total Total number of database connection acquisition timeouts.
# TYPE db_connection_acquire_timeout_total counter
db_connection_acquire_timeout_total 11
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "multipooler_clients", "multipooler_servers",
		"multipooler_client_maxwait_seconds", "multipooler_bytes_total",
		"multipooler_config_last_reload_successful", "multipooler_config_last_reload_success_timestamp_seconds", "db_connections_in_use", "db_connections_idle",
		"db_connection_acquire_total", "db_connection_acquire_timeout_total"); err != nil {
		t.Error(err)
	}
}

func TestAcquireHistogramIsCumulativeFrom100MicrosecondsTo10Seconds(t *testing.T) {
	m := NewMetrics(MetricsConfig{Source: fullSource()})
	r := prometheus.NewRegistry()
	r.MustRegister(m)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "db_connection_acquire_duration_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		b := h.GetBucket()
		if first, last := b[0], b[len(b)-1]; first.GetUpperBound() != 0.0001 || first.GetCumulativeCount() != 1 ||
			last.GetUpperBound() != 10 || last.GetCumulativeCount() != 2 {
			t.Errorf("first bucket %v, last %v", first, last)
		}
		if h.GetSampleCount() != 3 || h.GetSampleSum() != 20.00305 {
			t.Errorf("count %d, sum %v", h.GetSampleCount(), h.GetSampleSum())
		}
		return
	}
	t.Fatal("no histogram")
}

func TestPoolsBeyondTheCapAreSummedUpUnderOther(t *testing.T) {
	src := &fakeSource{}
	pool := func(i int, queries uint64) PoolRow {
		return PoolRow{Database: "d", User: fmt.Sprintf("u%d", i), ClientsIdle: 1, MaxWait: time.Duration(i) * time.Second, Stats: Stats{Queries: queries}}
	}
	src.setPools(pool(1, 10), pool(2, 20), pool(3, 30), pool(4, 40))
	m := NewMetrics(MetricsConfig{Source: src, MaxPools: 2})
	check := func(when, want string) {
		t.Helper()
		head := "# HELP multipooler_queries_total Queries of clients.\n# TYPE multipooler_queries_total counter\n"
		if err := testutil.CollectAndCompare(m, strings.NewReader(head+want), "multipooler_queries_total"); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	check("at first", `multipooler_queries_total{pool="other"} 70
multipooler_queries_total{pool="u1@d"} 10
multipooler_queries_total{pool="u2@d"} 20
`)
	src.setPools(pool(2, 21), pool(4, 41))
	check("two pools gone: other keeps what it counted, and its pools", `multipooler_queries_total{pool="other"} 71
multipooler_queries_total{pool="u2@d"} 21
`)
	src.setPools(pool(2, 21), pool(4, 41), pool(5, 1), pool(6, 2))
	check("a new pool takes the free label", `multipooler_queries_total{pool="other"} 73
multipooler_queries_total{pool="u2@d"} 21
multipooler_queries_total{pool="u5@d"} 1
`)
}

func TestNamesThatAreNotUTF8DoNotFailTheScrape(t *testing.T) {
	src := &fakeSource{totals: Totals{Logins: Counts{"\xff": 1}}}
	src.setPools(PoolRow{Database: "d", User: "\xff"}, PoolRow{Database: "d", User: "\xfe"})
	r := prometheus.NewRegistry()
	r.MustRegister(NewMetrics(MetricsConfig{Source: src}))
	if _, err := r.Gather(); err != nil {
		t.Fatal(err)
	}
}

func TestTooManyReasonsBecomeOneSeries(t *testing.T) {
	logins := Counts{}
	for i := range maxCounts + 1 {
		logins[fmt.Sprint(i)] = 2
	}
	m := NewMetrics(MetricsConfig{Source: &fakeSource{totals: Totals{Logins: logins}}})
	want := `# HELP multipooler_logins_total Logins of clients.
# TYPE multipooler_logins_total counter
multipooler_logins_total{result="other"} 130
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "multipooler_logins_total"); err != nil {
		t.Error(err)
	}
}

func TestRegistryHasGoAndProcessMetrics(t *testing.T) {
	families, err := NewRegistry(NewMetrics(MetricsConfig{Source: fullSource()})).Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	for _, want := range []string{"go_goroutines", "process_cpu_seconds_total", "multipooler_build_info"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

func TestLatencyRecorderCountsWithoutAllocating(t *testing.T) {
	var r, other LatencyRecorder
	if n := testing.AllocsPerRun(100, func() { r.Observe(time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations per Observe", n)
	}
	r.Observe(-time.Second)
	other.Observe(time.Hour)
	l := r.Snapshot()
	l.Add(other.Snapshot())
	if l.Count() != 103 || l.Counts[0] != 1 || l.Counts[3] != 101 || l.Counts[len(l.Counts)-1] != 1 {
		t.Errorf("got %+v", l)
	}
}
