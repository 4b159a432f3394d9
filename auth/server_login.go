package auth

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
)

// Bounds on what a server may send during a login; PostgreSQL stays below 200
// bytes, and libpq takes at most 2000.
const (
	maxServerAuth  = 2000
	maxMechanisms  = 32
	maxServerNonce = 512
	// MaxIterations caps the PBKDF2 that a server can make us run. It is three
	// times OWASP's recommendation for PBKDF2-HMAC-SHA256 (600,000), about half
	// a second of CPU (BenchmarkPBKDF2): more would not fit the login timeouts of
	// many connections, and a hostile server could otherwise ask for minutes.
	MaxIterations = 2_000_000
)

// ChannelBinding is libpq's channel_binding parameter.
type ChannelBinding uint8

const (
	BindingPrefer ChannelBinding = iota
	BindingDisable
	BindingRequire
)

// ServerLoginOptions is what the connection brings along. The zero value is
// libpq's behaviour on a plain connection.
type ServerLoginOptions struct {
	// EndPoint is the tls-server-end-point hash (certs.EndPoint) of the server's
	// certificate; nil without TLS and where the hash is undefined.
	EndPoint []byte
	Binding  ChannelBinding
	// RefuseCleartext makes a server's request for the bare password an error.
	// libpq sends it, over an unencrypted connection too; so does the zero value.
	// Set it where the connection is neither TLS nor a unix socket if that is
	// not wanted.
	RefuseCleartext bool
	// Random is for tests; nil is crypto/rand.
	Random io.Reader
}

// ServerLogin is the client's side of a login at a PostgreSQL server. Not safe
// for concurrent use. Step may run PBKDF2 (see MaxIterations): it belongs in the
// goroutine that dials, not on a loop.
type ServerLogin struct {
	user   string
	secret Secret
	opts   ServerLoginOptions
	state  loginState
	method string
	scram  scramClient
}

type loginState uint8

const (
	loginStart        loginState = iota
	loginPasswordSent            // AuthenticationOk is next
	loginFirstSent               // AuthenticationSASLContinue is next
	loginFinalSent               // AuthenticationSASLFinal is next
	loginVerified                // AuthenticationOk is next
	loginEnded
)

// NewServerLogin begins a login as user.
func NewServerLogin(user string, secret Secret, opts ServerLoginOptions) *ServerLogin {
	if opts.Random == nil {
		opts.Random = rand.Reader
	}
	return &ServerLogin{user: user, secret: secret, opts: opts, method: "trust"}
}

// Step takes an Authentication message: its code and the body after the code. The
// reply is one complete 'p' message or nil; done says that the server has let us
// in. After an error or done it must not be called again. The body is not kept.
func (l *ServerLogin) Step(authType uint32, body []byte) (reply []byte, done bool, err error) {
	if l.state == loginEnded {
		panic("bug: ServerLogin.Step after the end")
	}
	reply, done, e := l.step(authType, body)
	if e != nil {
		l.state = loginEnded
		return nil, false, e // not "return …, e" with a nil *Error inside error
	}
	return reply, done, nil
}

func (l *ServerLogin) step(authType uint32, body []byte) (reply []byte, done bool, err *Error) {
	if len(body) > maxServerAuth {
		return nil, false, violation("server sent an oversized authentication message", fmt.Sprintf("It has %d bytes, more than %d.", len(body), maxServerAuth))
	}
	switch authType {
	case authOK:
		if err := l.acceptOK(); err != nil {
			return nil, false, err
		}
		l.state = loginEnded
		return nil, true, nil
	case authCleartext, authMD5, authSASL:
		if l.state != loginStart {
			return nil, false, violation("server asks for authentication a second time", "")
		}
		reply, err = l.prove(authType, body)
	case authSASLContinue:
		if l.state != loginFirstSent {
			return nil, false, violation("server continues a SASL exchange that is not under way", "")
		}
		l.state = loginFinalSent
		reply, err = l.scram.final(l.secret, body)
	case authSASLFinal:
		if l.state != loginFinalSent {
			return nil, false, violation("server ends a SASL exchange that is not at its end", "")
		}
		l.state = loginVerified
		err = l.scram.verify(body)
	case authKerberosV5, authSCM, authGSS, authGSSContinue, authSSPI:
		err = l.unsupported(map[uint32]string{
			authKerberosV5: "Kerberos V5", authSCM: "SCM credential", authGSS: "GSSAPI", authGSSContinue: "GSSAPI", authSSPI: "SSPI",
		}[authType])
	default:
		err = l.unsupported(fmt.Sprintf("type %d", authType))
	}
	return reply, false, err
}

// Method names what the server asked for, for the log: trust, password, md5,
// scram-sha-256 or scram-sha-256-plus. Trust may as well be a certificate.
func (l *ServerLogin) Method() string { return l.method }

// Format keeps nonces and keys out of every print-out.
func (l *ServerLogin) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "server login of %q by %s", l.user, l.method)
}

// acceptOK refuses an AuthenticationOk that would skip what it must follow: a
// server that did not prove to know the secret is not the server.
func (l *ServerLogin) acceptOK() *Error {
	switch l.state {
	case loginFirstSent, loginFinalSent:
		return violation("server ended SCRAM authentication before proving its identity", "")
	case loginStart, loginPasswordSent:
		return l.needBinding()
	}
	return nil
}

func (l *ServerLogin) needBinding() *Error {
	if l.opts.Binding == BindingRequire {
		return &Error{Code: codeInvalidAuthorization, Message: "channel binding is required, but the server authenticates without it"}
	}
	return nil
}

func (l *ServerLogin) unsupported(what string) *Error {
	return &Error{
		Code:    codeFeatureNotSupported,
		Message: what + " authentication, which the server asks for, is not supported",
		Detail:  fmt.Sprintf("Let the server's pg_hba.conf offer scram-sha-256, md5, password, cert or trust to user %q.", l.user),
	}
}

// cannot is the answer when the secret at hand does not fit the request.
func (l *ServerLogin) cannot(method, why string) *Error {
	return &Error{
		Code:    codeInvalidAuthorization,
		Message: fmt.Sprintf("cannot log in to the server as user %q by %s", l.user, method),
		Detail:  why,
	}
}

func (l *ServerLogin) prove(authType uint32, body []byte) ([]byte, *Error) {
	if l.secret.Kind() == KindNone && authType != authSASL {
		return nil, l.cannot(map[uint32]string{authCleartext: "password", authMD5: "md5"}[authType], "The server asks for a password, and none is known for the user.")
	}
	switch authType {
	case authCleartext:
		l.method = "password"
		if err := l.needBinding(); err != nil {
			return nil, err
		}
		return l.cleartext()
	case authMD5:
		l.method = "md5"
		if err := l.needBinding(); err != nil {
			return nil, err
		}
		return l.md5(body)
	}
	return l.sasl(body)
}

func (l *ServerLogin) cleartext() ([]byte, *Error) {
	switch {
	case l.secret.e.kind != KindPlain:
		return nil, l.cannot(l.method, fmt.Sprintf("The server asks for the bare password, and only a %s secret is known.", l.secret.Kind()))
	case l.opts.RefuseCleartext:
		return nil, l.cannot(l.method, "The server asks for the bare password over a connection that is not encrypted.")
	}
	l.state = loginPasswordSent
	return appendPassword(nil, l.secret.e.text), nil
}

func (l *ServerLogin) md5(body []byte) ([]byte, *Error) {
	const saltLen = 4
	if len(body) != saltLen {
		return nil, violation("server sent a malformed MD5 request", fmt.Sprintf("The salt has %d bytes, not %d.", len(body), saltLen))
	}
	var hash string
	switch l.secret.e.kind {
	case KindPlain:
		hash = md5Hex(l.secret.e.text, l.user)
	case KindMD5:
		hash = l.secret.e.text[len("md5"):]
	default:
		return nil, l.cannot(l.method, "Only SCRAM keys are known, which an MD5 login cannot use.")
	}
	l.state = loginPasswordSent
	return appendPassword(nil, "md5"+md5Hex(hash, string(body))), nil
}

func (l *ServerLogin) sasl(body []byte) ([]byte, *Error) {
	plain, plus, err := readMechanisms(body)
	if err != nil {
		return nil, err
	}
	bind := l.opts.EndPoint != nil && l.opts.Binding != BindingDisable
	l.method = "scram-sha-256"
	switch {
	case plus && bind:
		l.method, l.scram.flag, l.scram.endPoint = "scram-sha-256-plus", 'p', l.opts.EndPoint
	case l.opts.Binding == BindingRequire && plus:
		return nil, l.cannot(l.method, "Channel binding is required, but the connection has none to offer (no TLS, or a certificate without a usable hash).")
	case l.opts.Binding == BindingRequire:
		return nil, l.cannot(l.method, "Channel binding is required, but the server does not offer SCRAM-SHA-256-PLUS.")
	case !plain:
		return nil, &Error{
			Code: codeFeatureNotSupported, Message: "none of the server's SASL authentication mechanisms is supported",
			Detail: "Supported are SCRAM-SHA-256 and, over TLS, SCRAM-SHA-256-PLUS.",
		}
	case bind:
		// We could bind and the server, it seems, cannot. If it can, somebody cut
		// PLUS from its list, and this lets the server notice.
		l.scram.flag = 'y'
	default:
		l.scram.flag = 'n'
	}
	switch l.secret.Kind() {
	case KindNone:
		return nil, l.cannot(l.method, "The server asks for a password, and none is known for the user.")
	case KindMD5:
		return nil, l.cannot(l.method, "Only an md5 secret is known, which a SCRAM login cannot use; store the password.")
	case KindSCRAM:
		return nil, l.cannot(l.method, "Only a SCRAM verifier is known, which can check logins but not log in; store the password.")
	}
	mechanism := mechSCRAM
	if l.scram.flag == 'p' {
		mechanism = mechSCRAMPlus
	}
	first, ioErr := l.scram.first(l.opts.Random)
	if ioErr != nil {
		return nil, &Error{Code: "XX000", Message: "could not generate nonce", Reason: ioErr.Error()}
	}
	l.state = loginFirstSent
	out := append([]byte{'p', 0, 0, 0, 0}, mechanism...)
	out = append(out, 0)
	out = binary.BigEndian.AppendUint32(out, uint32(len(first)))
	return endAuth(append(out, first...), 1), nil
}

// readMechanisms reads the list of AuthenticationSASL: strings, then an empty one.
func readMechanisms(body []byte) (plain, plus bool, err *Error) {
	bad := func(detail string) (bool, bool, *Error) {
		return false, false, violation("server sent a malformed list of SASL mechanisms", detail)
	}
	for n := 0; ; n++ {
		name, rest, ok := bytes.Cut(body, []byte{0})
		switch {
		case !ok:
			return bad("The list does not end.")
		case n > maxMechanisms:
			return bad(fmt.Sprintf("It has more than %d.", maxMechanisms))
		case len(name) == 0 && len(rest) > 0:
			return bad("There is text behind the list.")
		case len(name) == 0 && n == 0:
			return bad("The list is empty.")
		case len(name) == 0:
			return plain, plus, nil
		}
		plain = plain || string(name) == mechSCRAM
		plus = plus || string(name) == mechSCRAMPlus
		body = rest
	}
}

// appendPassword appends a PasswordMessage.
func appendPassword(dst []byte, text string) []byte {
	dst = append(dst, 'p')
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = append(dst, text...)
	return endAuth(append(dst, 0), at)
}
