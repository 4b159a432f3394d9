package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"io"
	"strconv"
)

// scramServer is the server's side of one SCRAM-SHA-256(-PLUS) exchange after
// the mechanism has been chosen: first, final, and then verify once keys are
// known. It follows PostgreSQL's auth-scram.c, including the order of checks: the
// proof is computed in an exchange that is bound to fail too.
type scramServer struct {
	plus        bool   // the client chose SCRAM-SHA-256-PLUS
	offeredPlus bool   // and whether it could have
	endPoint    []byte // tls-server-end-point data, when offeredPlus
	cbindFlag   byte   // 'n', 'y' or 'p'

	// buf is hmacBlock bytes of scratch for hmacInto and RFC 5802's AuthMessage,
	// complete when final has succeeded.
	buf                  []byte
	nonceStart, nonceEnd int // the combined nonce, in buf

	proof     [keyLen]byte
	clientKey [keyLen]byte // recovered by verify
}

// first reads the client-first-message and appends the server-first-message.
func (s *scramServer) first(dst, msg []byte, salt []byte, iterations int, random io.Reader) ([]byte, *Error) {
	if err := checkLength(msg); err != nil {
		return dst, err
	}
	rest, err := s.readGS2(msg)
	if err != nil {
		return dst, err
	}
	bare := rest
	a := attributes{rest}
	if len(rest) > 0 && rest[0] == 'm' {
		return dst, &Error{Code: codeFeatureNotSupported, Message: "client requires an unsupported SCRAM extension"}
	}
	// The user name is that of the startup packet; this one is not looked at.
	if _, err := a.next('n'); err != nil {
		return dst, err
	}
	nonce, err := a.next('r')
	if err != nil {
		return dst, err
	}
	if !isPrintable(nonce) {
		return dst, violation("non-printable characters in SCRAM nonce", "")
	}
	if len(nonce) == 0 {
		return dst, malformed("The nonce is empty.")
	}
	for !a.empty() { // optional extensions
		if _, _, err := a.any(); err != nil {
			return dst, err
		}
	}

	// The room for the final message without its proof is what a client without
	// extensions needs, so that buf is allocated once.
	size := hmacBlock + len(bare) + 2*len(nonce) + 2*nonceLen + base64.StdEncoding.EncodedLen(len(salt)) + 128
	s.buf = append(make([]byte, hmacBlock, size), bare...)
	s.buf = append(s.buf, ',')
	start := len(s.buf)
	s.buf = append(s.buf, "r="...)
	s.nonceStart = len(s.buf)
	s.buf = append(s.buf, nonce...)
	var rerr error
	if s.buf, rerr = appendNonce(s.buf, random); rerr != nil {
		return dst, &Error{Code: "XX000", Message: "could not generate random nonce", Reason: rerr.Error()}
	}
	s.nonceEnd = len(s.buf)
	s.buf = append(s.buf, ",s="...)
	s.buf = base64.StdEncoding.AppendEncode(s.buf, salt)
	s.buf = append(s.buf, ",i="...)
	s.buf = strconv.AppendInt(s.buf, int64(iterations), 10)
	dst = append(dst, s.buf[start:]...)
	s.buf = append(s.buf, ',')
	return dst, nil
}

// readGS2 reads the GS2 header and returns what follows it.
func (s *scramServer) readGS2(msg []byte) ([]byte, *Error) {
	s.cbindFlag = msg[0]
	a := attributes{msg}
	switch s.cbindFlag {
	case 'n', 'y':
		if s.plus {
			return nil, malformed("The client selected SCRAM-SHA-256-PLUS, but the SCRAM message does not include channel binding data.")
		}
		if s.cbindFlag == 'y' && s.offeredPlus {
			// Somebody in between cut PLUS from our list of mechanisms.
			return nil, &Error{
				Code: codeInvalidAuthorization, Message: "SCRAM channel binding negotiation error",
				Detail: "The client supports SCRAM channel binding but thinks the server does not.  However, this server does support channel binding.",
			}
		}
		a.rest = msg[1:]
		if a.empty() || a.rest[0] != ',' {
			return nil, malformed("Comma expected, but found %s.", a.found())
		}
		a.rest = a.rest[1:]
	case 'p':
		if !s.plus {
			return nil, malformed("The client selected SCRAM-SHA-256 without channel binding, but the SCRAM message includes channel binding data.")
		}
		kind, err := a.next('p')
		if err != nil {
			return nil, err
		}
		if string(kind) != bindingType {
			return nil, violation("unsupported SCRAM channel-binding type \""+sanitized(kind)+"\"", "")
		}
	default:
		return nil, malformed("Unexpected channel-binding flag: %s.", describeByte(msg))
	}
	if !a.empty() && a.rest[0] == 'a' {
		return nil, &Error{Code: codeFeatureNotSupported, Message: "client uses authorization identity, but it is not supported"}
	}
	if a.empty() || a.rest[0] != ',' {
		return nil, malformed("Unexpected attribute in client-first-message: %s.", a.found())
	}
	return a.rest[1:], nil
}

// final reads the client-final-message. After it, buf[hmacBlock:] is the
// AuthMessage and verify may be called.
func (s *scramServer) final(msg []byte) *Error {
	if err := checkLength(msg); err != nil {
		return err
	}
	a := attributes{msg}
	binding, err := a.next('c')
	if err != nil {
		return err
	}
	nonce, err := a.next('r')
	if err != nil {
		return err
	}
	var proof []byte
	withoutProof := 0
	for name := byte(0); name != 'p'; { // optional extensions come before the proof
		withoutProof = len(msg) - len(a.rest) - len(",")
		if name, proof, err = a.any(); err != nil {
			return err
		}
	}
	if !decodeKey(&s.proof, proof) {
		return malformed("Malformed proof in client-final-message.")
	}
	// A trailing comma would leave nothing in a.rest either.
	if !a.empty() || msg[len(msg)-1] == ',' {
		return malformed("Garbage found at the end of client-final-message.")
	}
	if err := s.checkBinding(binding); err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(nonce, s.buf[s.nonceStart:s.nonceEnd]) != 1 {
		return violation("invalid SCRAM response", "Nonce does not match.")
	}
	s.buf = append(s.buf, msg[:withoutProof]...)
	return nil
}

// checkBinding compares c= with the base64 of the GS2 header and the data.
func (s *scramServer) checkBinding(got []byte) *Error {
	if !s.plus {
		want := "biws" // "n,,"
		if s.cbindFlag == 'y' {
			want = "eSws" // "y,,"
		}
		if string(got) != want {
			return violation("unexpected SCRAM channel-binding attribute in client-final-message", "")
		}
		return nil
	}
	var raw [len("p="+bindingType+",,") + 64]byte
	var text [128]byte
	want := base64.StdEncoding.AppendEncode(text[:0], appendBinding(raw[:0], s.endPoint))
	if subtle.ConstantTimeCompare(got, want) != 1 {
		return &Error{Code: codeInvalidAuthorization, Message: "SCRAM channel binding check failed"}
	}
	return nil
}

func appendBinding(dst, endPoint []byte) []byte {
	dst = append(dst, "p="+bindingType+",,"...)
	return append(dst, endPoint...)
}

// verify reports whether the proof fits the keys, and appends the
// server-final-message if so.
func (s *scramServer) verify(dst []byte, k *serverKeys) ([]byte, bool) {
	signature := hmacInto(k.stored[:], s.buf)
	subtle.XORBytes(s.clientKey[:], s.proof[:], signature[:])
	stored := sha256.Sum256(s.clientKey[:])
	if subtle.ConstantTimeCompare(stored[:], k.stored[:]) != 1 {
		s.clientKey = [keyLen]byte{}
		return dst, false
	}
	signature = hmacInto(k.server[:], s.buf)
	dst = append(dst, "v="...)
	return base64.StdEncoding.AppendEncode(dst, signature[:]), true
}

func checkLength(msg []byte) *Error {
	switch {
	case len(msg) == 0:
		return malformed("The message is empty.")
	case len(msg) > maxSASL:
		return malformed("The message has %d bytes, more than %d.", len(msg), maxSASL)
	case bytes.IndexByte(msg, 0) >= 0:
		return malformed("Message length does not match input length.")
	}
	return nil
}
