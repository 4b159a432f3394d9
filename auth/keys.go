package auth

import (
	"bytes"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"sync"
)

const (
	keyLen = sha256.Size
	// hmacBlock is SHA-256's block size, and the head-room that hmacInto needs.
	hmacBlock = sha256.BlockSize
	// defaultIterations is PostgreSQL's scram_iterations.
	defaultIterations = 4096
	// plainSaltLen is the salt length of PostgreSQL's verifiers.
	plainSaltLen = 16
)

// ProcessKey is the secret behind the salts that this process makes up: those of
// plain-text entries and those of users who do not exist. It makes both stable,
// so that asking twice tells nothing. Instances that should give the same salts
// need the same key; by default each process draws its own.
type ProcessKey struct{ key [keyLen]byte }

// NewProcessKey draws a key from random (crypto/rand when nil).
func NewProcessKey(random io.Reader) (*ProcessKey, error) {
	k := new(ProcessKey)
	if random == nil {
		random = rand.Reader
	}
	if _, err := io.ReadFull(random, k.key[:]); err != nil {
		return nil, fmt.Errorf("draw process key: %w", err)
	}
	return k, nil
}

// Format keeps the key out of every print-out.
func (k *ProcessKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, masked) }

// defaultKey panics only where crypto/rand does, which is never on Linux.
var defaultKey = sync.OnceValue(func() *ProcessKey {
	k, err := NewProcessKey(nil)
	if err != nil {
		panic("bug: " + err.Error())
	}
	return k
})

// salt appends n bytes that depend on the key and the user only.
func (k *ProcessKey) salt(dst []byte, user string, n int) []byte {
	var scratch [hmacBlock + 128]byte
	for i := byte(0); n > 0; i++ {
		buf := append(scratch[:hmacBlock], "multipooler scram salt"...)
		buf = append(buf, i)
		buf = append(buf, user...)
		block := hmacInto(k.key[:], buf)
		take := min(n, len(block))
		dst = append(dst, block[:take]...)
		n -= take
	}
	return dst
}

// serverKeys is what verifies a client: PostgreSQL's SCRAM secret. Immutable
// once shared.
type serverKeys struct {
	salt           []byte
	iterations     int
	stored, server [keyLen]byte
}

// clientKeys is what logs in at a server that uses this salt and count.
// Immutable once shared.
type clientKeys struct {
	salt           []byte
	iterations     int
	client, server [keyLen]byte
}

// serverKeysFor derives the keys of a plain-text entry for the salt, or returns
// those derived before. It runs PBKDF2 (0.5 to 1 ms at 4096
// iterations, BenchmarkPBKDF2): never call it on a loop. Concurrent callers share one derivation.
func (e *entry) serverKeysFor(salt []byte) *serverKeys {
	if k := e.cachedServerKeys(salt); k != nil {
		return k
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if k := e.cachedServerKeys(salt); k != nil {
		return k
	}
	client, server := deriveKeys(e.text, salt, defaultIterations)
	k := &serverKeys{salt: bytes.Clone(salt), iterations: defaultIterations, server: server}
	k.stored = sha256.Sum256(client[:])
	e.derived.Store(k)
	return k
}

func (e *entry) cachedServerKeys(salt []byte) *serverKeys {
	if k := e.derived.Load(); k != nil && bytes.Equal(k.salt, salt) {
		return k
	}
	return nil
}

// clientKeysFor is serverKeysFor for the other direction. One set is kept, that
// of the last server: a user has one salt per cluster.
func (e *entry) clientKeysFor(salt []byte, iterations int) *clientKeys {
	if k := e.login.Load(); k != nil && k.iterations == iterations && bytes.Equal(k.salt, salt) {
		return k
	}
	k := &clientKeys{salt: bytes.Clone(salt), iterations: iterations}
	k.client, k.server = deriveKeys(e.text, salt, iterations)
	e.login.Store(k)
	return k
}

// deriveKeys is RFC 5802's Hi and the two keys behind it.
func deriveKeys(password string, salt []byte, iterations int) (client, server [keyLen]byte) {
	salted, err := pbkdf2.Key(sha256.New, saslprep(password), salt, iterations, keyLen)
	if err != nil {
		panic("bug: pbkdf2: " + err.Error()) // only for lengths that we never ask for
	}
	var buf [hmacBlock + 16]byte
	client = hmacInto(salted, append(buf[:hmacBlock], "Client Key"...))
	server = hmacInto(salted, append(buf[:hmacBlock], "Server Key"...))
	return client, server
}

// hmacInto is HMAC-SHA-256 of padded[64:] without an allocation: padded begins
// with 64 bytes of scratch room. The key must not be longer than 64 bytes.
// crypto/hmac allocates two hash states per call, three calls per login.
func hmacInto(key, padded []byte) [keyLen]byte {
	const innerPad, outerPad = 0x36, 0x5c
	if len(key) > hmacBlock {
		panic("bug: HMAC key longer than a block")
	}
	fillPad(padded[:hmacBlock], key, innerPad)
	inner := sha256.Sum256(padded)
	var outer [hmacBlock + keyLen]byte
	fillPad(outer[:hmacBlock], key, outerPad)
	copy(outer[hmacBlock:], inner[:])
	return sha256.Sum256(outer[:])
}

func fillPad(dst, key []byte, pad byte) {
	n := copy(dst, key)
	clear(dst[n:])
	for i := range dst {
		dst[i] ^= pad
	}
}

// decodeBase64 is strict: no line breaks, no stray bits, padding required.
func decodeBase64(text []byte) ([]byte, bool) {
	if bytes.ContainsAny(text, "\r\n") { // which encoding/base64 would skip
		return nil, false
	}
	out, err := base64.StdEncoding.Strict().AppendDecode(nil, text)
	return out, err == nil
}

// decodeKey is decodeBase64 for exactly one key, without an allocation.
func decodeKey(dst *[keyLen]byte, text []byte) bool {
	var buf [keyLen + 4]byte
	if len(text) != base64.StdEncoding.EncodedLen(keyLen) {
		return false
	}
	n, err := base64.StdEncoding.Strict().Decode(buf[:], text)
	if err != nil || n != keyLen {
		return false
	}
	copy(dst[:], buf[:])
	return true
}
