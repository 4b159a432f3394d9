package admin

import "time"

// Source gives snapshots of the running pooler. Each method returns a slice
// that the caller owns, in any order, and may be called from any goroutine, at
// the rate of scrapes and console commands (a few times a second at most). A
// snapshot is consistent in itself, two snapshots need not agree.
//
// Pools and Totals are read by every scrape: they read counters and must not
// walk connections. Clients, Servers and Pins may walk.
type Source interface {
	Pools() []PoolRow
	Clients() []ClientRow
	Servers() []ServerRow
	Pins() []PinRow
	// Databases are the configured or seen databases. A database that only
	// Pools knows is shown too, with what Pools tells.
	Databases() []DatabaseRow
	// Users are the configured users, completed in the same way.
	Users() []UserRow
	// Config are the effective settings, secrets already masked.
	Config() []ConfigRow
	Totals() Totals
}

// PoolRow is one user pool, the key is (Database, User). Each client and each
// server connection is counted in exactly one of its fields.
type PoolRow struct {
	Database, User string

	ClientsActive         int // linked to a server connection
	ClientsIdle           int // nothing to do, no server connection
	ClientsWaiting        int // queued for a server connection
	ActiveCancelRequests  int // forwarded, answer outstanding
	WaitingCancelRequests int // not forwarded yet

	ServersActive        int // linked to a client
	ServersActiveCancel  int // connections that carry a cancel request
	ServersBeingCanceled int // free, but a cancel request is still under way
	ServersIdle          int
	ServersTested        int // being reset or checked before the next client
	ServersDialing       int // connecting or logging in
	ServersDraining      int // told to go, EOF not seen, slot still held

	MaxWait  time.Duration // of the oldest waiter; 0 = nobody waits
	Mode     string        // transaction, session or statement
	Capacity int           // most server connections the pool may hold now; 0 = only the global limit
	Pinned   int           // clients that keep their server connection past the transaction

	Stats Stats
}

// Stats are counters of one pool since it was made. They only grow, and start
// at 0 again when a pool was collected and is made anew.
type Stats struct {
	Assignments   uint64 // times a server connection was given to a client
	Transactions  uint64
	Queries       uint64
	BytesReceived uint64 // from clients
	BytesSent     uint64 // to clients

	TransactionTime time.Duration // server connections in transactions
	QueryTime       time.Duration // server connections executing
	WaitTime        time.Duration // clients waiting for a server connection

	ClientParses uint64 // named statements created by clients
	ServerParses uint64 // named statements created on servers
	Binds        uint64
}

// ClientRow is one client session after login.
type ClientRow struct {
	ID                 uint64
	User, Database     string
	State              string // active, idle, waiting, active_cancel_req, waiting_cancel_req
	Addr               string // IP address without port, or "unix"
	Port               int
	LocalAddr          string
	LocalPort          int
	Connected          time.Time
	Requested          time.Time     // latest request; zero = none yet
	Wait               time.Duration // current wait; 0 = not waiting
	CloseNeeded        bool
	Server             uint64 // ID of the linked server connection; 0 = none
	RemotePID          uint32 // peer's process over a unix socket, when known
	TLS                string // "TLSv1.3/TLS_AES_128_GCM_SHA256"; empty = plain
	ApplicationName    string
	PreparedStatements int
	Loop               int
	Pins               []string // reasons why it keeps its server connection
}

// ServerRow is one server connection, dialing ones included.
type ServerRow struct {
	ID                 uint64
	User, Database     string
	State              string // active, idle, used, tested, new, active_cancel, being_canceled, draining
	Addr               string
	Port               int
	LocalAddr          string
	LocalPort          int
	Connected          time.Time
	Requested          time.Time
	CloseNeeded        bool
	Client             uint64 // ID of the linked client; 0 = none
	RemotePID          uint32 // backend process id
	TLS                string
	ApplicationName    string // of the linked client
	PreparedStatements int
	Loop               int
	Settings           uint64 // id of the settings in force on the connection; 0 = the server's own
	Pins               []string
}

// PinRow is one client that keeps its server connection past the transaction.
// It says why, never what: no statement text.
type PinRow struct {
	Database, User string
	Client         uint64 // ClientRow.ID
	ServerPID      uint32
	Reasons        []string
	Since          time.Time
}

// DatabaseRow is one database as configured; current counts come from Pools.
type DatabaseRow struct {
	Name           string // what clients ask for
	Host           string // empty = several or a unix socket
	Port           int
	Database       string // what it is called on the server
	ForceUser      string // empty = the client's user
	PoolSize       int
	MinPoolSize    int
	ReservePool    int
	ServerLifetime time.Duration
	Mode           string // override; empty = the default mode
	MaxConnections int    // 0 = no limit of its own
	MaxClients     int    // 0 = no limit of its own
	Paused         bool
	Disabled       bool
}

// UserRow is one user as configured; current counts come from Pools.
type UserRow struct {
	Name           string
	PoolSize       int    // 0 = no override
	Mode           string // override; empty = the default mode
	MaxConnections int
	MaxClients     int
}

// ConfigRow is one effective setting. Secrets arrive masked.
type ConfigRow struct {
	Key, Value, Default string
	Changeable          bool   // without a restart
	Origin              string // flag, env, file, default
}

// Counts are numbers by label value. Values come from a closed set in code
// ("lifetime", "idle", ...), never from a client; give all of them, zeros
// included, so that a rate can be taken from the first event on.
type Counts map[string]uint64

// Totals are process-wide numbers. Counters never go down.
type Totals struct {
	LoggingIn int // clients between accept and the end of login

	Slots        Slots
	Pins         Counts  // now, by reason
	Acquire      Latency // of server connections that were granted
	Panics       uint64  // contained ones
	Logins       Counts  // by result: ok, failed, timeout, ...
	Disconnects  Counts  // clients, by reason
	Cancels      Counts  // by result
	Connects     Counts  // server connections, by result
	ServerCloses Counts  // server connections, by reason

	ReloadFailed bool      // the latest reload of the configuration was refused
	ConfigLoaded time.Time // when the configuration in force was read

	AcquireTimeouts uint64
	AcquireRejected Counts // refused before or while queueing, by reason; timeouts not included
}

// Slots say where the right to hold a server connection is. Free, Dialing,
// Idle, Active and Draining add up to Capacity, except while the capacity is
// being lowered.
type Slots struct {
	Capacity                              int
	Free, Dialing, Idle, Active, Draining int
}
