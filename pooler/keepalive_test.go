package pooler

import (
	"net"
	"testing"
	"time"
)

func TestAVanishedServerIsNoticedWithinTheCheckPeriod(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		idle, period time.Duration
		want         net.KeepAliveConfig
	}{
		{0, 30 * s, net.KeepAliveConfig{Idle: 15 * s, Interval: 5 * s, Count: 3}},
		{5 * s, 30 * s, net.KeepAliveConfig{Idle: 5 * s, Interval: 5 * s, Count: 3}},
		{60 * s, 30 * s, net.KeepAliveConfig{Idle: 15 * s, Interval: 5 * s, Count: 3}},
		{0, s, net.KeepAliveConfig{Idle: s, Interval: s, Count: 3}},
		{60 * s, 0, net.KeepAliveConfig{Idle: 60 * s, Interval: -1, Count: -1}},
		{0, 0, net.KeepAliveConfig{Idle: -1, Interval: -1, Count: -1}},
	} {
		tt.want.Enable = true
		got := serverKeepalive(tt.idle, tt.period)
		if got != tt.want {
			t.Errorf("idle %v, period %v: got %+v, want %+v", tt.idle, tt.period, got, tt.want)
		}
		if total := got.Idle + time.Duration(got.Count)*got.Interval; tt.period >= 4*s && total > tt.period {
			t.Errorf("idle %v, period %v: noticed after %v", tt.idle, tt.period, total)
		}
	}
}
