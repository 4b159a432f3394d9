package config

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"slices"
)

// Validate reports everything that makes the configuration impossible, each
// with its place. It reads no files; Load checks those as well.
func (c *Config) Validate() error { return c.validate(false, nil) }

// validate skips the keys that are broken: they were reported already and hold
// a default.
func (c *Config) validate(noTarget bool, broken map[string]bool) error {
	v := &validator{c: c}
	for _, f := range fields(c) {
		if broken[f.key] {
			continue
		}
		v.check(f, f.key)
	}
	v.listeners()
	v.clientTLS()
	if !broken["targets"] {
		v.clients()
	}
	v.targets(noTarget || broken["targets"])
	v.overrides(!broken["targets"])
	return v.join()
}

type validator struct {
	c *Config
	mistakes
}

func (v *validator) bad(key, format string, args ...any) {
	v.add(v.c.sources[key], key, format, args...)
}

// check applies the bounds of the tags.
func (v *validator) check(f field, path string) {
	if f.oneof == nil && f.min == "" && f.max == "" {
		return
	}
	if err := f.inRange(); err != nil {
		v.bad(path, "%s", err)
	}
}

func (v *validator) listeners() {
	c := v.c
	if len(c.Listen) == 0 {
		v.bad("listen", "at least one address to listen on is needed")
	}
	seen := map[string]bool{}
	for _, s := range c.Listen {
		l, err := ParseListener(s)
		if err != nil {
			v.bad("listen", "%q: %s", s, err)
			continue
		}
		if seen[l.Address()] && l.Port != 0 {
			v.bad("listen", "%s is listed twice", l)
		}
		seen[l.Address()] = true
	}
	if c.HTTPListen == "" {
		return
	}
	l, err := ParseListener(c.HTTPListen)
	switch {
	case err != nil:
		v.bad("http_listen", "%q: %s", c.HTTPListen, err)
	case l.Dir != "":
		v.bad("http_listen", "%q: HTTP is served on TCP only; write host:port, or \"off\"", c.HTTPListen)
	case seen[l.Address()] && l.Port != 0:
		v.bad("http_listen", "%s is taken by listen", l)
	}
}

func (v *validator) clientTLS() {
	t := v.c.TLS
	if t.Cert != "" && t.Key == "" {
		v.bad("tls_cert", "tls_key is missing")
	}
	if t.Key != "" && t.Cert == "" {
		v.bad("tls_key", "tls_cert is missing")
	}
	if t.Mode != TLSDisable && t.Mode != "" && t.Cert == "" && t.Key == "" {
		v.bad("tls_mode", "%s needs tls_cert and tls_key", t.Mode)
	}
	verifies := t.Mode == TLSVerifyCA || t.Mode == TLSVerifyFull
	if verifies && t.CA == "" {
		v.bad("tls_mode", "%s needs tls_ca, the authority that signs the clients' certificates", t.Mode)
	}
	if v.c.Auth.Type == AuthCert && t.Mode != TLSVerifyFull {
		v.bad("auth_type", "cert needs tls_mode verify-full")
	}
}

// clients checks that somebody can log in.
func (v *validator) clients() {
	c := v.c
	needsPasswords := c.Auth.Type == AuthSCRAM || c.Auth.Type == AuthMD5
	if !needsPasswords || c.Auth.File != "" || len(c.Targets) == 0 {
		return
	}
	for i := range c.Targets {
		if c.Targets[i].User != "" && c.Targets[i].Password != "" {
			return
		}
	}
	v.bad("auth_type", "%s needs passwords, and there are none: set auth_file, or give a target user and password", c.Auth.Type)
}

func (v *validator) targets(noTarget bool) {
	c := v.c
	if len(c.Targets) == 0 && !noTarget {
		v.add(Source{}, "target", "%s", errNoTarget)
	}
	names, routed := map[string]bool{}, map[string]string{}
	for i := range c.Targets {
		t := &c.Targets[i]
		path := "targets." + t.Name + "."
		// The sole target's mistakes belong to the URL that it came from.
		key := func(k string) string {
			if c.sources[path+k].Kind == FromFile || t.Name != soleTarget {
				return path + k
			}
			if _, top := c.sources[k]; top {
				return k
			}
			return "target"
		}
		bad := func(k, format string, args ...any) {
			v.add(c.sources[path+k], key(k), format, args...)
		}
		if names[t.Name] {
			bad("name", "another target has the name %q already", t.Name)
		} else if !plainName.MatchString(t.Name) {
			bad("name", "%q is no name: letters, digits, '-' and '_', at most 41", t.Name)
		}
		names[t.Name] = true
		if t.Host == "" {
			bad("host", "the host is missing")
		} else if !validHost(t.Host) {
			bad("host", "%q is no host name, no address and no absolute path", t.Host)
		} else if t.Unix() && len(t.Address()) > maxSocketPath {
			bad("host", "the socket's path %s has %d bytes, the system allows %d", t.Address(), len(t.Address()), maxSocketPath)
		}
		if len(t.Databases) == 0 {
			bad("databases", "list the databases of this target, or \"*\" for all that no other target has")
		}
		for _, db := range t.Databases {
			if db == "multipooler" || db == "pgbouncer" {
				bad("databases", "%q is the name of the console and cannot be routed", db)
			}
			if other, ok := routed[db]; ok {
				bad("databases", "%q is routed to target %q already", db, other)
			}
			routed[db] = t.Name
		}
		for _, f := range fields(t) {
			if f.oneof != nil || f.max != "" {
				if err := f.inRange(); err != nil {
					if _, top := find(fields(c), f.key); top && c.sources[path+f.key] == c.sources[f.key] {
						continue // inherited, reported there
					}
					bad(f.key, "%s", err)
				}
			}
		}
		v.serverTLS(t, bad)
	}
}

func (v *validator) serverTLS(t *Target, bad func(k, format string, args ...any)) {
	s := t.TLS
	if (s.Cert == "") != (s.Key == "") {
		bad("server_tls_cert", "server_tls_cert and server_tls_key (sslcert, sslkey) are needed together")
	}
	if t.Unix() {
		if s.Mode != TLSDisable {
			bad("server_tls_mode", "%s is not possible over a unix socket", s.Mode)
		}
		return
	}
	weak := s.Mode == TLSDisable || s.Mode == TLSAllow || s.Mode == TLSPrefer
	if s.Negotiation == NegotiateDirect && weak {
		bad("server_tls_negotiation", "direct needs server_tls_mode (sslmode) require or stricter, it is %s", s.Mode)
	}
	if s.CA == systemRoots && s.Mode != TLSVerifyFull {
		bad("server_tls_ca", "%q needs server_tls_mode (sslmode) verify-full, it is %s", systemRoots, s.Mode)
	}
	if s.Mode == TLSVerifyCA && s.CA == "" {
		bad("server_tls_mode", "verify-ca needs server_tls_ca (sslrootcert): with the system's roots anybody's certificate would do; use verify-full")
	}
	if t.ChannelBinding == "require" && s.Mode == TLSDisable {
		bad("channel_binding", "channel_binding=require needs TLS to the server, and server_tls_mode (sslmode) is disable")
	}
}

func (v *validator) overrides(allTargets bool) {
	check := func(what, name string, o Override) {
		path := what + "." + name + "."
		for _, f := range fields(&o) {
			v.check(f, path+f.key)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.c.Databases)) {
		check("databases", name, v.c.Databases[name])
		if _, ok := v.c.Route(name); !ok && allTargets && len(v.c.Targets) > 0 {
			v.bad("databases."+name, "no target serves this database")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.c.Users)) {
		check("users", name, v.c.Users[name])
	}
}

// checkFiles opens every file that the configuration names, so that `check`
// finds what a start would, and adds the remarks on what is odd.
func (l *loader) checkFiles() {
	c := l.conf
	readable := func(src Source, key, path string) []byte {
		if path == "" {
			return nil
		}
		data, err := readBounded(path, 16<<20)
		if err != nil {
			l.addErr(src, key, err)
		}
		return data
	}
	pair := func(src Source, key, cert, private string) {
		if cert == "" || private == "" {
			return
		}
		if _, err := tls.LoadX509KeyPair(cert, private); err != nil {
			l.addErr(src, key, err)
		}
	}
	authority := func(src Source, key, path string) {
		if path == systemRoots {
			return
		}
		data := readable(src, key, path)
		if data != nil && !x509.NewCertPool().AppendCertsFromPEM(data) {
			l.add(src, key, "%s holds no certificate in PEM form", path)
		}
	}
	readable(l.place("auth_file"), "auth_file", c.Auth.File)
	pair(l.place("tls_cert"), "tls_cert", c.TLS.Cert, c.TLS.Key)
	authority(l.place("tls_ca"), "tls_ca", c.TLS.CA)
	checked := map[Source]bool{} // an inherited file is reported once
	for _, t := range c.Targets {
		path := "targets." + t.Name + "."
		for _, k := range []string{"server_tls_cert", "server_tls_ca"} {
			src := c.sources[path+k]
			if checked[src] && src.Kind == FromFile {
				continue
			}
			checked[src] = true
			if k == "server_tls_ca" {
				authority(src, k, t.TLS.CA)
			} else {
				pair(src, k, t.TLS.Cert, t.TLS.Key)
			}
		}
	}
	l.remarks()
}

// remarks notes what is possible but seldom meant.
func (l *loader) remarks() {
	c := l.conf
	if c.Auth.Type == AuthTrust {
		for _, a := range c.Listeners() {
			ip := net.ParseIP(a.Host)
			if a.Dir == "" && a.Host != "localhost" && (ip == nil || !ip.IsLoopback()) {
				l.note(true, l.place("auth_type"), "auth_type", "trust lets everybody who reaches %s in, without a password", a)
			}
		}
	}
	if c.Pool.MaxIdle > c.Pool.Capacity {
		l.note(true, l.place("connpool_max_idle"), "connpool_max_idle", "%d is more than connpool_global_capacity (%d), which bounds it", c.Pool.MaxIdle, c.Pool.Capacity)
	}
	if c.Client.MaxUnauthenticated > c.Client.Max && l.given("max_unauthenticated_clients") {
		l.note(true, l.place("max_unauthenticated_clients"), "max_unauthenticated_clients", "%d is more than max_clients (%d), which bounds it", c.Client.MaxUnauthenticated, c.Client.Max)
	}
	if c.Client.LoginTimeout > 0 && c.Pool.AcquireTimeout > c.Client.LoginTimeout {
		l.note(true, l.place("acquire_timeout"), "acquire_timeout", "%s is longer than client_login_timeout (%s), which ends a login that waits for a server connection", formatDuration(c.Pool.AcquireTimeout), formatDuration(c.Client.LoginTimeout))
	}
}
