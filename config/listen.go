package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	defaultListenPort = 6432
	defaultServerPort = 5432
	maxSocketPath     = 107 // sizeof(sun_path) - 1 on Linux
)

// Listener is one address to listen on.
type Listener struct {
	Dir  string // folder of a unix socket, "" for TCP
	Host string // "" = every address of the machine
	Port int    // TCP: 0 lets the system choose; unix: names the socket file
}

// Network is what to give net.Listen besides Address.
func (l Listener) Network() string {
	if l.Dir != "" {
		return "unix"
	}
	return "tcp"
}

// Address is host:port, or the path of the socket file: libpq finds
// DIR/.s.PGSQL.PORT from host=DIR port=PORT.
func (l Listener) Address() string {
	if l.Dir != "" {
		return socketPath(l.Dir, l.Port)
	}
	return net.JoinHostPort(l.Host, strconv.Itoa(l.Port))
}

func (l Listener) String() string { return l.Address() }

func socketPath(dir string, port int) string {
	return filepath.Join(dir, ".s.PGSQL."+strconv.Itoa(port))
}

// ParseListener reads host:port, [v6]:port, :port or *:port (every address),
// or a unix socket's folder: /run/mp or /run/mp:6432.
func ParseListener(s string) (Listener, error) {
	if strings.HasPrefix(s, "/") {
		dir, port := s, defaultListenPort
		if i := strings.LastIndexByte(s, ':'); i >= 0 {
			p, err := parsePort(s[i+1:], 1)
			if err != nil {
				return Listener{}, err
			}
			dir, port = s[:i], p
		}
		l := Listener{Dir: filepath.Clean(dir), Port: port}
		if n := len(l.Address()); n > maxSocketPath {
			return Listener{}, fmt.Errorf("the socket's path %s has %d bytes, the system allows %d", l.Address(), n, maxSocketPath)
		}
		return l, nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return Listener{}, errors.New("not an address: write host:port, [v6]:port, :port, or a unix socket's folder such as /run/multipooler")
	}
	p, err := parsePort(port, 0)
	if err != nil {
		return Listener{}, err
	}
	if host == "*" {
		host = ""
	}
	if strings.ContainsAny(host, "/ \t@") {
		return Listener{}, fmt.Errorf("%q is no host name and no address", host)
	}
	return Listener{Host: host, Port: p}, nil
}

func parsePort(s string, least int) (int, error) {
	p, err := strconv.Atoi(s)
	if err != nil || p < least || p > 65535 {
		return 0, fmt.Errorf("the port must be a number from %d to 65535", least)
	}
	return p, nil
}

// Listeners is Listen, parsed. Only a validated Config has no bad entries; they
// are left out here.
func (c *Config) Listeners() []Listener {
	var out []Listener
	for _, s := range c.Listen {
		if l, err := ParseListener(s); err == nil {
			out = append(out, l)
		}
	}
	return out
}
