package config

import (
	"net"
	"slices"
	"strconv"
	"time"
)

// Target is one server (or one address that leads to servers) and what is
// routed to it. In a resolved Config every field holds its effective value.
//
// Keys are those of an entry of the file's `targets:` list. Where a key also
// exists at the top level, the entry's own key wins over its URL, and its URL
// over the top level. For the target that came as --target or as the argument,
// the top-level keys *are* its own keys.
type Target struct {
	Name           string   `key:"name" reload:"restart"`
	URL            URL      `key:"url"`
	Databases      []string `key:"databases"`             // names routed here; "*" = every name that no other target has
	Host           string   `key:"host" reload:"restart"` // name, address, or a unix socket's folder
	Port           int      `key:"port" min:"0" max:"65535" reload:"restart"`
	User           string   `key:"user"`     // "" = each client's own name
	Password       Secret   `key:"password"` // env:NAME in the file is already looked up
	PasswordFile   string   `key:"password_file"`
	Database       string   `key:"dbname"` // for logins that no client asked for (checks); routing does not use it
	PoolMode       PoolMode `key:"pool_mode" oneof:"|transaction|session|statement"`
	TLS            ServerTLS
	ChannelBinding string        `key:"channel_binding" oneof:"|disable|prefer|require"` // SCRAM-SHA-256-PLUS
	ConnectTimeout time.Duration `key:"server_connect_timeout"`
	Capacity       int           `key:"connpool_global_capacity" min:"0" max:"100000"`
	MaxIdle        int           `key:"connpool_max_idle" min:"0" max:"100000"` // 0 = whatever the capacity is at the moment
	AppName        string        `key:"application_name"`                       // startup parameters that a client's own win over
	Options        string        `key:"options"`
}

// Unix says whether the target is reached over a unix socket.
func (t *Target) Unix() bool { return len(t.Host) > 0 && t.Host[0] == '/' }

// Network is what to give net.Dialer besides Address.
func (t *Target) Network() string {
	if t.Unix() {
		return "unix"
	}
	return "tcp"
}

// Address is the address to dial.
func (t *Target) Address() string {
	if t.Unix() {
		return socketPath(t.Host, t.Port)
	}
	return net.JoinHostPort(t.Host, strconv.Itoa(t.Port))
}

// Override is what the file says about one database or one user.
type Override struct {
	PoolMode PoolMode `key:"pool_mode" oneof:"|transaction|session|statement"`
}

// Route finds the target for a database name: the one that lists it, else the
// one that lists "*".
func (c *Config) Route(database string) (*Target, bool) {
	for _, name := range []string{database, "*"} {
		for i := range c.Targets {
			if slices.Contains(c.Targets[i].Databases, name) {
				return &c.Targets[i], true
			}
		}
	}
	return nil, false
}

// PoolModeFor is the pool mode of a session: the user's, else the database's,
// else the target's (which inherits the global one).
func (c *Config) PoolModeFor(t *Target, database, user string) PoolMode {
	if m := c.Users[user].PoolMode; m != "" {
		return m
	}
	if m := c.Databases[database].PoolMode; m != "" {
		return m
	}
	if t.PoolMode != "" {
		return t.PoolMode
	}
	return c.PoolMode
}
