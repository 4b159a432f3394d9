package auth

import (
	"encoding/base64"
	"fmt"
	"io"
)

const (
	mechSCRAM     = "SCRAM-SHA-256"
	mechSCRAMPlus = "SCRAM-SHA-256-PLUS"
	bindingType   = "tls-server-end-point"

	// nonceRaw is PostgreSQL's SCRAM_RAW_NONCE_LEN; in base64 it has no padding.
	nonceRaw = 18
	nonceLen = nonceRaw / 3 * 4

	// maxSASL is PostgreSQL's PG_MAX_SASL_MESSAGE_LENGTH. It bounds every
	// attribute of a message too.
	maxSASL = 1024
)

// appendNonce draws a nonce in base64, which has no comma, as RFC 5802 asks.
func appendNonce(dst []byte, random io.Reader) ([]byte, error) {
	var raw [nonceRaw]byte
	if _, err := io.ReadFull(random, raw[:]); err != nil {
		return dst, err
	}
	return base64.StdEncoding.AppendEncode(dst, raw[:]), nil
}

// attributes reads a SCRAM message: a cursor over "a=value,b=value". The values
// alias the message.
type attributes struct{ rest []byte }

func (a *attributes) empty() bool { return len(a.rest) == 0 }

// next reads the attribute that must come now.
func (a *attributes) next(name byte) ([]byte, *Error) {
	if a.empty() || a.rest[0] != name {
		return nil, malformed("Expected attribute \"%c\" but found %s.", name, a.found())
	}
	return a.value()
}

// any reads the next attribute, whatever its name.
func (a *attributes) any() (name byte, value []byte, err *Error) {
	if a.empty() || !isAlpha(a.rest[0]) {
		return 0, nil, malformed("Attribute expected, but found %s.", a.found())
	}
	name = a.rest[0]
	value, err = a.value()
	return name, value, err
}

func (a *attributes) value() ([]byte, *Error) {
	name := a.rest[0]
	if len(a.rest) < 2 || a.rest[1] != '=' {
		return nil, malformed("Expected character \"=\" for attribute \"%c\".", name)
	}
	rest := a.rest[2:]
	for i, c := range rest {
		if c == ',' {
			a.rest = rest[i+1:]
			return rest[:i:i], nil
		}
	}
	a.rest = nil
	return rest, nil
}

// found names the next byte for a message: printable ASCII as it is, anything
// else in hex, so that a peer cannot write into our logs.
func (a *attributes) found() string { return describeByte(a.rest) }

func describeByte(p []byte) string {
	if len(p) == 0 {
		return "the end of the message"
	}
	if c := p[0]; c < 0x21 || c > 0x7e {
		return fmt.Sprintf("character \"0x%02x\"", c)
	}
	return fmt.Sprintf("character \"%c\"", p[0])
}

func isAlpha(c byte) bool { return 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' }

// isPrintable is RFC 5802's printable: %x21-2B / %x2D-7E.
func isPrintable(p []byte) bool {
	for _, c := range p {
		if c < 0x21 || c > 0x7e || c == ',' {
			return false
		}
	}
	return true
}

// sanitized shows at most 32 bytes of what a peer sent, without control bytes.
func sanitized(p []byte) string {
	const limit = 32
	out := make([]byte, 0, limit)
	for _, c := range p[:min(len(p), limit)] {
		if c < 0x21 || c > 0x7e {
			c = '?'
		}
		out = append(out, c)
	}
	return string(out)
}
