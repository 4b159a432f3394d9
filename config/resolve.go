package config

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

const (
	envPrefix   = "env:"    // a secret's value may be env:NAME
	maxPassword = 4 << 10   // bytes of a password file
	soleTarget  = "default" // the name of the target that came as --target or argument
)

var envNameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func validEnvName(s string) bool { return envNameForm.MatchString(s) }

// resolve turns what was said into what is effective: Targets, overrides, and
// the values that stand for "empty".
func (l *loader) resolve() {
	c := l.conf
	if c.HTTPListen == "off" {
		c.HTTPListen = ""
	}
	if c.Target != "" {
		l.soleTarget()
	}
	for i, s := range l.document.targets {
		l.listedTarget(i, s)
	}
	if len(c.Targets) == 1 && len(c.Targets[0].Databases) == 0 {
		c.Targets[0].Databases = []string{"*"}
	}
	c.Databases = l.overrides("databases", l.document.databases)
	c.Users = l.overrides("users", l.document.users)

	if c.TLS.Mode == "" {
		c.TLS.Mode = TLSDisable
		if c.TLS.Cert != "" {
			c.TLS.Mode = TLSPrefer
		}
	}
	if c.ServiceName == "" {
		c.ServiceName = "multipooler"
		if host, err := os.Hostname(); err == nil && host != "" {
			c.ServiceName = host
		}
	}
	if len(c.AdminUsers) == 0 {
		for _, t := range c.Targets {
			if t.User != "" && !slices.Contains(c.AdminUsers, t.User) {
				c.AdminUsers = append(c.AdminUsers, t.User)
			}
		}
	}
}

// place is where a top-level key came from.
func (l *loader) place(key string) Source { return l.conf.sources[key] }

// given says whether a top-level key was set by anybody.
func (l *loader) given(key string) bool { return l.place(key).Kind != FromDefault }

// soleTarget resolves --target: the top-level keys are its own keys.
func (l *loader) soleTarget() {
	c, src := l.conf, l.place("target")
	text, ok := l.deref(src, "target", string(c.Target))
	if !ok {
		l.markBroken("targets")
		return
	}
	t, err := ParseURL(text)
	if err != nil {
		l.addErr(src, "target", err)
		l.markBroken("targets")
		return
	}
	c.Target = URL(text)
	fromCommandLine := src.Kind == FromFlag || src.Kind == FromArgument
	if t.Password != "" && fromCommandLine {
		l.note(true, src, "target", "the password came by the command line; it is hidden from the process list, but a shell history may hold it: prefer target_password_file, PGPASSWORD or MULTIPOOLER_TARGET")
	}
	t.Name, t.URL, t.Databases = soleTarget, c.Target, []string{"*"}
	path := "targets." + t.Name + "."
	for _, f := range fields(&t) {
		c.sources[path+f.key] = src
	}
	if c.TargetPasswordFile != "" {
		l.passwordFile(&t, c.TargetPasswordFile, l.place("target_password_file"), "target_password_file")
		c.sources[path+"password"] = l.place("target_password_file")
	} else if t.Password == "" {
		if pw := l.env["PGPASSWORD"]; pw != "" {
			t.Password = Secret(pw)
			c.sources[path+"password"] = Source{Kind: FromEnv, Name: "PGPASSWORD"}
		}
	}
	own, tls := fields(&c.ServerTLS), fields(&t.TLS)
	for i, f := range own {
		global, url := f.value.String(), tls[i].value.String()
		if global == "" {
			continue
		}
		if url != "" && url != global {
			l.note(true, l.place(f.key), f.key, "%s overrides what the target's URL says (%s)", global, url)
		}
		tls[i].value.SetString(global)
		c.sources[path+f.key] = l.place(f.key)
	}
	if l.given("server_connect_timeout") {
		t.ConnectTimeout = 0 // inherit
	}
	l.finishTarget(&t)
}

// listedTarget resolves an entry of targets: its own keys win over its URL,
// its URL over the top level.
func (l *loader) listedTarget(i int, s section) {
	c := l.conf
	label := fmt.Sprintf("targets[%d].", i)
	var t Target
	if s.broken {
		l.markBroken("targets")
		return
	}
	if u, ok := s.values["url"]; ok {
		text, ok := l.deref(u.src, label+"url", u.texts[0])
		if !ok {
			l.markBroken("targets")
			return
		}
		parsed, err := ParseURL(text)
		if err != nil {
			l.addErr(u.src, label+"url", err)
			l.markBroken("targets")
			return
		}
		t = parsed
		s.values["url"] = raw{texts: []string{text}, src: u.src}
	}
	inURL := t.Password != ""
	fs := fields(&t)
	for _, f := range fs {
		v, ok := s.values[f.key]
		if !ok {
			continue
		}
		if err := f.set(v.texts); err != nil {
			l.addErr(v.src, label+f.key, err)
		}
	}
	if t.Name == "" {
		l.add(s.src, label+"name", "the name is missing")
		l.markBroken("targets")
		return
	}
	if _, twice := c.target(t.Name); twice {
		l.add(s.values["name"].src, label+"name", "another target has the name %q already (%q is the name of --target)", t.Name, soleTarget)
		l.markBroken("targets")
		return
	}
	path := "targets." + t.Name + "."
	c.sources[path[:len(path)-1]] = s.src
	for _, f := range fs {
		c.sources[path+f.key] = s.src
		if v, ok := s.values[f.key]; ok {
			c.sources[path+f.key] = v.src
		}
	}
	if v, ok := s.values["password"]; ok {
		text, _ := l.deref(v.src, path+"password", v.texts[0])
		if inURL {
			l.add(v.src, path+"password", "the password is given twice, here and in the url")
		}
		t.Password, inURL = Secret(text), true
	}
	if t.PasswordFile != "" {
		if inURL {
			t.Password = "*" // any: passwordFile reports that there are two
		}
		l.passwordFile(&t, t.PasswordFile, c.sources[path+"password_file"], path+"password_file")
	}
	own, tls := fields(&c.ServerTLS), fields(&t.TLS)
	for i, f := range own {
		if tls[i].value.String() == "" && f.value.String() != "" {
			tls[i].value.SetString(f.value.String())
			c.sources[path+f.key] = l.place(f.key)
		}
	}
	l.finishTarget(&t)
}

// finishTarget fills in what is still empty and appends the target.
func (l *loader) finishTarget(t *Target) {
	c := l.conf
	inherit := func(key string) { c.sources["targets."+t.Name+"."+key] = l.place(key) }
	if t.PoolMode == "" {
		t.PoolMode = c.PoolMode
		inherit("pool_mode")
	}
	if t.Capacity == 0 {
		t.Capacity = c.Pool.Capacity
		inherit("connpool_global_capacity")
	}
	if t.MaxIdle == 0 {
		t.MaxIdle = c.Pool.MaxIdle
		inherit("connpool_max_idle")
	}
	if t.ConnectTimeout == 0 {
		t.ConnectTimeout = c.Server.ConnectTimeout
		inherit("server_connect_timeout")
	}
	byDefault := func(key string) { c.sources["targets."+t.Name+"."+key] = Source{} }
	if t.Port == 0 {
		t.Port = defaultServerPort
		byDefault("port")
	}
	if t.TLS.Negotiation == "" {
		t.TLS.Negotiation = NegotiatePostgres
		byDefault("server_tls_negotiation")
	}
	if t.TLS.Mode == "" {
		byDefault("server_tls_mode")
		switch {
		case t.TLS.CA == systemRoots:
			t.TLS.Mode = TLSVerifyFull // as libpq
		case t.TLS.Negotiation == NegotiateDirect:
			t.TLS.Mode = TLSRequire // libpq asks for at least this; plain text cannot be negotiated any more
		default:
			t.TLS.Mode = TLSPrefer
		}
	}
	// A server does not offer TLS on a unix socket.
	if t.Unix() && (t.TLS.Mode == TLSAllow || t.TLS.Mode == TLSPrefer) {
		t.TLS.Mode = TLSDisable
	}
	if t.ChannelBinding == "" {
		t.ChannelBinding = "prefer"
		byDefault("channel_binding")
	}
	if t.Database == "" {
		t.Database = t.User
		byDefault("dbname")
	}
	c.Targets = append(c.Targets, *t)
}

// systemRoots as a CA means the roots that the system trusts.
const systemRoots = "system"

// passwordFile reads a password; one line end at its end is not part of it.
func (l *loader) passwordFile(t *Target, path string, src Source, key string) {
	if t.Password != "" {
		l.add(src, key, "the password is given twice, here and with the target")
		return
	}
	data, err := readBounded(path, maxPassword+1)
	if err != nil {
		l.addErr(src, key, err)
		l.markBroken("targets")
		return
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	problem := ""
	switch {
	case len(data) > maxPassword:
		problem = fmt.Sprintf("%s is longer than %d bytes, that is no password", path, maxPassword)
	case text == "":
		problem = path + " is empty"
	case strings.ContainsAny(text, "\x00\n"):
		problem = path + " holds more than one line"
	default:
		t.Password = Secret(text)
		return
	}
	l.add(src, key, "%s", problem)
	l.markBroken("targets")
}

// deref replaces env:NAME by what the variable holds.
func (l *loader) deref(src Source, key, text string) (string, bool) {
	name, ok := strings.CutPrefix(text, envPrefix)
	if !ok {
		return text, true
	}
	if !validEnvName(name) {
		l.add(src, key, "%s must be followed by the name of an environment variable", envPrefix)
		return "", false
	}
	value := l.env[name]
	if value == "" {
		l.add(src, key, "the environment variable %s is not set", name)
		l.markBroken("targets")
		return "", false
	}
	return value, true
}

// overrides reads databases: or users:.
func (l *loader) overrides(what string, in map[string]section) map[string]Override {
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]Override, len(in))
	for name, s := range in {
		var o Override
		path := what + "." + name + "."
		for _, f := range fields(&o) {
			v, ok := s.values[f.key]
			if !ok {
				continue
			}
			l.conf.sources[path+f.key] = v.src
			if err := f.set(v.texts); err != nil {
				l.addErr(v.src, path+f.key, err)
			}
		}
		l.conf.sources[path[:len(path)-1]] = s.src
		out[name] = o
	}
	return out
}

var errNoTarget = errors.New("no target is given: add postgres://user:password@host:port/dbname to the command line, set MULTIPOOLER_TARGET, or list targets in the file")
