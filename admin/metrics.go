package admin

import (
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// DefaultMaxPools is how many pools get label values of their own.
const DefaultMaxPools = 200

// MetricsConfig configures Metrics.
type MetricsConfig struct {
	Source   Source
	MaxPools int // metrics.max_pools; 0 = DefaultMaxPools
	Version  string
	Revision string // of the source, may be empty
	Service  string // service_name, what the operator calls this instance
}

// MetricInfo describes one metric for documentation.
type MetricInfo struct {
	Name   string
	Type   string // counter, gauge, histogram
	Labels []string
	Help   string
}

// metric is one entry of the catalogue with its descriptor.
type metric struct {
	MetricInfo
	desc *prometheus.Desc
}

// Metrics is a Prometheus collector over Source. A scrape reads two
// snapshots (Pools, Totals); there is no cost per query.
//
// The label pool has values of (database, user) that logged in, at most
// MaxPools of them at a time; the rest are summed up under "other".
type Metrics struct {
	source   Source
	pools    *poolLabels
	metrics  []*metric
	version  string
	revision string
	service  string

	buildInfo, clients, servers, poolWaiting, maxWait, pinned  *metric
	queries, transactions, bytes                               *metric
	connects, closes, logins, disconnects, cancels, pins       *metric
	acquireTimeouts, acquireRejected, acquireSeconds           *metric
	slots, slotsCapacity, loggingIn, panics                    *metric
	reloadSuccessful, reloadTime                               *metric
	dbInUse, dbIdle, dbAcquires, dbAcquireTimeouts, dbDuration *metric
}

// NewMetrics makes the collector; NewRegistry registers it.
func NewMetrics(cfg MetricsConfig) *Metrics {
	if cfg.MaxPools <= 0 {
		cfg.MaxPools = DefaultMaxPools
	}
	m := &Metrics{
		source:   cfg.Source,
		pools:    newPoolLabels(cfg.MaxPools),
		version:  cfg.Version,
		revision: cfg.Revision,
		service:  cfg.Service,
	}
	gauge := func(name, help string, labels ...string) *metric { return m.declare("gauge", name, help, labels) }
	counter := func(name, help string, labels ...string) *metric { return m.declare("counter", name, help, labels) }
	histogram := func(name, help string) *metric { return m.declare("histogram", name, help, nil) }

	m.buildInfo = gauge("multipooler_build_info", "Always 1; the labels say what runs.", "version", "revision", "goversion", "service")
	m.clients = gauge("multipooler_clients", "Logged-in clients.", "pool", "state")
	m.servers = gauge("multipooler_servers", "Server connections; each holds a slot.", "pool", "state")
	m.poolWaiting = gauge("multipooler_pool_waiting", "Clients that wait for a server connection.", "pool")
	m.maxWait = gauge("multipooler_client_maxwait_seconds", "How long the oldest waiting client has waited.", "pool")
	m.pinned = gauge("multipooler_pool_pinned", "Clients that keep their server connection past the transaction.", "pool")
	m.queries = counter("multipooler_queries_total", "Queries of clients.", "pool")
	m.transactions = counter("multipooler_transactions_total", "Transactions of clients.", "pool")
	m.bytes = counter("multipooler_bytes_total", "Bytes received from and sent to clients.", "direction")
	m.connects = counter("multipooler_server_connects_total", "Attempts to connect to a server.", "result")
	m.closes = counter("multipooler_server_closed_total", "Server connections closed.", "reason")
	m.logins = counter("multipooler_logins_total", "Logins of clients.", "result")
	m.disconnects = counter("multipooler_client_disconnects_total", "Client connections ended.", "reason")
	m.cancels = counter("multipooler_cancels_total", "Cancel requests of clients.", "result")
	m.pins = gauge("multipooler_pins", "Pins that are in force, by reason; a client can have several.", "reason")
	m.acquireTimeouts = counter("multipooler_acquire_timeouts_total", "Clients that waited for a server connection until the acquire timeout.")
	m.acquireRejected = counter("multipooler_acquire_rejected_total", "Clients that were refused a server connection without waiting out the timeout.", "reason")
	m.acquireSeconds = histogram("multipooler_acquire_seconds", "How long clients waited for the server connections they got.")
	m.slots = gauge("multipooler_slots", "Rights to hold a server connection, by what they are used for.", "state")
	m.slotsCapacity = gauge("multipooler_slots_capacity", "Most server connections at a time.")
	m.loggingIn = gauge("multipooler_clients_logging_in", "Clients between accept and the end of login.")
	m.panics = counter("multipooler_panics_total", "Broken invariants that were contained.")
	m.reloadSuccessful = gauge("multipooler_config_last_reload_successful", "Whether the configuration was read without a mistake the last time.")
	m.reloadTime = gauge("multipooler_config_last_reload_success_timestamp_seconds", "When the configuration in force was read.")
	m.dbInUse = gauge("db_connections_in_use", "Current number of database connections in use.")
	m.dbIdle = gauge("db_connections_idle", "Current number of idle database connections.")
	m.dbAcquires = counter("db_connection_acquire_total", "Total number of database connection acquisitions.")
	m.dbAcquireTimeouts = counter("db_connection_acquire_timeout_total", "Total number of database connection acquisition timeouts.")
	m.dbDuration = histogram("db_connection_acquire_duration_seconds", "Database connection acquisition latency in seconds.")
	return m
}

func (m *Metrics) declare(typ, name, help string, labels []string) *metric {
	d := &metric{
		MetricInfo: MetricInfo{Name: name, Type: typ, Labels: labels, Help: help},
		desc:       prometheus.NewDesc(name, help, labels, nil),
	}
	m.metrics = append(m.metrics, d)
	return d
}

// Catalogue lists every metric of the collector, in the order of declaration.
func (m *Metrics) Catalogue() []MetricInfo {
	all := make([]MetricInfo, len(m.metrics))
	for i, d := range m.metrics {
		all[i] = d.MetricInfo
	}
	return all
}

// NewRegistry makes a registry with m, go_* and process_*.
func NewRegistry(m *Metrics) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.metrics {
		ch <- d.desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	send := func(d *metric, v float64, labels ...string) {
		typ := prometheus.GaugeValue
		if d.Type == "counter" {
			typ = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(d.desc, typ, v, labels...)
	}
	sendCounts := func(d *metric, counts Counts) {
		for label, n := range bounded(counts) {
			send(d, float64(n), label)
		}
	}

	send(m.buildInfo, 1, label(m.version), label(m.revision), runtime.Version(), label(m.service))

	pools, bytes := m.pools.group(m.source.Pools())
	for name, g := range pools {
		for state, n := range map[string]int{
			"active": g.now.ClientsActive, "idle": g.now.ClientsIdle, "waiting": g.now.ClientsWaiting,
		} {
			send(m.clients, float64(n), name, state)
		}
		for state, n := range map[string]int{
			"dialing": g.now.ServersDialing, "idle": g.now.ServersIdle,
			"active": g.now.busy(), "draining": g.now.ServersDraining,
		} {
			send(m.servers, float64(n), name, state)
		}
		send(m.poolWaiting, float64(g.now.ClientsWaiting), name)
		send(m.maxWait, g.now.MaxWait.Seconds(), name)
		send(m.pinned, float64(g.now.Pinned), name)
		send(m.queries, float64(g.counted.Queries), name)
		send(m.transactions, float64(g.counted.Transactions), name)
	}
	send(m.bytes, float64(bytes.BytesReceived), "received")
	send(m.bytes, float64(bytes.BytesSent), "sent")

	t := m.source.Totals()
	sendCounts(m.connects, t.Connects)
	sendCounts(m.closes, t.ServerCloses)
	sendCounts(m.logins, t.Logins)
	sendCounts(m.disconnects, t.Disconnects)
	sendCounts(m.cancels, t.Cancels)
	sendCounts(m.pins, t.Pins)
	sendCounts(m.acquireRejected, t.AcquireRejected)
	send(m.acquireTimeouts, float64(t.AcquireTimeouts))
	send(m.loggingIn, float64(t.LoggingIn))
	send(m.panics, float64(t.Panics))
	send(m.reloadSuccessful, oneIf(!t.ReloadFailed))
	send(m.reloadTime, unixSeconds(t.ConfigLoaded))
	for state, n := range map[string]int{
		"free": t.Slots.Free, "dialing": t.Slots.Dialing, "idle": t.Slots.Idle,
		"active": t.Slots.Active, "draining": t.Slots.Draining,
	} {
		send(m.slots, float64(n), state)
	}
	send(m.slotsCapacity, float64(t.Slots.Capacity))

	send(m.dbInUse, float64(t.Slots.Active))
	send(m.dbIdle, float64(t.Slots.Idle))
	send(m.dbAcquires, float64(t.Acquire.Count()))
	send(m.dbAcquireTimeouts, float64(t.AcquireTimeouts))
	for _, d := range [...]*metric{m.acquireSeconds, m.dbDuration} {
		ch <- prometheus.MustNewConstHistogram(d.desc, t.Acquire.Count(), t.Acquire.Sum.Seconds(), t.Acquire.cumulative())
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// unixSeconds is 0 for the zero time.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1e3
}

// cumulative gives the buckets in Prometheus' form: observations up to each
// bound, in seconds.
func (l *Latency) cumulative() map[float64]uint64 {
	buckets := make(map[float64]uint64, len(latencyBounds))
	var n uint64
	for i, bound := range latencyBounds {
		n += l.Counts[i]
		buckets[bound.Seconds()] = n
	}
	return buckets
}

// maxCounts bounds the label values of one Counts; they come from code and
// are a dozen at most.
const maxCounts = 64

const otherLabel = "other"

// bounded cuts a map that has grown beyond reason down to its sum. A name
// that is not UTF-8 would fail the scrape.
func bounded(counts Counts) Counts {
	all := make(Counts, len(counts))
	for name, n := range counts {
		if len(counts) > maxCounts {
			name = otherLabel
		}
		all[label(name)] += n
	}
	return all
}

// label makes a valid label value.
func label(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
