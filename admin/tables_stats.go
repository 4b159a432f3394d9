package admin

import (
	"maps"
	"slices"
	"time"
)

// statistic is one number of SHOW STATS and its relatives. PgBouncer names it
// differently in each; 1.25's names.
type statistic struct {
	statsTotal   string // SHOW STATS
	statsAverage string
	totals       string // SHOW STATS_TOTALS
	averages     string // SHOW STATS_AVERAGES
	together     string // SHOW TOTALS, behind total_ and avg_
	value        func(Stats) Value
	mean         func(recent Stats, over time.Duration) Value
}

// statistics are in PgBouncer's order. Rates are per second, times are in
// microseconds per transaction, query or assignment.
var statistics = []statistic{
	counter("server_assignment_count", func(s Stats) uint64 { return s.Assignments }),
	counter("xact_count", func(s Stats) uint64 { return s.Transactions }),
	counter("query_count", func(s Stats) uint64 { return s.Queries }),
	bytesCounter("received", "recv", "client_bytes", func(s Stats) uint64 { return s.BytesReceived }),
	bytesCounter("sent", "sent", "server_bytes", func(s Stats) uint64 { return s.BytesSent }),
	timing("xact_time", func(s Stats) (time.Duration, uint64) { return s.TransactionTime, s.Transactions }),
	timing("query_time", func(s Stats) (time.Duration, uint64) { return s.QueryTime, s.Queries }),
	timing("wait_time", func(s Stats) (time.Duration, uint64) { return s.WaitTime, s.Assignments }),
	preparedCounter("client_parse_count", func(s Stats) uint64 { return s.ClientParses }),
	preparedCounter("server_parse_count", func(s Stats) uint64 { return s.ServerParses }),
	preparedCounter("bind_count", func(s Stats) uint64 { return s.Binds }),
}

func named(name string) statistic {
	return statistic{
		statsTotal: "total_" + name, statsAverage: "avg_" + name,
		totals: name, averages: name, together: name,
	}
}

func counter(name string, of func(Stats) uint64) statistic {
	s := named(name)
	s.value = func(s Stats) Value { return count(of(s)) }
	s.mean = func(recent Stats, over time.Duration) Value { return perSecond(of(recent), over) }
	return s
}

func bytesCounter(total, average, together string, of func(Stats) uint64) statistic {
	s := counter("bytes_"+total, of)
	s.statsTotal, s.statsAverage, s.together = "total_"+total, "avg_"+average, together
	return s
}

func preparedCounter(name string, of func(Stats) uint64) statistic {
	s := counter(name, of)
	s.averages, s.together = "avg_"+name, "ps_"+name
	return s
}

func timing(name string, of func(Stats) (time.Duration, uint64)) statistic {
	s := named(name)
	s.value = func(s Stats) Value {
		d, _ := of(s)
		return micros(d)
	}
	s.mean = func(recent Stats, _ time.Duration) Value { return perEvent(of(recent)) }
	return s
}

// registerStats adds STATS, STATS_TOTALS, STATS_AVERAGES and TOTALS.
func (c *Console) registerStats() {
	add := func(name, help string, totals, averages func(statistic) string) {
		cols := []Column{{Name: "database"}}
		for _, column := range []func(statistic) string{totals, averages} {
			if column == nil {
				continue
			}
			for _, s := range statistics {
				cols = append(cols, Column{column(s), TypeInt})
			}
		}
		c.Register(Command{
			Name: name, Help: help, Columns: cols,
			Rows: snapshot(func() [][]Value { return c.statsRows(totals != nil, averages != nil) }),
		})
	}
	add("STATS", "counters per database since the start, and their averages",
		func(s statistic) string { return s.statsTotal }, func(s statistic) string { return s.statsAverage })
	add("STATS_TOTALS", "the counters of SHOW STATS",
		func(s statistic) string { return s.totals }, nil)
	add("STATS_AVERAGES", "the averages of SHOW STATS",
		nil, func(s statistic) string { return s.averages })
	c.Register(Command{
		Name: "TOTALS", Help: "counters and averages of all databases together",
		Columns: columns("name value#"), Rows: snapshot(c.totalsRows),
	})
}

func (c *Console) statsRows(totals, averages bool) [][]Value {
	base := c.averages.base()
	over := c.now().Sub(base.at)
	stats := byDatabase(c.source.Pools(), base)
	var rows [][]Value
	for _, name := range slices.Sorted(maps.Keys(stats)) {
		row := []Value{Text(name)}
		if totals {
			for _, s := range statistics {
				row = append(row, s.value(stats[name].total))
			}
		}
		if averages {
			for _, s := range statistics {
				row = append(row, s.mean(stats[name].recent, over))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func (c *Console) totalsRows() [][]Value {
	base := c.averages.base()
	over := c.now().Sub(base.at)
	var all databaseStats
	for _, d := range byDatabase(c.source.Pools(), base) {
		all.total, all.recent = all.total.plus(d.total), all.recent.plus(d.recent)
	}
	var rows [][]Value
	for _, s := range statistics {
		rows = append(rows, []Value{Text("total_" + s.together), s.value(all.total)})
	}
	for _, s := range statistics {
		rows = append(rows, []Value{Text("avg_" + s.together), s.mean(all.recent, over)})
	}
	return rows
}
