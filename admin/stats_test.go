package admin

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestAveragesCoverOneToTwoPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		c := NewConsole(ConsoleConfig{Source: src, Version: "1", StatsPeriod: 10 * time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()

		queries := func(n uint64) {
			src.setPools(PoolRow{Database: "d", User: "u", Stats: Stats{Queries: n, QueryTime: time.Duration(n) * time.Millisecond}})
		}
		average := func() (perSecond, micros string) {
			rows := c.statsRows(false, true)
			if len(rows) != 1 {
				return "none", "none"
			}
			return rows[0][3].String(), rows[0][7].String()
		}
		check := func(when, wantRate, wantTime string) {
			t.Helper()
			synctest.Wait()
			if rate, took := average(); rate != wantRate || took != wantTime {
				t.Errorf("%s: %s per second, %s µs; want %s, %s", when, rate, took, wantRate, wantTime)
			}
		}
		check("no pool yet", "none", "none")
		queries(100)
		check("no time has passed", "0", "1000")
		advance := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		advance(5 * time.Second)
		check("100 in 5 s", "20", "1000")
		advance(5 * time.Second) // first sample: 100
		queries(400)
		advance(10 * time.Second) // second sample: 400; the base is the first
		check("300 in 10 s", "30", "1000")
		advance(5 * time.Second)
		check("300 in 15 s", "20", "1000")
		queries(50) // the pool was collected and made anew
		check("a counter that went back counts from zero", "3", "1000")
		cancel()
		<-ended
	})
}

func TestDatabasesSumTheirPools(t *testing.T) {
	pools := []PoolRow{
		{Database: "a", User: "x", Stats: Stats{Queries: 1, WaitTime: time.Second}},
		{Database: "a", User: "y", Stats: Stats{Queries: 2}},
		{Database: "b", User: "x", Stats: Stats{Queries: 4}},
	}
	got := byDatabase(pools, takeSample(noon, pools[:1]))
	if got["a"].total.Queries != 3 || got["a"].recent.Queries != 2 || got["a"].total.WaitTime != time.Second || got["b"].recent.Queries != 4 {
		t.Errorf("got %+v", got)
	}
}
