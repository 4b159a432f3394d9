package admin

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is the time of day in golden tables.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fakeSource is a Source made of slices.
type fakeSource struct {
	mu        sync.Mutex
	pools     []PoolRow
	clients   []ClientRow
	servers   []ServerRow
	pins      []PinRow
	databases []DatabaseRow
	users     []UserRow
	config    []ConfigRow
	totals    Totals
}

func (f *fakeSource) Pools() []PoolRow {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.pools)
}
func (f *fakeSource) Clients() []ClientRow     { return slices.Clone(f.clients) }
func (f *fakeSource) Servers() []ServerRow     { return slices.Clone(f.servers) }
func (f *fakeSource) Pins() []PinRow           { return slices.Clone(f.pins) }
func (f *fakeSource) Databases() []DatabaseRow { return slices.Clone(f.databases) }
func (f *fakeSource) Users() []UserRow         { return slices.Clone(f.users) }
func (f *fakeSource) Config() []ConfigRow      { return slices.Clone(f.config) }
func (f *fakeSource) Totals() Totals           { return f.totals }

func (f *fakeSource) setPools(pools ...PoolRow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pools = pools
}

// fullSource has a different number in every field that is shown, so that a
// column bound to the wrong field is seen.
func fullSource() *fakeSource {
	var acquire LatencyRecorder
	acquire.Observe(50 * time.Microsecond)
	acquire.Observe(3 * time.Millisecond)
	acquire.Observe(20 * time.Second)
	return &fakeSource{
		pools: []PoolRow{
			{
				Database: "shop", User: "bob", ClientsIdle: 1, Mode: "session",
			},
			{
				Database: "shop", User: "alice",
				ClientsActive: 11, ClientsIdle: 12, ClientsWaiting: 13, ActiveCancelRequests: 14, WaitingCancelRequests: 15,
				ServersActive: 21, ServersActiveCancel: 22, ServersBeingCanceled: 23, ServersIdle: 24,
				ServersTested: 25, ServersDialing: 26, ServersDraining: 27,
				MaxWait: 3*time.Second + 250*time.Microsecond, Mode: "transaction", Capacity: 31, Pinned: 32,
				Stats: Stats{
					Assignments: 120, Transactions: 240, Queries: 480, BytesReceived: 1000, BytesSent: 2000,
					TransactionTime: 240 * time.Millisecond, QueryTime: 96 * time.Millisecond, WaitTime: 12 * time.Millisecond,
					ClientParses: 60, ServerParses: 61, Binds: 62,
				},
			},
		},
		clients: []ClientRow{
			{
				ID: 8, User: "bob", Database: "shop", State: "idle", Addr: "unix", LocalAddr: "unix",
				Connected: noon, RemotePID: 77,
			},
			{
				ID: 7, User: "alice", Database: "shop", State: "active", Addr: "10.0.0.9", Port: 50001,
				LocalAddr: "10.0.0.1", LocalPort: 6432, Connected: noon, Requested: noon.Add(time.Minute),
				Wait: 2*time.Second + 5*time.Microsecond, CloseNeeded: true, Server: 3, TLS: "TLSv1.3",
				ApplicationName: "till", PreparedStatements: 4, Loop: 1, Pins: []string{"listen", "temp_table"},
			},
		},
		servers: []ServerRow{
			{
				ID: 3, User: "alice", Database: "shop", State: "active", Addr: "10.0.0.5", Port: 5432,
				LocalAddr: "10.0.0.1", LocalPort: 40000, Connected: noon, Requested: noon.Add(time.Minute),
				Client: 7, RemotePID: 4711, ApplicationName: "till", PreparedStatements: 9, Loop: 1, Settings: 2,
				Pins: []string{"listen", "temp_table"},
			},
		},
		pins: []PinRow{
			{Database: "shop", User: "alice", Client: 7, ServerPID: 4711, Reasons: []string{"listen", "temp_table"}, Since: noon},
		},
		databases: []DatabaseRow{
			{
				Name: "shop", Host: "db.example", Port: 5432, Database: "shop_v2", ForceUser: "app", PoolSize: 20, MinPoolSize: 1,
				ReservePool: 2, ServerLifetime: time.Hour, Mode: "session", MaxConnections: 30, MaxClients: 40, Paused: true,
			},
			{Name: "archive", Database: "archive", Disabled: true},
		},
		users: []UserRow{{Name: "alice", PoolSize: 5, Mode: "statement", MaxConnections: 6, MaxClients: 7}},
		config: []ConfigRow{
			{Key: "pool-mode", Value: "transaction", Default: "transaction", Changeable: true, Origin: "default"},
			{Key: "listen", Value: "0.0.0.0:6432", Default: "127.0.0.1:6432", Origin: "flag"},
		},
		totals: Totals{
			ReloadFailed: true, ConfigLoaded: noon,

			LoggingIn: 2,
			Slots:     Slots{Capacity: 150, Free: 10, Dialing: 20, Idle: 30, Active: 40, Draining: 50},
			Pins:      Counts{"listen": 1, "temp_table": 1},
			Acquire:   acquire.Snapshot(),
			Panics:    1,
			Logins:    Counts{"ok": 5, "failed": 6}, Disconnects: Counts{"client": 7}, Cancels: Counts{"forwarded": 8},
			Connects: Counts{"ok": 9}, ServerCloses: Counts{"lifetime": 10},
			AcquireTimeouts: 11, AcquireRejected: Counts{"queue_full": 12},
		},
	}
}

func newTestConsole(t *testing.T, edit func(*ConsoleConfig)) *Console {
	t.Helper()
	cfg := ConsoleConfig{Source: fullSource(), Version: "1.2.3", Now: func() time.Time { return noon }}
	if edit != nil {
		edit(&cfg)
	}
	return NewConsole(cfg)
}

var testAdmin = ConsoleSession{ID: 1, User: "root", Database: "multipooler", Admin: true, ProcessID: 99, SecretKey: []byte{1, 2, 3, 4}}

// serve starts a session and returns the client's end. The session has ended
// when the test has; its error is in the channel.
func serve(ctx context.Context, t *testing.T, c *Console, who ConsoleSession) (net.Conn, <-chan error) {
	t.Helper()
	client, server := net.Pipe()
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer server.Close()
		done <- c.Serve(ctx, server, who)
	}()
	t.Cleanup(func() {
		client.Close()
		<-ended
	})
	return client, done
}
