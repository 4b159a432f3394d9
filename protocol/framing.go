package protocol

import (
	"bytes"
	"encoding/binary"
)

// Type is the first byte of a message. Frontend and backend share letters, so
// a Type means something only together with its direction.
type Type byte

// Messages that clients send.
const (
	MsgBind         Type = 'B'
	MsgClose        Type = 'C'
	MsgCopyFail     Type = 'f'
	MsgDescribe     Type = 'D'
	MsgExecute      Type = 'E'
	MsgFlush        Type = 'H'
	MsgFunctionCall Type = 'F'
	MsgParse        Type = 'P'
	MsgPassword     Type = 'p' // also SASLInitialResponse, SASLResponse, GSSResponse
	MsgQuery        Type = 'Q'
	MsgSync         Type = 'S'
	MsgTerminate    Type = 'X'
)

// Messages that both sides send.
const (
	MsgCopyData Type = 'd'
	MsgCopyDone Type = 'c'
)

// Messages that servers send.
const (
	MsgAuthentication           Type = 'R'
	MsgBackendKeyData           Type = 'K'
	MsgBindComplete             Type = '2'
	MsgCloseComplete            Type = '3'
	MsgCommandComplete          Type = 'C'
	MsgCopyInResponse           Type = 'G'
	MsgCopyOutResponse          Type = 'H'
	MsgCopyBothResponse         Type = 'W'
	MsgDataRow                  Type = 'D'
	MsgEmptyQueryResponse       Type = 'I'
	MsgErrorResponse            Type = 'E'
	MsgFunctionCallResponse     Type = 'V'
	MsgNegotiateProtocolVersion Type = 'v'
	MsgNoData                   Type = 'n'
	MsgNoticeResponse           Type = 'N'
	MsgNotificationResponse     Type = 'A'
	MsgParameterDescription     Type = 't'
	MsgParameterStatus          Type = 'S'
	MsgParseComplete            Type = '1'
	MsgPortalSuspended          Type = 's'
	MsgReadyForQuery            Type = 'Z'
	MsgRowDescription           Type = 'T'
)

// HeaderLen is the size of a message header: the type and the length word,
// which counts itself but not the type.
const HeaderLen = 5

// Limits of the length word. They are PostgreSQL's own (libpq.h); the large
// one is MaxAllocSize - 1.
const (
	SmallMessageLimit = 10_000
	LargeMessageLimit = 0x3fffffff - 1
	// PasswordLimit bounds a PasswordMessage or SASL message before
	// authentication is over (PG_MAX_AUTH_TOKEN_LENGTH).
	PasswordLimit = 65_535
)

// frontendLimit is the largest length word per message type once the session
// is authenticated, as in PostgreSQL's SocketBackend; 0 marks an unknown type.
var frontendLimit = [256]uint32{
	MsgQuery:        LargeMessageLimit,
	MsgFunctionCall: LargeMessageLimit,
	MsgParse:        LargeMessageLimit,
	MsgBind:         LargeMessageLimit,
	MsgCopyData:     LargeMessageLimit,
	MsgCopyFail:     SmallMessageLimit,
	MsgCopyDone:     SmallMessageLimit,
	MsgClose:        SmallMessageLimit,
	MsgDescribe:     SmallMessageLimit,
	MsgExecute:      SmallMessageLimit,
	MsgFlush:        SmallMessageLimit,
	MsgSync:         SmallMessageLimit,
	MsgTerminate:    SmallMessageLimit,
}

// backendLimit is the largest length word per message type that a server may
// send us. Nothing is buffered on its account (bodies stream), so it only has
// to tell a message from garbage; unlike libpq it does not guess which short
// messages could be long.
var backendLimit = [256]uint32{
	MsgAuthentication:           PasswordLimit,
	MsgBackendKeyData:           SmallMessageLimit,
	MsgBindComplete:             4,
	MsgCloseComplete:            4,
	MsgCommandComplete:          SmallMessageLimit,
	MsgCopyData:                 LargeMessageLimit,
	MsgCopyDone:                 4,
	MsgCopyInResponse:           LargeMessageLimit,
	MsgCopyOutResponse:          LargeMessageLimit,
	MsgCopyBothResponse:         LargeMessageLimit,
	MsgDataRow:                  maxLengthWord,
	MsgEmptyQueryResponse:       4,
	MsgErrorResponse:            LargeMessageLimit,
	MsgFunctionCallResponse:     maxLengthWord,
	MsgNegotiateProtocolVersion: LargeMessageLimit,
	MsgNoData:                   4,
	MsgNoticeResponse:           LargeMessageLimit,
	MsgNotificationResponse:     LargeMessageLimit,
	MsgParameterDescription:     LargeMessageLimit,
	MsgParameterStatus:          LargeMessageLimit,
	MsgParseComplete:            4,
	MsgPortalSuspended:          4,
	MsgReadyForQuery:            5,
	MsgRowDescription:           LargeMessageLimit,
}

// maxLengthWord is the largest length word that fits the protocol's Int32.
const maxLengthWord = 1<<31 - 1

// FrontendHeader reads the header of a message from an authenticated client.
// body is the number of bytes that follow the header. ok is false while p is
// too short to tell; err is an *Error that ends the session: an unknown type is
// reported to the client, a bad length is not (the stream has lost its sync).
func FrontendHeader(p []byte) (typ Type, body int, ok bool, err error) {
	if len(p) < HeaderLen {
		if len(p) > 0 && frontendLimit[p[0]] == 0 {
			return Type(p[0]), 0, false, fatalViolation("invalid frontend message type %d", p[0])
		}
		return 0, 0, false, nil
	}
	typ = Type(p[0])
	limit, length := frontendLimit[typ], binary.BigEndian.Uint32(p[1:])
	if length < 4 || length > limit {
		return typ, 0, false, badFrontendHeader(typ)
	}
	return typ, int(length) - 4, true, nil
}

// badFrontendHeader is apart so that FrontendHeader stays small.
func badFrontendHeader(typ Type) error {
	if frontendLimit[typ] == 0 {
		return fatalViolation("invalid frontend message type %d", byte(typ))
	}
	return lostSync("invalid message length")
}

// PasswordHeader reads the header of the only message that a client may send
// while it authenticates: PasswordMessage, SASLInitialResponse or SASLResponse.
// Its body is at most PasswordLimit - 4 bytes.
func PasswordHeader(p []byte) (body int, ok bool, err error) {
	if len(p) > 0 && Type(p[0]) != MsgPassword {
		return 0, false, fatalViolation("expected password response, got message type %d", p[0])
	}
	if len(p) < HeaderLen {
		return 0, false, nil
	}
	length := binary.BigEndian.Uint32(p[1:])
	if length < 4 || length > PasswordLimit {
		return 0, false, lostSync("invalid message length")
	}
	return int(length) - 4, true, nil
}

// BackendHeader reads the header of a message from a server, like
// FrontendHeader. An error means that the peer does not speak the protocol (or
// that we lost count): the connection must be closed.
func BackendHeader(p []byte) (typ Type, body int, ok bool, err error) {
	if len(p) < HeaderLen {
		if len(p) > 0 && backendLimit[p[0]] == 0 {
			return Type(p[0]), 0, false, badBackendHeader(Type(p[0]), 4)
		}
		return 0, 0, false, nil
	}
	typ = Type(p[0])
	limit, length := backendLimit[typ], binary.BigEndian.Uint32(p[1:])
	if length < 4 || length > limit {
		return typ, 0, false, badBackendHeader(typ, length)
	}
	return typ, int(length) - 4, true, nil
}

func badBackendHeader(typ Type, length uint32) error {
	if backendLimit[typ] == 0 {
		return fatalViolation("server sent an unknown message type %d", byte(typ))
	}
	return fatalViolation("server sent a message of type %q with the impossible length %d", byte(typ), length)
}

// CString splits p at its first NUL. ok is false when there is none (yet); the
// string is without its NUL, rest is what follows it.
func CString(p []byte) (s, rest []byte, ok bool) {
	i := bytes.IndexByte(p, 0)
	if i < 0 {
		return nil, nil, false
	}
	return p[:i:i], p[i+1:], true
}
