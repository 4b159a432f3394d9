package pooler

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/multipooler/multipooler/auth"
	"github.com/multipooler/multipooler/certs"
	"github.com/multipooler/multipooler/config"
	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

// target is one server with its slots.
type target struct {
	cfg  *config.Target // as it was at the start: name, address, TLS
	arb  *arbiter
	tls  *certs.Backend
	live atomic.Pointer[config.Target] // as it is now: everything else
	self atomic.Pointer[auth.Secret]   // the password of the target's own user

	mu     sync.Mutex
	routes map[routeKey]*route
	params map[paramsKey]*session.Params
}

// routeKey identifies a user pool. startup holds the settings that only a
// startup packet can set, encoded; it is empty for nearly everybody.
type routeKey struct{ database, user, startup string }

// route is one user pool with what its clients share.
type route struct {
	target         *target
	database, user string
	pool           *connpool.UserPool[*serverConn]
	handle         connpool.Handle
	mode           session.Mode

	clients       atomic.Int64
	assignments   atomic.Uint64
	queries       atomic.Uint64
	transactions  atomic.Uint64
	bytesReceived atomic.Uint64
	bytesSent     atomic.Uint64
	waited        atomic.Uint64 // nanoseconds
	pinned        atomic.Int64
	pinLogged     atomic.Bool
	keys          atomic.Pointer[auth.Secret] // recovered from a SCRAM login against a verifier
}

// paramsKey is what the reported parameters depend on.
type paramsKey struct {
	pool     connpool.Handle
	settings uint32
}

// maxParams bounds the remembered parameter sets; when it is full, logins learn
// anew.
const maxParams = 4096

func newTarget(p *Pooler, cfg *config.Target) (*target, error) {
	mode, err := certs.ParseMode(string(cfg.TLS.Mode))
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", cfg.Name, err)
	}
	ca := cfg.TLS.CA
	if ca == "system" {
		ca = ""
	}
	backend, err := certs.NewBackend(certs.BackendConfig{Mode: mode, CAFile: ca, CertFile: cfg.TLS.Cert, KeyFile: cfg.TLS.Key})
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", cfg.Name, err)
	}
	t := &target{
		cfg: cfg, tls: backend,
		routes: make(map[routeKey]*route),
		params: make(map[paramsKey]*session.Params),
	}
	self, err := ownSecret(cfg)
	if err != nil {
		return nil, err
	}
	t.live.Store(cfg)
	t.self.Store(self)
	t.arb = connpool.New[*serverConn](poolConfig(p.config(), cfg))
	return t, nil
}

// ownSecret is the password of the target's own user, if it has one.
func ownSecret(cfg *config.Target) (*auth.Secret, error) {
	if cfg.Password == "" {
		return &auth.Secret{}, nil
	}
	s, err := auth.PlainSecret(cfg.Password.Reveal())
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", cfg.Name, err)
	}
	return &s, nil
}

// poolConfig is what the arbiter of the target goes by.
func poolConfig(cfg *config.Config, t *config.Target) connpool.Config {
	pc := cfg.Pool
	return connpool.Config{
		Capacity: t.Capacity, MaxIdle: t.MaxIdle, MaxWaiters: pc.MaxWaiters,
		IdleTimeout: pc.RegularIdleTimeout, MaxLifetime: pc.RegularMaxLifetime,
		InactiveTimeout: pc.InactiveTimeout,
	}
}

// serverOnly are settings that set_config cannot set or RESET ALL does not
// reset: they go into the startup packet of connections of their own.
var serverOnly = map[string]bool{
	"role": true, "session_authorization": true,
	"ignore_system_indexes": true, "post_auth_delay": true, "jit_debugging_support": true, "jit_profiling_support": true,
	"local_preload_libraries": true, "log_connections": true, "log_disconnections": true,
}

// wishes splits what a client's startup packet asks for.
type wishes struct {
	appName  string
	settings []session.Setting // can be aligned to
	startup  []session.Setting // only a startup packet can say it
	tempPath bool              // it says pg_temp somewhere
}

// readWishes sorts the startup parameters. options come first, so that the
// others win, as in PostgreSQL.
func readWishes(s *protocol.Startup, mode session.Mode) wishes {
	var w wishes
	var all []session.Setting
	opts, opaque := protocol.SplitOptions(s.Options)
	if opaque {
		all = append(all, session.Setting{Name: "options", Value: s.Options})
	} else {
		for _, o := range opts {
			all = append(all, session.Setting{Name: o.Name, Value: o.Value})
		}
	}
	special := opaque || mode == session.ModeSession
	for _, p := range s.Params {
		all = append(all, session.Setting{Name: p.Name, Value: p.Value})
	}
	for _, o := range all {
		special = special || serverOnly[strings.ToLower(o.Name)]
		w.tempPath = w.tempPath || strings.Contains(strings.ToLower(o.Value), "pg_temp")
	}
	for _, o := range all {
		switch {
		case strings.EqualFold(o.Name, "application_name"):
			w.appName = o.Value
		case special:
			w.startup = append(w.startup, o)
		default:
			w.settings = append(w.settings, o)
		}
	}
	return w
}

// encode is the startup settings as a key, and decode the reverse: neither a
// name nor a value can contain a zero byte.
func encode(settings []session.Setting) string {
	var b strings.Builder
	for _, s := range settings {
		b.WriteString(s.Name)
		b.WriteByte(0)
		b.WriteString(s.Value)
		b.WriteByte(0)
	}
	return b.String()
}

func decode(key string) []protocol.Param {
	var params []protocol.Param
	for len(key) > 0 {
		var p protocol.Param
		p.Name, key, _ = strings.Cut(key, "\x00")
		p.Value, key, _ = strings.Cut(key, "\x00")
		params = append(params, p)
	}
	return params
}

// route finds or makes the user pool. The caller counts itself in clients.
func (t *target) route(database, user string, mode session.Mode, startup []session.Setting) (*route, error) {
	k := routeKey{database, user, encode(startup)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r, ok := t.routes[k]; ok {
		r.clients.Add(1)
		return r, nil
	}
	pool := t.arb.Pool(connpool.Key{Target: t.cfg.Name, Database: database, User: user, Startup: k.startup})
	if pool == nil {
		return nil, &protocol.Error{
			Severity: protocol.SeverityFatal, Code: "53300",
			Message: "too many user pools",
			Detail:  fmt.Sprintf("There are %d pairs of user and database, the most that multipooler keeps.", connpool.DefaultMaxPools),
		}
	}
	r := &route{target: t, database: database, user: user, pool: pool, handle: pool.Handle(), mode: mode}
	r.clients.Add(1)
	t.routes[k] = r
	return r, nil
}

// forget drops routes that nobody uses and whose pool is gone.
func (t *target) forget() {
	live := make(map[connpool.Handle]bool)
	for _, p := range t.arb.Pools() {
		live[p.Handle()] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, r := range t.routes {
		if r.clients.Load() == 0 && !live[r.handle] {
			delete(t.routes, k)
		}
	}
}

// known returns the parameters that a connection with these settings reports,
// nil if nobody has seen one.
func (r *route) known(s *session.Settings) *session.Params {
	r.target.mu.Lock()
	defer r.target.mu.Unlock()
	return r.target.params[paramsKey{r.handle, s.ID()}]
}

// learn remembers them.
func (r *route) learn(s *session.Settings, p *session.Params) {
	r.target.mu.Lock()
	defer r.target.mu.Unlock()
	if len(r.target.params) >= maxParams {
		clear(r.target.params)
	}
	r.target.params[paramsKey{r.handle, s.ID()}] = p
}

// forgetParams: the server reports something new, after a reload for instance.
func (t *target) forgetParams(h connpool.Handle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.params {
		if k.pool == h {
			delete(t.params, k)
		}
	}
}

// relearn: a clean connection with these settings reports p. A server says
// what a reload of its configuration has changed with the next reply, so it is
// heard in the middle of somebody's session.
func (t *target) relearn(h connpool.Handle, s *session.Settings, p *session.Params) {
	t.mu.Lock()
	known := t.params[paramsKey{h, s.ID()}]
	t.mu.Unlock()
	if known != nil && !known.SameButName(p) {
		t.forgetParams(h)
	}
}

// secretFor is what multipooler logs in to the server with as user: the target's
// password for the target's user, which may have another one elsewhere, or the
// user's own entry. Users keep their identity: nobody is logged in as somebody
// else.
func (t *target) secretFor(user string, users *auth.Userlist) auth.Secret {
	if user == t.live.Load().User {
		if s := *t.self.Load(); s.Kind() != auth.KindNone {
			return s
		}
	}
	if users != nil {
		if s, ok := users.Lookup(user); ok && (s.Kind() == auth.KindPlain || s.Kind() == auth.KindMD5) {
			return s
		}
	}
	return auth.Secret{}
}
