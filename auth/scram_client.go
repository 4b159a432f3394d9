package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
)

// scramClient is the client's side of one SCRAM exchange: first, final, verify.
type scramClient struct {
	flag     byte   // 'n', 'y' or 'p'
	endPoint []byte // with 'p'

	buf   []byte // hmacBlock bytes of scratch, then the growing AuthMessage
	nonce []byte // ours; aliases nothing that changes
	keys  *clientKeys
}

// first is the client-first-message. As in libpq the user name is left empty: the
// server has it from the startup packet.
func (s *scramClient) first(random io.Reader) ([]byte, error) {
	nonce, err := appendNonce(make([]byte, 0, nonceLen), random)
	if err != nil {
		return nil, err
	}
	s.nonce = nonce
	s.buf = append(make([]byte, hmacBlock, hmacBlock+256), "n=,r="...)
	s.buf = append(s.buf, nonce...)
	return append(s.header(), s.buf[hmacBlock:]...), nil
}

// header is the GS2 header.
func (s *scramClient) header() []byte {
	if s.flag == 'p' {
		return appendBinding(nil, nil)
	}
	return []byte{s.flag, ',', ','}
}

// final reads the server-first-message and returns the client-final-message as a
// complete 'p' message.
func (s *scramClient) final(secret Secret, msg []byte) ([]byte, *Error) {
	nonce, salt, iterations, err := s.readFirst(msg)
	if err != nil {
		return nil, err
	}
	switch secret.Kind() {
	case KindPlain:
		s.keys = secret.e.clientKeysFor(salt, iterations)
	case KindKeys:
		v := secret.e.verifier
		if v.iterations != iterations || !bytes.Equal(v.salt, salt) {
			return nil, &Error{
				Code: codeInvalidAuthorization, Message: "the server's SCRAM verifier is not the one that the client logged in with",
				Detail: "Pass-through needs the same salt and iteration count on both sides; copy the verifier from the server, or store the password.",
			}
		}
		s.keys = &clientKeys{client: secret.e.clientKey, server: v.server}
	default:
		panic("bug: SCRAM login with a secret of kind " + secret.Kind().String())
	}
	s.buf = append(s.buf, ',')
	s.buf = append(s.buf, msg...)
	s.buf = append(s.buf, ',')
	at := len(s.buf)
	s.buf = append(s.buf, "c="...)
	s.buf = base64.StdEncoding.AppendEncode(s.buf, append(s.header(), s.endPoint...))
	s.buf = append(s.buf, ",r="...)
	s.buf = append(s.buf, nonce...)

	stored := sha256.Sum256(s.keys.client[:])
	proof := hmacInto(stored[:], s.buf)
	subtle.XORBytes(proof[:], proof[:], s.keys.client[:])
	out := append([]byte{'p', 0, 0, 0, 0}, s.buf[at:]...)
	out = append(out, ",p="...)
	return endAuth(base64.StdEncoding.AppendEncode(out, proof[:]), 1), nil
}

func (s *scramClient) readFirst(msg []byte) (nonce, salt []byte, iterations int, _ *Error) {
	bad := func(format string, args ...any) ([]byte, []byte, int, *Error) {
		return nil, nil, 0, violation("server sent a malformed SCRAM message", fmt.Sprintf(format, args...))
	}
	if err := checkLength(msg); err != nil {
		return bad("%s", err.Detail)
	}
	a := attributes{msg}
	if msg[0] == 'm' {
		return bad("It requires an extension that is not supported.")
	}
	nonce, err := a.next('r')
	switch {
	case err != nil:
		return bad("%s", err.Detail)
	case len(nonce) > maxServerNonce:
		return bad("The nonce has %d bytes, more than %d.", len(nonce), maxServerNonce)
	case !isPrintable(nonce):
		return bad("The nonce has non-printable characters.")
	case !bytes.HasPrefix(nonce, s.nonce) || len(nonce) == len(s.nonce):
		return bad("The nonce does not extend ours.")
	}
	text, err := a.next('s')
	if err != nil {
		return bad("%s", err.Detail)
	}
	salt, ok := decodeBase64(text)
	if !ok || len(salt) == 0 || len(salt) > maxSalt {
		return bad("The salt is not base64 of 1 to %d bytes.", maxSalt)
	}
	count, err := a.next('i')
	switch {
	case err != nil:
		return bad("%s", err.Detail)
	case !a.empty() || msg[len(msg)-1] == ',':
		return bad("There is text behind the iteration count.")
	}
	n, nerr := strconv.ParseUint(string(count), 10, 31)
	switch {
	case nerr != nil || n == 0 || count[0] == '0':
		return bad("The iteration count is not a positive number.")
	case n > MaxIterations:
		return bad("It asks for %d iterations, more than %d.", n, MaxIterations)
	}
	return nonce, salt, int(n), nil
}

// verify reads the server-final-message: the server proves that it knows the
// secret as well.
func (s *scramClient) verify(msg []byte) *Error {
	bad := func(detail string) *Error { return violation("server sent a malformed SCRAM message", detail) }
	if err := checkLength(msg); err != nil {
		return bad(err.Detail)
	}
	a := attributes{msg}
	if msg[0] == 'e' {
		reason, err := a.next('e')
		if err != nil {
			return bad(err.Detail)
		}
		return &Error{Code: codeInvalidPassword, Message: "server refused the SCRAM login: " + sanitized(reason)}
	}
	text, err := a.next('v')
	if err != nil {
		return bad(err.Detail)
	}
	if !a.empty() || msg[len(msg)-1] == ',' {
		return bad("There is text behind the server's signature.")
	}
	var got [keyLen]byte
	if !decodeKey(&got, text) {
		return bad("The server's signature is not base64 of 32 bytes.")
	}
	want := hmacInto(s.keys.server[:], s.buf)
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
		return &Error{
			Code: codeInvalidAuthorization, Message: "incorrect server signature",
			Detail: "The server does not know the password: it may be an impostor.",
		}
	}
	return nil
}
