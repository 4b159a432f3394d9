package pooler

import (
	"testing"
	"time"
)

func TestGovernorSpreadsAfterTwoHotPeriodsAndGathersAfterTwentyColdOnes(t *testing.T) {
	const loops = 4
	type load struct {
		periods int
		cores   float64 // used by the process
		want    int     // active loops at the end
	}
	for _, tt := range []struct {
		name  string
		start int
		loads []load
	}{
		{"light load stays on one loop", 1, []load{{100, 0.55, 1}}},
		{"one hot period is not enough", 1, []load{{1, 0.9, 1}, {1, 0.1, 1}, {1, 0.9, 1}}},
		{"two hot periods are", 1, []load{{2, 0.9, 2}}},
		{"each further loop needs as much again", 1, []load{{2, 0.9, 2}, {50, 1.1, 2}, {2, 1.3, 3}}},
		{"no more loops than there are", 4, []load{{50, 9, 4}}},
		{"nineteen cold periods are not enough", 2, []load{{19, 0.1, 2}}},
		{"twenty are", 2, []load{{20, 0.1, 1}}},
		{"a warm period begins the count anew", 2, []load{{19, 0.1, 2}, {1, 0.5, 2}, {19, 0.1, 2}, {1, 0.1, 1}}},
		{"between the bounds nothing changes", 2, []load{{100, 0.5, 2}}},
		{"never below one", 1, []load{{100, 0, 1}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var g governor
			now, cpu, active := time.Unix(0, 0), time.Duration(0), tt.start
			active = g.sample(now, cpu, active, loops)
			for _, l := range tt.loads {
				for range l.periods {
					now = now.Add(governorPeriod)
					cpu += time.Duration(l.cores * float64(governorPeriod))
					active = g.sample(now, cpu, active, loops)
				}
				if active != l.want {
					t.Fatalf("after %d periods with %v cores: got %d loops, want %d", l.periods, l.cores, active, l.want)
				}
			}
		})
	}
}

func TestGovernorIgnoresAClockThatStandsStill(t *testing.T) {
	var g governor
	now := time.Unix(1, 0)
	for i := range 10 {
		if got := g.sample(now, time.Duration(i)*time.Second, 2, 4); got != 2 {
			t.Fatalf("got %d loops", got)
		}
	}
}
