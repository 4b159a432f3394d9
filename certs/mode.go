package certs

import (
	"fmt"
	"strings"
)

// Mode is PostgreSQL's sslmode, as PgBouncer uses it for both sides.
//
//	            clients (Frontend)                       servers (Backend)
//	disable     no TLS                                   no TLS
//	allow       TLS when the client asks                 plain first, TLS when refused
//	prefer      as allow                                 TLS first, plain when refused
//	require     TLS or nothing                           TLS or nothing; verify-ca when a CA is given (as libpq)
//	verify-ca   and a certificate that our CA signed     and the server's certificate chains to the CA
//	verify-full and its common name is the user          and it is for the host
//
// What comes first and what follows a refusal is the caller's to do; see Offers,
// Requires and Names.
type Mode uint8

const (
	Disable Mode = iota
	Allow
	Prefer
	Require
	VerifyCA
	VerifyFull
)

var modeNames = [...]string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}

func (m Mode) String() string { return modeNames[m] }

// ParseMode is the inverse of String.
func ParseMode(s string) (Mode, error) {
	for i, name := range modeNames {
		if s == name {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("unknown TLS mode %q: want %s", s, strings.Join(modeNames[:], ", "))
}

// Offers reports whether TLS is possible at all.
func (m Mode) Offers() bool { return m != Disable }

// Requires reports whether a connection without TLS must be refused.
func (m Mode) Requires() bool { return m >= Require }

// Names reports whether the peer's certificate must carry the peer's name: the
// user of a client (auth's RequireCertName), the host of a server.
func (m Mode) Names() bool { return m == VerifyFull }
