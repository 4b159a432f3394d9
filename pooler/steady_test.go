package pooler

import (
	"context"
	"math"
	"net"
	"runtime"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/config"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/test/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// runPooler runs a Pooler in this process until the test ends.
func runPooler(tb testing.TB, args ...string) net.Addr {
	tb.Helper()
	pg := pgtest.Shared(tb)
	cfg, err := config.Load(config.Input{Args: append(args,
		"--listen", "127.0.0.1:0", "--http-listen", "off", "--auth-type", "trust", pg.URL("app", "app"))})
	if err != nil {
		tb.Fatal(err)
	}
	p, err := New(cfg, Version{Number: "test"}, zap.NewNop())
	if err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	bound := make(chan Listeners, 1)
	ended := make(chan error, 1)
	go func() {
		_, err := p.Run(ctx, context.Background(), nil, func(l Listeners) { bound <- l })
		ended <- err
	}()
	tb.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
	select {
	case l := <-bound:
		return l.Clients[0]
	case err := <-ended:
		tb.Fatal(err)
		return nil
	}
}

// rawClient logs in with a bare socket, so that the client's side of a test
// does not allocate.
func rawClient(tb testing.TB, addr net.Addr) net.Conn {
	tb.Helper()
	conn, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	exchange(tb, conn, protocol.AppendStartup(nil, protocol.Protocol30, []protocol.Param{{Name: "user", Value: "app"}, {Name: "database", Value: "app"}}), make([]byte, 4096))
	return conn
}

// exchange sends and reads up to ReadyForQuery, which must end a read.
func exchange(tb testing.TB, conn net.Conn, send, buf []byte) {
	if _, err := conn.Write(send); err != nil {
		tb.Fatal(err)
	}
	n := 0
	for n < 6 || buf[n-6] != byte(protocol.MsgReadyForQuery) || buf[n-2] != 5 {
		k, err := conn.Read(buf[n:])
		if err != nil {
			tb.Fatal(err)
		}
		n += k
	}
	if buf[0] == byte(protocol.MsgErrorResponse) {
		tb.Fatalf("got %q", buf[:n])
	}
}

func extendedBatch() []byte {
	b := protocol.AppendParse(nil, "", "select 1", nil)
	b = protocol.AppendBind(b, "", "", nil, nil, nil)
	b = protocol.AppendDescribe(b, protocol.KindPortal, "")
	b = protocol.AppendExecute(b, "", 0)
	return protocol.AppendSync(b)
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates: not measured")
		return
	}
	conn := rawClient(t, runPooler(t))
	buf := make([]byte, 4096)
	for name, batch := range map[string][]byte{
		"simple":      protocol.AppendQuery(nil, "select 1"),
		"extended":    extendedBatch(),
		"transaction": protocol.AppendQuery(nil, "begin; select 1; commit"),
	} {
		t.Run(name, func(t *testing.T) {
			wantNoAllocations(t, func() { exchange(t, conn, batch, buf) })
		})
	}
}

func TestWaitingForAServerConnectionDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates: not measured")
		return
	}
	addr := runPooler(t, "--connpool-global-capacity", "1")
	var clients [4]net.Conn
	for i := range clients {
		clients[i] = rawClient(t, addr)
	}
	query, buf := protocol.AppendQuery(nil, "select 1"), make([]byte, 4096)
	wantNoAllocations(t, func() {
		for _, c := range clients {
			if _, err := c.Write(query); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range clients {
			exchange(t, c, nil, buf)
		}
	})
}

// wantNoAllocations counts the allocations of the whole process, so that it
// judges the least of several batches: what a round allocates is in all of
// them, what something else in the process allocates meanwhile is not.
func wantNoAllocations(t *testing.T, round func()) {
	t.Helper()
	for range 200 {
		round()
	}
	const batches, rounds = 8, 400
	least := math.Inf(1)
	for range batches {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range rounds {
			round()
		}
		runtime.ReadMemStats(&after)
		least = min(least, float64(after.Mallocs-before.Mallocs)/rounds)
	}
	if least > 0.1 {
		t.Errorf("got at least %.2f allocations per round, want 0", least)
	}
}

// BenchmarkRoundTrip is one client; the profile of its user time is the
// pooler's own work.
func BenchmarkRoundTrip(b *testing.B) {
	addr := runPooler(b)
	for name, batch := range map[string][]byte{"simple": protocol.AppendQuery(nil, "select 1"), "extended": extendedBatch()} {
		b.Run(name, func(b *testing.B) {
			conn := rawClient(b, addr)
			buf := make([]byte, 4096)
			b.ReportAllocs()
			for b.Loop() {
				exchange(b, conn, batch, buf)
			}
		})
	}
}
