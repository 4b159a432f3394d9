package operations

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

// keepalives are the times to the next keep-alive probe of the established IPv4
// sockets that have the port at the given end (proc(5): field 2 is the local
// address, 3 the remote one, 4 the state, 6 timer:expiry in ticks of 10 ms).
func keepalives(t *testing.T, port int, remote bool) (all []time.Duration) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	const established, keepaliveTimer, tick = "01", "02", 10 * time.Millisecond
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[3] != established {
			continue
		}
		end := f[1]
		if remote {
			end = f[2]
		}
		timer, when, _ := strings.Cut(f[5], ":")
		if timer != keepaliveTimer || !strings.HasSuffix(end, fmt.Sprintf(":%04X", port)) {
			continue
		}
		n, err := strconv.ParseInt(when, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, time.Duration(n)*tick)
	}
	return all
}

func portOf(t *testing.T, addr string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestKeepaliveProbesAreSentAsTheFlagsSay(t *testing.T) {
	for _, tt := range []struct {
		args           []string
		server, client time.Duration // to the first probe; 0 = the system's, which is hours
	}{
		{[]string{"--server-check-period=40s"}, 20 * time.Second, 0},
		{[]string{"--server-check-period=40s", "--tcp-keepalive=9s"}, 9 * time.Second, 9 * time.Second},
		{[]string{"--server-check-period=0", "--tcp-keepalive=50s"}, 50 * time.Second, 50 * time.Second},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			s := pgtest.Start(t, pgtest.Options{})
			in := mp.Start(t, mp.Options{Target: s.URL("app", "app"), Args: tt.args})
			pgtest.Connect(t, in.URL("app", "app"))
			check := func(what string, port int, remote bool, want time.Duration) {
				got := keepalives(t, port, remote)
				if len(got) != 1 {
					t.Fatalf("%s: %d sockets with a keep-alive timer", what, len(got))
				}
				if want == 0 {
					want = 12 * time.Hour
				}
				if got[0] > want || want < time.Hour && got[0] < want/2 {
					t.Errorf("%s: the first probe comes in %v, want %v", what, got[0], want)
				}
			}
			check("server", s.Port, true, tt.server)
			check("client", portOf(t, in.Addr()), false, tt.client)
		})
	}
}

// TestTheHighWaterMarkBoundsWhatASlowReaderMakesWait asks for a result and
// does not read it: what multipooler takes from the server beyond the sockets'
// buffers is the flag's.
func TestTheHighWaterMarkBoundsWhatASlowReaderMakesWait(t *testing.T) {
	const mib = 1 << 20
	s := pgtest.Shared(t)
	for _, tt := range []struct {
		flag        string
		least, most float64
	}{
		{"16KiB", 0, 40 * mib},
		{"64MiB", 64 * mib, 110 * mib},
	} {
		t.Run(tt.flag, func(t *testing.T) {
			in := mp.Start(t, mp.Options{Target: s.URL("app", "app"), Args: []string{"--event-loop-high-water=" + tt.flag}})
			nc := pgtest.Connect(t, in.URL("app", "app")).PgConn()
			hijacked, err := nc.Hijack()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { hijacked.Conn.Close() })
			hijacked.Frontend.Send(&pgproto3.Query{String: "select repeat('x', 1 << 20) from generate_series(1, 160)"})
			if err := hijacked.Frontend.Flush(); err != nil {
				t.Fatal(err)
			}
			last, same := 0.0, 0
			mp.Eventually(t, limit, "the flow stops", func() bool {
				now := in.Metric(t, "multipooler_bytes_total", `direction="sent"`)
				if now != last || now < mib {
					last, same = now, 0
				}
				same++
				return same > 40
			})
			if last < tt.least || last > tt.most {
				t.Errorf("%.1f MiB were taken from the server, want %.0f to %.0f", last/mib, tt.least/mib, tt.most/mib)
			}
			if n, err := io.CopyN(io.Discard, hijacked.Conn, 160*mib); err != nil {
				t.Errorf("the rest: %d bytes, %v", n, err)
			}
		})
	}
}
