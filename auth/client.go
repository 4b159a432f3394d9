package auth

import (
	"bytes"
	"crypto/md5"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
)

// Method is how clients prove who they are.
type Method uint8

const (
	MethodTrust Method = iota // believed; whether the user exists is the server's to say
	MethodMD5                 // md5, or SCRAM where the entry is a verifier, as in PostgreSQL
	MethodSCRAM               // SCRAM-SHA-256, with channel binding where TLS permits
	MethodCert                // the common name of a verified client certificate is the user
)

var methodNames = [...]string{"trust", "md5", "scram-sha-256", "cert"}

func (m Method) String() string { return methodNames[m] }

// ParseMethod is the inverse of String.
func ParseMethod(s string) (Method, error) {
	for i, name := range methodNames {
		if s == name {
			return Method(i), nil
		}
	}
	return 0, fmt.Errorf("unknown authentication method %q: want trust, md5, scram-sha-256 or cert", s)
}

// Authentication request codes (PostgreSQL's protocol.h).
const (
	authOK           = 0
	authKerberosV5   = 2
	authCleartext    = 3
	authMD5          = 5
	authSCM          = 6
	authGSS          = 7
	authGSSContinue  = 8
	authSSPI         = 9
	authSASL         = 10
	authSASLContinue = 11
	authSASLFinal    = 12
)

// MaxMessage is the longest body of a 'p' message that Message can use; whoever
// frames the messages should refuse longer ones before buffering them.
const MaxMessage = maxSASL

// Step is what the conversation needs next.
type Step uint8

const (
	NeedMessage Step = iota // the client's next 'p' message: call Message
	NeedWork                // CPU time: call Work off the loop, then Resume on it
	Done                    // the client is who it says; AuthenticationOk is in the output
	Failed                  // see Err; the caller reports it and ends the connection
)

func (s Step) String() string { return [...]string{"NeedMessage", "NeedWork", "Done", "Failed"}[s] }

// ClientAuthOptions is what the connection brings along. The zero value is a
// plain connection.
type ClientAuthOptions struct {
	// EndPoint is the tls-server-end-point hash (certs.EndPoint) of the
	// certificate that we showed this client. With it SCRAM-SHA-256-PLUS is
	// offered. nil without TLS, and where the hash is undefined (Ed25519).
	EndPoint []byte
	// CertName is the common name of the client's verified certificate
	// (certs.CommonName), "" without one. CertVerified tells a certificate without
	// a name from none.
	CertName     string
	CertVerified bool
	// RequireCertName makes CertName == user a condition of every method, like
	// PostgreSQL's clientcert=verify-full.
	RequireCertName bool
	// Mock is how users who do not exist should look: Userlist.Mock.
	Mock Mock
	// Key makes the salts; nil is a key of the process.
	// One process uses one key: the keys derived from passwords hang on it.
	Key *ProcessKey
	// Random is for tests; nil is crypto/rand.
	Random io.Reader
}

// ClientAuth is the server's side of one client's login. Not safe for concurrent
// use, but it may be handed from goroutine to goroutine. The order of calls is
// Start, then what each Step asks for; anything else is a bug and panics. Output
// is appended to dst as complete protocol messages; a Failed step leaves dst as
// it was, the ErrorResponse is the caller's to build from Err.
type ClientAuth struct {
	method  Method
	user    string
	secret  Secret
	opts    ClientAuthOptions
	state   clientState
	err     *Error
	doomed  string // why no proof can help; "" when one can
	cold    *namedEntry
	keys    *serverKeys // nil until Work for a plain-text entry
	shown   serverKeys  // salt and count that go to the client; keys all zero
	salt    [plainSaltLen]byte
	md5Salt [4]byte
	scram   scramServer
}

type clientState uint8

const (
	stateNew clientState = iota
	stateMD5
	stateSASLInitial // expecting SASLInitialResponse
	stateSASLFirst   // expecting the client-first-message that it lacked
	stateSASLFinal
	stateWork   // Work is due
	stateWorked // Resume is due
	stateEnded
)

// NewClientAuth begins the login of user. It looks the secret up at once.
func NewClientAuth(method Method, user string, secrets Lookuper, opts ClientAuthOptions) *ClientAuth {
	c := &ClientAuth{method: method, user: user, opts: opts}
	if c.opts.Key == nil {
		c.opts.Key = defaultKey()
	}
	if c.opts.Random == nil {
		c.opts.Random = rand.Reader
	}
	if method == MethodMD5 || method == MethodSCRAM {
		c.lookup(secrets)
	}
	return c
}

// lookup decides how the exchange will look and whether it can succeed. Reasons
// follow PostgreSQL's log lines.
func (c *ClientAuth) lookup(secrets Lookuper) {
	var found bool
	if secrets != nil {
		c.secret, found = secrets.Lookup(c.user)
	}
	if c.method == MethodMD5 {
		switch k := c.secret.Kind(); {
		case k == KindSCRAM || k == KindKeys, k == KindNone && c.opts.Mock.SCRAM:
			c.method = MethodSCRAM
		}
	}
	switch k := c.secret.Kind(); {
	case !found:
		c.doomed = fmt.Sprintf("user %q does not exist", c.user)
	case k == KindNone:
		c.doomed = fmt.Sprintf("user %q has no password assigned", c.user)
	case k == KindMD5 && c.method == MethodSCRAM:
		c.doomed = fmt.Sprintf("user %q has an md5 secret, which scram-sha-256 cannot use: store the password or a SCRAM verifier, or use method md5", c.user)
	}
	if c.method != MethodSCRAM {
		return
	}
	// The made-up salt is computed for everyone, so that it costs everyone.
	c.shown.iterations = c.opts.Mock.Iterations
	if c.shown.iterations == 0 {
		c.shown.iterations = defaultIterations
	}
	n := c.opts.Mock.SaltLen
	if n == 0 {
		n = plainSaltLen
	}
	c.shown.salt = c.opts.Key.salt(c.salt[:0], c.user, n)
	switch {
	case c.doomed != "":
		c.keys = &c.shown
		if l, ok := secrets.(*Userlist); ok {
			if c.cold = l.coldEntry(); c.cold != nil {
				c.keys = nil
			}
		}
	case c.secret.Kind() == KindPlain:
		if n != plainSaltLen {
			c.shown.salt = c.opts.Key.salt(c.salt[:0], c.user, plainSaltLen)
		}
		c.shown.iterations = defaultIterations
		c.keys = c.secret.e.cachedServerKeys(c.shown.salt)
	default:
		c.keys = c.secret.e.verifier
		c.shown.salt, c.shown.iterations = c.keys.salt, c.keys.iterations
	}
}

// Start appends the first request, or the verdict where none is needed.
func (c *ClientAuth) Start(dst []byte) ([]byte, Step) {
	c.expect(stateNew)
	switch c.method {
	case MethodTrust:
		return c.succeed(dst)
	case MethodCert:
		if !c.opts.CertVerified && c.opts.CertName == "" {
			return c.fail(dst, &Error{Code: codeInvalidAuthorization, Message: "connection requires a valid client certificate"})
		}
		return c.succeed(dst)
	case MethodMD5:
		if _, err := io.ReadFull(c.opts.Random, c.md5Salt[:]); err != nil {
			return c.fail(dst, &Error{Code: "XX000", Message: "could not generate random MD5 salt", Reason: err.Error()})
		}
		c.state = stateMD5
		return appendAuth(dst, authMD5, c.md5Salt[:]), NeedMessage
	}
	c.scram.offeredPlus, c.scram.endPoint = c.opts.EndPoint != nil, c.opts.EndPoint
	c.state = stateSASLInitial
	offer := mechSCRAM + "\x00\x00"
	if c.scram.offeredPlus {
		offer = mechSCRAMPlus + "\x00" + offer
	}
	return appendAuth(dst, authSASL, offer), NeedMessage
}

// Message takes the body of the client's 'p' message. It keeps nothing of it.
func (c *ClientAuth) Message(dst, body []byte) ([]byte, Step) {
	if len(body) > MaxMessage {
		return c.fail(dst, violation("invalid message length", fmt.Sprintf("An authentication message has %d bytes, more than %d.", len(body), MaxMessage)))
	}
	switch c.state {
	case stateMD5:
		return c.checkMD5(dst, body)
	case stateSASLInitial:
		return c.saslInitial(dst, body)
	case stateSASLFirst:
		return c.saslFirst(dst, body)
	case stateSASLFinal:
		if err := c.scram.final(body); err != nil {
			return c.fail(dst, err)
		}
		if c.keys == nil {
			c.state = stateWork
			return dst, NeedWork
		}
		return c.verify(dst)
	}
	panic("bug: ClientAuth.Message when none was asked for")
}

// Unexpected ends the login because a message of another type came.
func (c *ClientAuth) Unexpected(messageType byte) *Error {
	what := "SASL"
	if c.state == stateMD5 {
		what = "password"
	}
	c.fail(nil, violation(fmt.Sprintf("expected %s response, got message type %d", what, messageType), ""))
	return c.err
}

// Work runs the PBKDF2 that NeedWork announced, up to a millisecond. It must
// not run on a loop.
func (c *ClientAuth) Work() {
	c.expect(stateWork)
	c.state = stateWorked
	if c.cold != nil {
		c.cold.e.serverKeysFor(c.opts.Key.salt(nil, c.cold.user, plainSaltLen))
		c.keys = &c.shown
		return
	}
	c.keys = c.secret.e.serverKeysFor(c.shown.salt)
}

// Resume goes on after Work.
func (c *ClientAuth) Resume(dst []byte) ([]byte, Step) {
	c.expect(stateWorked)
	return c.verify(dst)
}

// Err is why the login failed, nil unless it did.
func (c *ClientAuth) Err() *Error { return c.err }

// ClientKey is the SCRAM key that the client proved to know, for logins at a
// server that has the same verifier. False unless a SCRAM login is done.
func (c *ClientAuth) ClientKey() (key [keyLen]byte, ok bool) {
	if c.state != stateEnded || c.err != nil || c.method != MethodSCRAM {
		return key, false
	}
	return c.scram.clientKey, true
}

// PassThrough is ClientKey as a Secret that ServerLogin can use where the server
// stores the verifier that this login was checked against.
func (c *ClientAuth) PassThrough() (Secret, bool) {
	key, ok := c.ClientKey()
	if !ok {
		return Secret{}, false
	}
	return Secret{&entry{kind: KindKeys, verifier: c.keys, clientKey: key}}, true
}

// ChannelBound reports whether the login was bound to the TLS connection.
func (c *ClientAuth) ChannelBound() bool {
	return c.state == stateEnded && c.err == nil && c.scram.plus
}

// Format keeps salts, proofs and keys out of every print-out.
func (c *ClientAuth) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "login of %q by %s", c.user, c.method)
}

func (c *ClientAuth) expect(s clientState) {
	if c.state != s {
		panic(fmt.Sprintf("bug: ClientAuth in state %d, not %d", c.state, s))
	}
}

func (c *ClientAuth) fail(dst []byte, err *Error) ([]byte, Step) {
	c.state, c.err = stateEnded, err
	return dst, Failed
}

// refuse is fail with the one message that tells a client nothing.
func (c *ClientAuth) refuse(dst []byte, reason string) ([]byte, Step) {
	if c.method == MethodCert || c.method == MethodTrust {
		return c.fail(dst, &Error{
			Code: codeInvalidAuthorization, Reason: reason,
			Message: fmt.Sprintf("%s authentication failed for user \"%s\"", methodWord(c.method), c.user),
		})
	}
	return c.fail(dst, &Error{
		Code: codeInvalidPassword, Reason: reason,
		Message: fmt.Sprintf("password authentication failed for user \"%s\"", c.user),
	})
}

// methodWord is PostgreSQL's word in auth_failed.
func methodWord(m Method) string {
	if m == MethodTrust {
		return "\"trust\""
	}
	return "certificate"
}

// succeed checks what every method shares and appends AuthenticationOk. Anything
// already appended for this step is taken back on failure.
func (c *ClientAuth) succeed(dst []byte) ([]byte, Step) {
	if c.method == MethodCert || c.opts.RequireCertName {
		switch {
		case c.opts.CertName == "":
			return c.refuse(dst, "client certificate contains no user name")
		case c.opts.CertName != c.user:
			return c.refuse(dst, fmt.Sprintf("provided user name (%s) and authenticated user name (%s) do not match", c.user, c.opts.CertName))
		}
	}
	c.state = stateEnded
	return appendAuth(dst, authOK, ""), Done
}

func (c *ClientAuth) checkMD5(dst, body []byte) ([]byte, Step) {
	password, ok := bytes.CutSuffix(body, []byte{0})
	switch {
	case !ok || bytes.IndexByte(password, 0) >= 0:
		return c.fail(dst, violation("invalid password packet size", ""))
	case len(password) == 0:
		return c.fail(dst, &Error{Code: codeInvalidPassword, Message: "empty password returned by client"})
	}
	var hash string
	switch {
	case c.doomed != "":
		hash = "md5" + md5Hex("", c.user) // the same work as for the others
	case c.secret.e.kind == KindMD5:
		hash = c.secret.e.text
	default:
		hash = "md5" + md5Hex(c.secret.e.text, c.user)
	}
	want := "md5" + md5Hex(hash[len("md5"):], string(c.md5Salt[:]))
	fits := subtle.ConstantTimeCompare(password, []byte(want)) == 1
	switch {
	case c.doomed != "":
		return c.refuse(dst, c.doomed)
	case !fits:
		return c.refuse(dst, c.wrongPassword())
	}
	return c.succeed(dst)
}

func (c *ClientAuth) wrongPassword() string {
	return fmt.Sprintf("password does not match for user %q", c.user)
}

// saslInitial reads SASLInitialResponse: mechanism, length, message.
func (c *ClientAuth) saslInitial(dst, body []byte) ([]byte, Step) {
	mechanism, rest, ok := bytes.Cut(body, []byte{0})
	if !ok {
		return c.fail(dst, violation("invalid string in message", ""))
	}
	switch string(mechanism) {
	case mechSCRAM:
	case mechSCRAMPlus:
		c.scram.plus = c.scram.offeredPlus
		if c.scram.plus {
			break
		}
		fallthrough
	default:
		return c.fail(dst, violation("client selected an invalid SASL authentication mechanism", ""))
	}
	if len(rest) < 4 {
		return c.fail(dst, violation("insufficient data left in message", ""))
	}
	size, rest := int32(binary.BigEndian.Uint32(rest)), rest[4:]
	switch {
	case size == -1 && len(rest) == 0: // no initial response: an empty challenge asks for it
		c.state = stateSASLFirst
		return appendAuth(dst, authSASLContinue, ""), NeedMessage
	case size < 0 || int(size) > len(rest):
		return c.fail(dst, violation("insufficient data left in message", ""))
	case int(size) < len(rest):
		return c.fail(dst, violation("invalid message format", ""))
	}
	return c.saslFirst(dst, rest)
}

func (c *ClientAuth) saslFirst(dst, msg []byte) ([]byte, Step) {
	out, at := beginAuth(dst, authSASLContinue)
	out, err := c.scram.first(out, msg, c.shown.salt, c.shown.iterations, c.opts.Random)
	if err != nil {
		return c.fail(dst, err)
	}
	c.state = stateSASLFinal
	return endAuth(out, at), NeedMessage
}

func (c *ClientAuth) verify(dst []byte) ([]byte, Step) {
	out, at := beginAuth(dst, authSASLFinal)
	out, fits := c.scram.verify(out, c.keys)
	switch {
	case c.doomed != "":
		return c.refuse(dst, c.doomed)
	case !fits:
		return c.refuse(dst, c.wrongPassword())
	}
	out, step := c.succeed(endAuth(out, at))
	if step == Failed {
		return dst, step
	}
	return out, step
}

func md5Hex(a, b string) string {
	sum := md5.Sum([]byte(a + b))
	return hex.EncodeToString(sum[:])
}

func appendAuth[T string | []byte](dst []byte, code uint32, payload T) []byte {
	dst, at := beginAuth(dst, code)
	return endAuth(append(dst, payload...), at)
}

// beginAuth appends an 'R' message up to its code; endAuth patches its length in.
func beginAuth(dst []byte, code uint32) (out []byte, at int) {
	dst = append(dst, 'R')
	at = len(dst)
	dst = append(dst, 0, 0, 0, 0)
	return binary.BigEndian.AppendUint32(dst, code), at
}

func endAuth(dst []byte, at int) []byte {
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at))
	return dst
}
