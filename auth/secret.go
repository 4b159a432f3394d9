package auth

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
)

// Bounds on what a secret may contain.
const (
	// maxPassword admits cloud providers' signed tokens (about 2 KiB).
	maxPassword = 4 << 10
	// maxSalt is 16 times what PostgreSQL writes.
	maxSalt = 256
	// maxVerifierIterations is PostgreSQL's bound on scram_iterations. A
	// verifier's count costs us nothing: the client does the work.
	maxVerifierIterations = 1<<31 - 1
)

const masked = "********"

// Kind says what a Secret holds, and so what it is good for.
type Kind uint8

const (
	KindNone  Kind = iota // no password: every password login fails
	KindPlain             // the password itself
	KindMD5               // md5(password || user) as PostgreSQL stores it
	KindSCRAM             // a SCRAM-SHA-256 verifier: checks logins, cannot log in
	KindKeys              // SCRAM keys recovered from a client's login: can do both
)

func (k Kind) String() string {
	switch k {
	case KindNone:
		return "none"
	case KindPlain:
		return "plain"
	case KindMD5:
		return "md5"
	case KindSCRAM:
		return "scram-sha-256"
	case KindKeys:
		return "scram-sha-256 keys"
	}
	panic("bug: unknown auth.Kind " + strconv.Itoa(int(k)))
}

// Secret is what is known of one user's password. It is a small value that may
// be copied and used from any goroutine; copies share the keys derived from it,
// so that PBKDF2 runs once per secret and not once per login. The zero Secret is
// KindNone. It prints as a mask under every verb and encoder.
type Secret struct{ e *entry }

// entry is immutable but for its caches.
//
//	field    written by                      read by
//	derived  serverKeysFor, under mu         any login; a stale salt is ignored
//	login    clientKeysFor                   any server login; last writer wins
type entry struct {
	kind      Kind
	text      string       // KindPlain: the password; KindMD5: "md5" and 32 hex digits
	verifier  *serverKeys  // KindSCRAM, KindKeys
	clientKey [keyLen]byte // KindKeys
	mu        sync.Mutex   // single flight for the PBKDF2 behind derived; never held on a loop
	derived   atomic.Pointer[serverKeys]
	login     atomic.Pointer[clientKeys]
}

// PlainSecret is the Secret of a known password. It refuses what no client can
// send: NUL bytes and more than 4096 bytes. The empty password is KindNone.
func PlainSecret(password string) (Secret, error) {
	switch {
	case password == "":
		return Secret{}, nil
	case len(password) > maxPassword:
		return Secret{}, fmt.Errorf("password has %d bytes, more than %d", len(password), maxPassword)
	case strings.IndexByte(password, 0) >= 0:
		return Secret{}, errors.New("password contains a NUL byte")
	}
	return Secret{&entry{kind: KindPlain, text: password}}, nil
}

// ParseSecret reads a secret in any form that PostgreSQL's pg_authid or a
// userlist.txt can hold. As in PostgreSQL "md5" with anything but 32 lower-case
// hex digits behind it is a password; unlike there, text that starts as a SCRAM
// verifier must be one, since it is surely a damaged one otherwise. Errors do
// not quote the text.
func ParseSecret(text string) (Secret, error) {
	if isMD5(text) {
		return Secret{&entry{kind: KindMD5, text: text}}, nil
	}
	if rest, ok := strings.CutPrefix(text, mechSCRAM+"$"); ok {
		v, err := parseVerifier(rest)
		if err != nil {
			return Secret{}, err
		}
		return Secret{&entry{kind: KindSCRAM, verifier: v}}, nil
	}
	return PlainSecret(text)
}

// Kind says what the secret is good for; it is not confidential.
func (s Secret) Kind() Kind {
	if s.e == nil {
		return KindNone
	}
	return s.e.kind
}

func (s Secret) String() string               { return masked }
func (s Secret) GoString() string             { return masked }
func (s Secret) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, masked) }
func (s Secret) MarshalText() ([]byte, error) { return []byte(masked), nil }
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + masked + `"`), nil }

// MarshalLogObject tells the kind only.
func (s Secret) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("kind", s.Kind().String())
	return nil
}

// same reports whether both were made from the same text. It compares for
// reloads, not for logins, and so need not be constant-time.
func (s Secret) same(o Secret) bool {
	if s.Kind() != o.Kind() {
		return false
	}
	switch s.Kind() {
	case KindNone:
		return true
	case KindPlain, KindMD5:
		return s.e.text == o.e.text
	}
	a, b := s.e.verifier, o.e.verifier
	return a.iterations == b.iterations && string(a.salt) == string(b.salt) &&
		a.stored == b.stored && a.server == b.server && s.e.clientKey == o.e.clientKey
}

func isMD5(text string) bool {
	const hexDigits = 32
	rest, ok := strings.CutPrefix(text, "md5")
	return ok && len(rest) == hexDigits && strings.Trim(rest, "0123456789abcdef") == ""
}

// parseVerifier reads "<iterations>:<salt>$<StoredKey>:<ServerKey>", all but the
// count in base64 (PostgreSQL's scram-common.c).
func parseVerifier(text string) (*serverKeys, error) {
	head, keys, ok1 := strings.Cut(text, "$")
	count, salt, ok2 := strings.Cut(head, ":")
	stored, server, ok3 := strings.Cut(keys, ":")
	if !ok1 || !ok2 || !ok3 {
		return nil, errors.New("malformed SCRAM-SHA-256 secret: want SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>")
	}
	v := new(serverKeys)
	n, err := strconv.ParseUint(count, 10, 31)
	if err != nil || n == 0 {
		return nil, fmt.Errorf("malformed SCRAM-SHA-256 secret: the iteration count is not a number from 1 to %d", maxVerifierIterations)
	}
	v.iterations = int(n)
	if len(salt) > base64.StdEncoding.EncodedLen(maxSalt) {
		return nil, fmt.Errorf("malformed SCRAM-SHA-256 secret: the salt is longer than %d bytes", maxSalt)
	}
	if v.salt, ok1 = decodeBase64([]byte(salt)); !ok1 || len(v.salt) == 0 || len(v.salt) > maxSalt {
		return nil, fmt.Errorf("malformed SCRAM-SHA-256 secret: the salt is not base64 of 1 to %d bytes", maxSalt)
	}
	if !decodeKey(&v.stored, []byte(stored)) {
		return nil, fmt.Errorf("malformed SCRAM-SHA-256 secret: StoredKey is not base64 of %d bytes", keyLen)
	}
	if !decodeKey(&v.server, []byte(server)) {
		return nil, fmt.Errorf("malformed SCRAM-SHA-256 secret: ServerKey is not base64 of %d bytes", keyLen)
	}
	return v, nil
}
