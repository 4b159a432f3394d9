package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file reads a target's URL as libpq's conninfo_uri_parse does. No error
// here quotes any part of the URL: in a URL that is mistyped, any part can be
// a piece of the password.

var (
	errNoURL = errors.New("not a URL: write postgres://user:password@host:port/dbname?sslmode=…")
	errStray = errors.New("an '@', '/', '?' or ':' is where it cannot be; inside a user name or password write %40 for '@', %2F for '/', %3F for '?', %3A for ':'")
	errHosts = errors.New("several hosts in one URL are not supported yet: give one, or one entry in targets per server")
)

// isURL says whether s starts like a target URL.
func isURL(s string) bool {
	_, ok := cutScheme(s)
	return ok
}

func cutScheme(s string) (rest string, ok bool) {
	if rest, ok = strings.CutPrefix(s, "postgres://"); ok {
		return rest, true
	}
	return strings.CutPrefix(s, "postgresql://")
}

// ParseURL reads postgres://user:password@host:port/dbname?parameter=value&…
// into the fields of a Target that a URL can set; the others stay zero. All
// mistakes are in the error, and none of them quotes the URL.
func ParseURL(raw string) (Target, error) {
	rest, ok := cutScheme(raw)
	if !ok {
		return Target{}, errNoURL
	}
	var t Target
	var errs []error
	decode := func(what, s string) string {
		v, err := percentDecode(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
		return v
	}

	// libpq looks for the first '@' before the first '/'; any other is stray.
	if at := strings.IndexByte(rest, '@'); at >= 0 && strings.IndexByte(rest[:at], '/') < 0 {
		user, password, _ := strings.Cut(rest[:at], ":")
		t.User = decode("user", user)
		t.Password = Secret(decode("password", password))
		rest = rest[at+1:]
	}
	if strings.IndexByte(rest, '@') >= 0 {
		return Target{}, errStray
	}

	rest, query, _ := strings.Cut(rest, "?")
	authority, dbname, _ := strings.Cut(rest, "/")
	if strings.IndexByte(dbname, '/') >= 0 {
		return Target{}, errStray
	}
	if strings.IndexByte(authority, ',') >= 0 {
		return Target{}, errHosts
	}
	host, port, err := splitAuthority(authority)
	if err != nil {
		errs = append(errs, err)
	}
	t.Host = decode("host", host)
	t.Port = port
	t.Database = decode("database name", dbname)
	errs = append(errs, parseQuery(&t, query, decode)...)
	if strings.IndexByte(t.Host, ',') >= 0 {
		errs = append(errs, errHosts)
	} else if !validHost(t.Host) {
		errs = append(errs, errors.New("the host is no host name, no address and no absolute path"))
	}
	return t, errors.Join(errs...)
}

// splitAuthority cuts host[:port] or [v6][:port]; no port gives 0.
func splitAuthority(s string) (host string, port int, err error) {
	if v6, ok := strings.CutPrefix(s, "["); ok {
		if host, s, ok = strings.Cut(v6, "]"); !ok {
			return "", 0, errors.New("the IPv6 address lacks its ']'")
		}
		if a, err := netip.ParseAddr(host); err != nil || !a.Is6() {
			return "", 0, errors.New("what stands in [ ] is not an IPv6 address")
		}
		if s != "" && s[0] != ':' {
			return "", 0, errStray
		}
		s = strings.TrimPrefix(s, ":")
	} else {
		host, s, _ = strings.Cut(s, ":")
	}
	if s == "" {
		return host, 0, nil
	}
	port, err = parsePort(s, 1)
	if err != nil {
		err = fmt.Errorf("%w (or a '/' or '@' in the password is not percent-encoded)", err)
	}
	return host, port, err
}

// validHost allows what a resolver may be asked; "" is judged later, since
// ?host= may fill it.
func validHost(h string) bool {
	if strings.HasPrefix(h, "/") || h == "" {
		return true
	}
	return !strings.ContainsFunc(h, func(r rune) bool {
		return r <= ' ' || r == 0x7f || strings.ContainsRune("/@?#\\\"'[]<>", r)
	})
}

// ignoredParams are libpq parameters with the values that need nothing from us.
var ignoredParams = map[string][]string{
	"target_session_attrs": {"any"},
	"gssencmode":           {"disable", "prefer"},
	"sslcompression":       {"0"},
	"sslsni":               {"1"},
	"load_balance_hosts":   {"disable"},
	"client_encoding":      {"auto", "UTF8", "utf8"},
}

// refusedParams are libpq parameters that multipooler does not have, with what
// to do instead.
var refusedParams = map[string]string{
	"hostaddr":                 "give the address as the host",
	"passfile":                 "use password_file",
	"service":                  "write the settings out",
	"servicefile":              "write the settings out",
	"sslpassword":              "use a key file without a pass phrase",
	"sslcrl":                   "revocation lists are not read",
	"sslcrldir":                "revocation lists are not read",
	"requiressl":               "use sslmode=require",
	"requirepeer":              "not checked",
	"require_auth":             "not supported",
	"replication":              "a client asks for replication in its own startup packet",
	"keepalives":               "use tcp_keepalive",
	"keepalives_idle":          "use tcp_keepalive",
	"tcp_user_timeout":         "use server_check_period",
	"krbsrvname":               "GSSAPI is not supported",
	"gsslib":                   "GSSAPI is not supported",
	"gssdelegation":            "GSSAPI is not supported",
	"min_protocol_version":     "not supported",
	"max_protocol_version":     "not supported",
	"ssl_min_protocol_version": "TLS 1.2 is the least",
	"ssl_max_protocol_version": "not supported",
}

func parseQuery(t *Target, query string, decode func(what, s string) string) (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if query == "" {
		return nil
	}
	for i, pair := range strings.Split(query, "&") {
		rawKey, rawValue, found := strings.Cut(pair, "=")
		if !found || strings.IndexByte(rawValue, '=') >= 0 {
			bad("parameter %d is not of the form name=value (a '&' or '=' in a value is written %%26 or %%3D)", i+1)
			continue
		}
		key := decode(fmt.Sprintf("name of parameter %d", i+1), rawKey)
		value := decode("parameter", rawValue)
		oneOf := func(words ...string) string {
			if !slices.Contains(words, value) {
				bad("%s must be one of %s", key, strings.Join(words, ", "))
				return ""
			}
			return value
		}
		switch key {
		case "host":
			if value != "" {
				t.Host = value
			}
		case "port":
			if p, err := parsePort(value, 1); err != nil {
				errs = append(errs, err)
			} else {
				t.Port = p
			}
		case "user":
			t.User = value
		case "password":
			t.Password = Secret(value)
		case "dbname":
			t.Database = value
		case "ssl": // JDBC's spelling, which libpq accepts too
			if oneOf("true") != "" {
				t.TLS.Mode = TLSRequire
			}
		case "sslmode":
			t.TLS.Mode = TLSMode(oneOf("disable", "allow", "prefer", "require", "verify-ca", "verify-full"))
		case "sslnegotiation":
			t.TLS.Negotiation = Negotiation(oneOf("postgres", "direct"))
		case "sslrootcert":
			t.TLS.CA = value
		case "sslcert":
			t.TLS.Cert = value
		case "sslkey":
			t.TLS.Key = value
		case "channel_binding":
			t.ChannelBinding = oneOf("disable", "prefer", "require")
		case "connect_timeout":
			n, err := strconv.Atoi(value)
			if err != nil || n < 0 || n > 86400 {
				bad("connect_timeout must be a number of seconds from 0 to 86400")
				break
			}
			t.ConnectTimeout = time.Duration(n) * time.Second
		case "application_name", "fallback_application_name":
			if t.AppName == "" || key == "application_name" {
				t.AppName = value
			}
		case "options":
			t.Options = value
		default:
			if words, ok := ignoredParams[key]; ok {
				oneOf(words...)
			} else if why, ok := refusedParams[key]; ok {
				bad("the parameter %s is not supported: %s", key, why)
			} else {
				bad("parameter %d has an unknown name; known are host, port, user, password, dbname, sslmode, sslnegotiation, sslrootcert, sslcert, sslkey, channel_binding, connect_timeout, application_name, options", i+1)
			}
		}
	}
	return errs
}

// percentDecode undoes %XX and nothing else ('+' stays '+', as in libpq). A
// zero byte is refused, since a startup packet cannot carry one.
func percentDecode(s string) (string, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return "", errors.New("a zero byte is not possible")
	}
	if strings.IndexByte(s, '%') < 0 {
		return s, nil
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			out = append(out, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", errors.New("'%' must be followed by two hex digits; the sign itself is written %25")
		}
		b, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", errors.New("'%' must be followed by two hex digits; the sign itself is written %25")
		}
		if b == 0 {
			return "", errors.New("%00 is not possible")
		}
		out = append(out, byte(b))
		i += 2
	}
	return string(out), nil
}

// MaskURL is the URL with its password hidden, for logs and prints. What does
// not parse as a URL is hidden whole.
func MaskURL(raw string) string {
	rest, ok := cutScheme(raw)
	if !ok {
		if raw == "" {
			return ""
		}
		if name, ok := strings.CutPrefix(raw, envPrefix); ok && validEnvName(name) {
			return raw // a reference, not a secret
		}
		return mask
	}
	scheme := raw[:len(raw)-len(rest)]
	if _, err := ParseURL(raw); err != nil {
		return scheme + mask
	}
	var b strings.Builder
	b.WriteString(scheme)
	if at := strings.IndexByte(rest, '@'); at >= 0 {
		user, password, has := strings.Cut(rest[:at], ":")
		b.WriteString(user)
		if has {
			b.WriteByte(':')
		}
		if password != "" {
			b.WriteString(mask)
		}
		b.WriteByte('@')
		rest = rest[at+1:]
	}
	rest, query, has := strings.Cut(rest, "?")
	b.WriteString(rest)
	if !has {
		return b.String()
	}
	for i, pair := range strings.Split(query, "&") {
		b.WriteByte("?&"[min(i, 1)])
		key, value, _ := strings.Cut(pair, "=")
		if k, _ := percentDecode(key); k == "password" && value != "" {
			pair = key + "=" + mask
		}
		b.WriteString(pair)
	}
	return b.String()
}

// HasPassword says whether a URL (or what looks like an attempt at one, or a
// libpq connection string) carries a password that a process list must not
// show.
func HasPassword(s string) bool {
	if !isURL(s) {
		return strings.Contains(s, "password=")
	}
	t, err := ParseURL(s)
	return err != nil || t.Password != ""
}
