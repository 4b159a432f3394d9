// Package config is everything an operator can say to multipooler, as one
// struct.
//
// It owns the names (flag --a-b, environment MULTIPOOLER_A_B, file key a_b),
// the defaults, the parsing of values, URLs and the file, the validation and
// the difference between two configurations for a reload. cmd/multipooler calls
// Load once at start and once per reload; everybody else only reads a *Config
// and never changes it. The package starts no goroutine, keeps no global state
// and logs nothing.
//
// Precedence, lowest to highest: Default, file, an environment name that a
// predecessor used (tag seed), MULTIPOOLER_*, flag or argument.
//
// A Config that Load returned without an error is *resolved*: Targets holds
// every target with its effective settings (also the one that came as --target
// or as the argument), AdminUsers is filled in, TLS.Mode and
// ServiceName hold what their empty or zero value means. (Log.Format is the
// exception: it depends on the terminal, and only cmd knows that.)
package config

import (
	"io/fs"
	"time"
)

// Config is one immutable configuration.
//
// Struct tags: key is the name (see above); seed is a further accepted
// environment name; oneof lists the allowed words; min and max bound a number
// or a duration; reload:"restart" marks what a running process cannot change.
// A field without a key is filled by the file alone (Targets, Databases,
// Users). What each key means for the operator stands in manual.go.
type Config struct {
	File           string        `key:"config" reload:"restart" from:"flag"` // path of the file that was read, "" = none
	Listen         []string      `key:"listen" reload:"restart"`             // use Listeners() for the parsed form
	UnixSocketMode fs.FileMode   `key:"unix_socket_mode" reload:"restart"`
	HTTPListen     string        `key:"http_listen" reload:"restart"`   // "" = off
	TCPKeepalive   time.Duration `key:"tcp_keepalive" reload:"restart"` // idle time before the first probe, both sides; 0 = the system's setting
	EventLoops     int           `key:"event_loops" min:"0" max:"1024" reload:"restart"`
	ReadBuffer     Size          `key:"event_loop_read_buffer" min:"8KiB" max:"16MiB" reload:"restart"`
	HighWater      Size          `key:"event_loop_high_water" min:"16KiB" max:"1GiB" reload:"restart"` // backlog at which the other side is no longer read; resume at a quarter
	ServiceName    string        `key:"service_name" reload:"restart"`                                 // "" never after Load: the host name
	AdminUsers     []string      `key:"admin_users"`

	Target             URL      `key:"target"`               // as given; resolved into Targets under the name "default"
	TargetPasswordFile string   `key:"target_password_file"` // the password of Target
	PoolMode           PoolMode `key:"pool_mode" oneof:"transaction|session|statement"`

	Auth      Auth
	TLS       ClientTLS
	ServerTLS ServerTLS // what targets inherit; read Targets[i].TLS instead
	Client    Client
	Pool      Pool
	Server    Server
	Cancel    Cancel
	Drain     Drain
	Log       Log

	Targets   []Target
	Databases map[string]Override
	Users     map[string]Override

	// Notes are remarks that are no mistakes: use of predecessors' names,
	// conflicts between sources, settings that are odd but possible.
	Notes []Note

	sources map[string]Source // key or path ("targets.NAME.key") -> where its value came from
}

// PoolMode says how long a client keeps its server connection.
type PoolMode string

// The pool modes, from the most to the least shared.
const (
	PoolStatement   PoolMode = "statement"
	PoolTransaction PoolMode = "transaction"
	PoolSession     PoolMode = "session"
)

// AuthType is how clients prove who they are.
type AuthType string

// The client authentication methods.
const (
	AuthSCRAM AuthType = "scram-sha-256"
	AuthTrust AuthType = "trust"
	AuthMD5   AuthType = "md5"
	AuthCert  AuthType = "cert"
)

// Auth is the login of clients.
type Auth struct {
	Type AuthType `key:"auth_type" oneof:"scram-sha-256|trust|md5|cert"`
	File string   `key:"auth_file"` // PgBouncer's userlist.txt; "" = the users of the targets' URLs
}

// TLSMode is libpq's sslmode, on either side.
type TLSMode string

// The TLS modes in order of strictness; see ClientTLS and ServerTLS for what
// each side makes of them.
const (
	TLSDisable    TLSMode = "disable"
	TLSAllow      TLSMode = "allow"
	TLSPrefer     TLSMode = "prefer"
	TLSRequire    TLSMode = "require"
	TLSVerifyCA   TLSMode = "verify-ca"
	TLSVerifyFull TLSMode = "verify-full"
)

// ClientTLS is TLS towards clients. allow and prefer mean the same here: TLS
// for who asks for it, plain text for who does not. verify-ca asks for a
// client certificate signed by CA, verify-full also wants its common name to be
// the user name.
type ClientTLS struct {
	Mode TLSMode `key:"tls_mode" oneof:"|disable|allow|prefer|require|verify-ca|verify-full" reload:"restart"` // after Load never "": prefer with a certificate, else disable
	Cert string  `key:"tls_cert" reload:"restart"`
	Key  string  `key:"tls_key" reload:"restart"`
	CA   string  `key:"tls_ca" reload:"restart"`
}

// ServerTLS is TLS towards a server. The modes are libpq's: allow tries plain
// text first, prefer TLS first; require encrypts without proof of identity
// (with CA set it verifies the chain, as libpq does); verify-ca checks the
// chain, verify-full the host name as well. CA "" with verify-full means the
// system's roots, and so does "system", which excludes every other mode.
type ServerTLS struct {
	Mode        TLSMode     `key:"server_tls_mode" oneof:"|disable|allow|prefer|require|verify-ca|verify-full" reload:"restart"`
	Negotiation Negotiation `key:"server_tls_negotiation" oneof:"|postgres|direct" reload:"restart"`
	CA          string      `key:"server_tls_ca" reload:"restart"`
	Cert        string      `key:"server_tls_cert" reload:"restart"`
	Key         string      `key:"server_tls_key" reload:"restart"`
}

// Negotiation is how TLS starts: asked for by an SSLRequest, or at once with
// ALPN (PostgreSQL 17 and later).
type Negotiation string

// The two ways to start TLS.
const (
	NegotiatePostgres Negotiation = "postgres"
	NegotiateDirect   Negotiation = "direct"
)

// Client bounds clients. A zero duration means "no limit".
type Client struct {
	Max                int           `key:"max_clients" min:"1" max:"1000000"`
	MaxUnauthenticated int           `key:"max_unauthenticated_clients" min:"1" max:"1000000"`
	LoginTimeout       time.Duration `key:"client_login_timeout" min:"1ms"`
	IdleTimeout        time.Duration `key:"client_idle_timeout"`  // idle outside a transaction
	StallTimeout       time.Duration `key:"client_stall_timeout"` // takes nothing of what waits for it
}

// Pool bounds server connections and the wait for them.
type Pool struct {
	Capacity                  int           `key:"connpool_global_capacity" seed:"DB_MAX_OPEN_CONNS" min:"1" max:"100000"` // slots per target; Targets[i].Capacity is the effective one
	MaxIdle                   int           `key:"connpool_max_idle" seed:"DB_MAX_IDLE_CONNS" min:"0" max:"100000"`        // per target; 0 = the capacity
	MaxWaiters                int           `key:"connpool_max_waiters" min:"1" max:"1000000"`                             // per user pool
	RegularIdleTimeout        time.Duration `key:"connpool_user_regular_idle_timeout" seed:"DB_CONN_MAX_IDLE_TIME"`        // 0 = never
	RegularMaxLifetime        time.Duration `key:"connpool_user_regular_max_lifetime" seed:"DB_CONN_MAX_LIFETIME"`         // 0 = for ever; jittered by the pool
	ReservedInactivityTimeout time.Duration `key:"connpool_user_reserved_inactivity_timeout"`                              // idle in transaction, 25P03; 0 = off
	InactiveTimeout           time.Duration `key:"connpool_inactive_timeout" min:"1s"`                                     // an unused user pool is forgotten
	AcquireTimeout            time.Duration `key:"acquire_timeout" seed:"DB_CONN_ACQUIRE_TIMEOUT"`                         // 0 = no limit
}

// Server bounds what is done to a server connection.
type Server struct {
	ConnectTimeout    time.Duration `key:"server_connect_timeout" min:"1ms"`                  // dial and login; Targets[i].ConnectTimeout is the effective one
	CheckPeriod       time.Duration `key:"server_check_period" seed:"DB_HEALTH_CHECK_PERIOD"` // a peer that has vanished is noticed on an idle connection within this; 0 = tcp_keepalive decides
	QuarantineTimeout time.Duration `key:"server_quarantine_timeout" min:"1ms"`
}

// Cancel bounds cancel requests that are passed on to a server.
type Cancel struct {
	Timeout     time.Duration `key:"cancel_timeout" min:"1ms"`
	Concurrency int           `key:"cancel_concurrency" min:"1" max:"10000" reload:"restart"`
}

// Drain is how the process ends: after SIGTERM it serves on for Delay, then
// refuses new clients and lets transactions end until Timeout has passed.
type Drain struct {
	Delay   time.Duration `key:"drain_delay"`
	Timeout time.Duration `key:"drain_timeout"` // 0 = cut at once
}

// LogFormat is the shape of a log line.
type LogFormat string

// The log formats; "" is console on a terminal, else json.
const (
	LogConsole LogFormat = "console"
	LogJSON    LogFormat = "json"
)

// Log is what is logged and how.
type Log struct {
	Level  string    `key:"log_level" oneof:"debug|info|warn|error"`
	Format LogFormat `key:"log_format" oneof:"|console|json" reload:"restart"`
}

// Default is the configuration of a process that was told nothing. It is not
// valid: a target is missing.
func Default() *Config {
	return &Config{
		Listen:         []string{"127.0.0.1:6432"},
		UnixSocketMode: 0o777, // as PostgreSQL's unix_socket_permissions; the folder's mode decides
		HTTPListen:     "127.0.0.1:9632",
		ReadBuffer:     64 << 10,
		HighWater:      256 << 10,
		PoolMode:       PoolTransaction,
		Auth:           Auth{Type: AuthSCRAM},
		Client: Client{
			Max:                10000,
			MaxUnauthenticated: 500,
			LoginTimeout:       60 * time.Second,
			StallTimeout:       5 * time.Minute,
		},
		Pool: Pool{
			Capacity:                  100,
			MaxWaiters:                10000,
			RegularIdleTimeout:        5 * time.Minute,
			RegularMaxLifetime:        time.Hour,
			ReservedInactivityTimeout: 30 * time.Second,
			InactiveTimeout:           5 * time.Minute,
			AcquireTimeout:            5 * time.Second,
		},
		Server: Server{
			ConnectTimeout:    5 * time.Second,
			CheckPeriod:       30 * time.Second,
			QuarantineTimeout: 60 * time.Second,
		},
		Cancel: Cancel{Timeout: 10 * time.Second, Concurrency: 20},
		Drain:  Drain{Timeout: 30 * time.Second},
		Log:    Log{Level: "info"},
	}
}
