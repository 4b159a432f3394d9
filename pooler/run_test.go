package pooler

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/multipooler/multipooler/config"
	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
	"github.com/multipooler/multipooler/test/pgtest"
	"github.com/multipooler/multipooler/test/pgtest/testcert"
)

// running is a Pooler that runs in this process.
type running struct {
	*Pooler
	addr  *net.TCPAddr
	ctx   context.Context
	stop  context.CancelFunc
	ended chan error
	cut   int // valid after end
}

// run starts a Pooler in front of target and stops it at the test's end.
func run(t *testing.T, target string, args ...string) *running {
	t.Helper()
	cfg, err := config.Load(config.Input{Args: append([]string{
		"--listen", "127.0.0.1:0", "--http-listen", "off", "--event-loops", "2", "--drain-timeout", "3s", target,
	}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(cfg, Version{Number: "1"}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Pooler: p, ended: make(chan error, 1)}
	r.ctx, r.stop = context.WithCancel(context.WithoutCancel(t.Context()))
	bound := make(chan Listeners, 1)
	go func() {
		o, err := p.Run(r.ctx, context.Background(), nil, func(l Listeners) { bound <- l })
		r.cut = o.Cut
		r.ended <- err
	}()
	t.Cleanup(func() { r.end(t) })
	select {
	case l := <-bound:
		r.addr = l.Clients[0].(*net.TCPAddr)
	case err := <-r.ended:
		t.Fatal(err)
	}
	return r
}

// end stops the Pooler and returns how long that took.
func (r *running) end(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	r.stop()
	select {
	case err := <-r.ended:
		r.ended <- nil
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		buf := make([]byte, 1<<20)
		t.Fatalf("Run did not end\n%s", buf[:runtime.Stack(buf, true)])
	}
	if n := r.loggingIn.Load(); n != 0 {
		t.Errorf("%d clients are still counted as logging in", n)
	}
	if n := r.clients.Load(); n != 0 {
		t.Errorf("%d clients are still counted", n)
	}
	if n := r.cancelKeys(); n != 0 {
		t.Errorf("%d cancel keys are left", n)
	}
	return time.Since(began)
}

func (r *running) addressOf(user, password, database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Host: r.addr.String(), Path: database}
	return u.String()
}

func connect(t *testing.T, url string) *pgconn.PgConn {
	t.Helper()
	c, err := pgconn.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.WithoutCancel(t.Context())) })
	return c
}

func exec(t *testing.T, c *pgconn.PgConn, sql string) string {
	t.Helper()
	res, err := c.Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if len(res) == 0 || len(res[0].Rows) == 0 {
		return ""
	}
	return string(res[0].Rows[0][0])
}

// eventually waits for what happens on other goroutines.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for began := time.Now(); !f(); runtime.Gosched() {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("never: %s", what)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func (r *running) cancelKeys() int {
	r.cancels.mu.Lock()
	defer r.cancels.mu.Unlock()
	return len(r.cancels.byID)
}

// onClient runs f on the loop of the client with this cancel pid.
func (r *running) onClient(t *testing.T, pid uint32, f func(c *clientConn)) {
	t.Helper()
	r.cancels.mu.Lock()
	c := r.cancels.byID[pid]
	r.cancels.mu.Unlock()
	done := make(chan struct{})
	r.onLoopOf(c, func() { defer close(done); f(c) })
	<-done
}

func TestNothingIsLeftAfterRun(t *testing.T) {
	pg := pgtest.Shared(t)
	round := func() {
		r := run(t, pg.URL("app", "app"), "--connpool-global-capacity", "3", "--admin-users", "app")
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				c, err := pgconn.Connect(t.Context(), r.addressOf("app", pg.Password("app"), "app"))
				if err != nil {
					t.Error(err)
					return
				}
				for range 5 {
					if _, err := c.Exec(t.Context(), "select 1").ReadAll(); err != nil {
						t.Error(err)
					}
				}
				switch i % 3 {
				case 0:
					c.Close(t.Context())
				case 1:
					c.Conn().Close() // without a word
				default:
					t.Cleanup(func() { c.Conn().Close() }) // the drain ends it
				}
			})
		}
		all.Wait()
		silent, err := net.Dial("tcp", r.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		if took := r.end(t); took > 2*time.Second {
			t.Errorf("the end took %v", took)
		}
		// (A dial that the end has interrupted has closed its socket; its slot
		// goes with the process.)
		if s := r.targets[0].arb.Stats(); s.Held() != s.Dialing {
			t.Errorf("slots are still held: %+v", s.Counts)
		}
	}
	round() // what is made once per process
	goroutines, fds := runtime.NumGoroutine(), descriptors(t)
	for range 3 {
		round()
	}
	// The clients of this test that were left open count themselves.
	eventually(t, "goroutines and descriptors as before", func() bool {
		return runtime.NumGoroutine() <= goroutines && descriptors(t) <= fds+12
	})
}

func TestTheFirstLoginMayBeTheConsoles(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--admin-users", "app")
	c := connect(t, r.addressOf("app", pg.Password("app"), "pgbouncer"))
	if got := exec(t, c, "show version"); !strings.Contains(got, "multipooler") {
		t.Errorf("got %q", got)
	}
}

func TestTheConsoleIsForItsUsers(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--auth-type", "trust", "--admin-users", "boss")
	_, err := pgconn.Connect(t.Context(), r.addressOf("app", "x", "multipooler"))
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "42501" {
		t.Errorf("got %v, want 42501", err)
	}
}

func TestThereIsNeverOneClientTooMany(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--auth-type", "trust", "--max-clients", "1")
	url := r.addressOf("app", "x", "app")
	first := connect(t, url)
	_, err := pgconn.Connect(t.Context(), url)
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "53300" {
		t.Errorf("got %v, want 53300", err)
	}
	first.Close(t.Context())
	eventually(t, "room for one", func() bool { return r.clients.Load() == 0 })
	connect(t, url)
	if n := r.cancelKeys(); n != 1 {
		t.Errorf("%d cancel keys, want 1", n)
	}
}

func TestADrainDuringATLSHandshakeEndsOnlyThatLogin(t *testing.T) {
	pg := pgtest.Shared(t)
	ca, err := testcert.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Server("localhost")
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, pg.URL("app", "app"), "--tls-cert", pair.CertFile, "--tls-key", pair.KeyFile, "--drain-timeout", "500ms")
	connect(t, r.addressOf("app", pg.Password("app"), "app")) // idle
	busy := connect(t, r.addressOf("app", pg.Password("app"), "app"))
	exec(t, busy, "begin")
	var away [3]net.Conn
	for i := range away {
		conn, err := net.Dial("tcp", r.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = conn.Write(protocol.AppendSSLRequest(nil))
		var b [1]byte
		if _, err := io.ReadFull(conn, b[:]); err != nil || b[0] != 'S' {
			t.Fatalf("got %q, %v", b, err)
		}
		away[i] = conn
	}
	// One handshake ends during the drain, two never do.
	r.stop()
	eventually(t, "the idle client is sent away", func() bool { return r.clients.Load() == 1 })
	secure := tls.Client(away[0], &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the test's own certificate
	_ = secure.SetDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 512)
	n, err := secure.Read(buf)
	if err != nil || buf[0] != byte(protocol.MsgErrorResponse) || !strings.Contains(string(buf[:n]), "57P01") {
		t.Errorf("got %q, %v", buf[:n], err)
	}
	if took := r.end(t); took > 4*time.Second {
		t.Errorf("the end took %v", took)
	}
	if r.cut != 1 {
		t.Errorf("cut %d sessions, want the busy one", r.cut)
	}
}

// broken replaces the session of a client by one that panics at the next
// message.
func broken(c *clientConn) {
	c.sess = session.New(session.Config{State: session.State{ID: c.id, Phase: session.PhaseReady}})
}

func TestAPanicCostsOneSessionAndItsServerConnection(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--connpool-global-capacity", "2", "--acquire-timeout", "10s")
	url := r.addressOf("app", pg.Password("app"), "app")
	victim, other := connect(t, url), connect(t, url)
	exec(t, other, "begin")
	exec(t, victim, "begin")
	r.onClient(t, victim.PID(), broken)
	if _, err := victim.Exec(t.Context(), "select 1").ReadAll(); err == nil {
		t.Fatal("the broken session answered")
	}
	if n := r.Totals().Panics; n != 1 {
		t.Errorf("%d panics counted, want 1", n)
	}
	exec(t, other, "commit")
	third := connect(t, url)
	exec(t, other, "begin") // both slots are usable again
	exec(t, third, "begin")
	if n := r.Totals().Disconnects["internal_error"]; n != 1 {
		t.Errorf("%d ends by internal error, want 1", n)
	}
}

func TestAnAcquireTimeoutIsNeitherEarlyNorForgotten(t *testing.T) {
	pg := pgtest.Shared(t)
	const limit = 300 * time.Millisecond
	r := run(t, pg.URL("app", "app"), "--connpool-global-capacity", "1", "--acquire-timeout", limit.String(), "--client-login-timeout", "100ms")
	url := r.addressOf("app", pg.Password("app"), "app")
	holder, waiter := connect(t, url), connect(t, url)
	exec(t, holder, "begin")
	for range 2 { // the session survives, and the timer is used again
		began := time.Now()
		_, err := waiter.Exec(t.Context(), "select 1").ReadAll()
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "53300" {
			t.Fatalf("got %v, want 53300", err)
		}
		if took := time.Since(began); took < limit || took > limit+2*time.Second {
			t.Errorf("refused after %v, want %v", took, limit)
		}
	}
	exec(t, holder, "commit")
	exec(t, waiter, "select 1")
}

func TestALimitOfZeroIsNoLimitAndDoesNotSpin(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--acquire-timeout", "0", "--connpool-user-reserved-inactivity-timeout", "0")
	c := connect(t, r.addressOf("app", pg.Password("app"), "app"))
	exec(t, c, "begin")
	r.onClient(t, c.PID(), func(c *clientConn) {
		if at := c.due(c.w.now()); at != 0 {
			t.Errorf("the next limit passes at %d, want none", at)
		}
	})
	exec(t, c, "commit")
}

func TestIdleInTransactionCountsOnlyWhileTheClientIsIdle(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--connpool-user-reserved-inactivity-timeout", "300ms")
	c := connect(t, r.addressOf("app", pg.Password("app"), "app"))
	exec(t, c, "begin")
	exec(t, c, "select pg_sleep(0.6)") // works for longer than the limit
	began := time.Now()
	buf := make([]byte, 512)
	n, _ := c.Conn().Read(buf)
	took := time.Since(began)
	if !strings.Contains(string(buf[:n]), "25P03") || took < 290*time.Millisecond || took > 3*time.Second {
		t.Errorf("after %v got %q, want 25P03 after 300ms", took, buf[:n])
	}
}

func TestAClientThatReadsNothingIsNotReadEither(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--client-stall-timeout", "1s", "--event-loop-high-water", "64KiB", "--auth-type", "trust")
	conn := rawClient(t, r.addr)
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	// Each answer fits into one read of the server, so that only the client's
	// own backlog can stop it.
	query := protocol.AppendQuery(nil, "select repeat('x', 8000) --"+strings.Repeat("-", 4000))
	_ = conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
	var err error
	for sent := 0; err == nil && sent < 1<<30; {
		var n int
		n, err = conn.Write(query)
		sent += n
	}
	if err == nil {
		t.Fatal("1 GiB of queries was taken from a client that read no answer")
	}
	eventually(t, "cut by the stall timeout", func() bool { return r.Totals().Disconnects["client_stall_timeout"] == 1 })
	eventually(t, "its server connection is taken back", func() bool { return r.targets[0].arb.Stats().Active == 0 })
}

func TestAnswersOfMultipoolersOwnDoNotPileUp(t *testing.T) {
	r := run(t, pgtest.Shared(t).URL("app", "app"), "--event-loop-high-water", "64KiB", "--auth-type", "trust")
	conn := rawClient(t, r.addr)
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	syncs := bytes.Repeat(protocol.AppendSync(nil), 10_000) // each is answered without a server
	_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
	var err error
	for err == nil {
		_, err = conn.Write(syncs)
	}
	r.cancels.mu.Lock()
	var pid uint32
	for pid = range r.cancels.byID {
	}
	r.cancels.mu.Unlock()
	r.onClient(t, pid, func(c *clientConn) {
		if got := c.ec.Backlog(); !c.ec.Congested() || got > 512<<10 {
			t.Errorf("%d bytes wait for a client that reads nothing, want about 64 KiB, and that it is not read", got)
		}
	})
}

func TestAResultLargerThanAllBuffersArrivesWhole(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--event-loop-high-water", "64KiB")
	c := connect(t, r.addressOf("app", pg.Password("app"), "app"))
	const rows = 3000
	res, err := c.Exec(t.Context(), "select repeat(chr(97 + g % 26), 10000) from generate_series(1, "+strconv.Itoa(rows)+") g").ReadAll()
	if err != nil || len(res[0].Rows) != rows {
		t.Fatalf("%d results, %v", len(res), err)
	}
	for i, row := range res[0].Rows {
		if want := strings.Repeat(string(rune('a'+(i+1)%26)), 10000); string(row[0]) != want {
			t.Fatalf("row %d is wrong", i)
		}
	}
	exec(t, c, "select 1")
}

func TestClientsMoveBetweenLoopsUnderLoad(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--connpool-global-capacity", "3")
	var clients []*pgconn.PgConn
	for range 8 {
		clients = append(clients, connect(t, r.addressOf("app", pg.Password("app"), "app")))
	}
	shed := func(from *worker) (moved int64) {
		r.active.Store(2)
		done := make(chan int64)
		from.loop.Post(task(func(*eventloop.Loop) {
			n := from.n.Load()
			from.shed(int(n))
			done <- n - from.n.Load()
		}))
		return <-done
	}
	if shed(r.workers[0]) == 0 {
		t.Error("no idle client moved")
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				want := strconv.Itoa(i*1_000_000 + n)
				res, err := c.Exec(t.Context(), "select "+want).ReadAll()
				if err != nil || string(res[0].Rows[0][0]) != want {
					t.Errorf("want %s, got %v, %v", want, res, err)
					return
				}
			}
		})
	}
	for i := range 200 {
		shed(r.workers[i%2])
		r.Clients()
		r.Servers()
	}
	stop()
	all.Wait()
	if a, b := r.workers[0].n.Load(), r.workers[1].n.Load(); a+b != 8 {
		t.Errorf("%d + %d clients on the loops, want 8", a, b)
	}
}
