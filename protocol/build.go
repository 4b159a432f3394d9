package protocol

import (
	"bytes"
	"encoding/binary"
	"math"
)

// text is what builders take for strings, so that views need not be copied.
// A string ends at its first NUL, since the protocol could not carry more.
type text interface{ ~string | ~[]byte }

// begin appends a header with an open length; finish closes it.
func begin(dst []byte, typ Type) (_ []byte, at int) {
	dst = append(dst, byte(typ), 0, 0, 0, 0)
	return dst, len(dst) - 4
}

func finish(dst []byte, at int) []byte {
	n := len(dst) - at
	if n > math.MaxInt32 {
		panic("bug: message longer than the protocol can say")
	}
	binary.BigEndian.PutUint32(dst[at:], uint32(n))
	return dst
}

// empty appends a message without a body.
func empty(dst []byte, typ Type) []byte { return append(dst, byte(typ), 0, 0, 0, 4) }

func appendString[T text](dst []byte, s T) []byte {
	at := len(dst)
	dst = append(dst, s...)
	if i := bytes.IndexByte(dst[at:], 0); i >= 0 {
		dst = dst[:at+i]
	}
	return append(dst, 0)
}

func appendInt16(dst []byte, n int) []byte {
	if n < 0 || n > math.MaxUint16 {
		panic("bug: more items than a message can count")
	}
	return binary.BigEndian.AppendUint16(dst, uint16(n))
}

func appendInt32(dst []byte, n uint32) []byte { return binary.BigEndian.AppendUint32(dst, n) }

// AppendMessage appends a message with a body that is already encoded.
func AppendMessage(dst []byte, typ Type, body []byte) []byte {
	dst, at := begin(dst, typ)
	return finish(append(dst, body...), at)
}

// AppendHeader appends the header of a message whose body of n bytes follows
// on its own.
func AppendHeader(dst []byte, typ Type, n int) []byte {
	if n < 0 || n > math.MaxInt32-4 {
		panic("bug: message longer than the protocol can say")
	}
	return binary.BigEndian.AppendUint32(append(dst, byte(typ)), uint32(n+4))
}

// AppendQuery appends a Query.
func AppendQuery[T text](dst []byte, sql T) []byte {
	dst, at := begin(dst, MsgQuery)
	return finish(appendString(dst, sql), at)
}

// AppendParse appends a Parse; the empty name is the unnamed statement.
func AppendParse[N, Q text](dst []byte, name N, query Q, types OIDs) []byte {
	dst, at := begin(dst, MsgParse)
	dst = appendString(dst, name)
	dst = appendString(dst, query)
	dst = appendInt16(dst, types.Len())
	return finish(append(dst, types...), at)
}

// AppendBind appends a Bind. A nil value is NULL. Formats (0 text, 1 binary)
// are one for all or one each, none meaning text.
func AppendBind[P, S text](dst []byte, portal P, statement S, formats []int16, values [][]byte, results []int16) []byte {
	dst, at := begin(dst, MsgBind)
	dst = appendString(dst, portal)
	dst = appendString(dst, statement)
	dst = appendFormats(dst, formats)
	dst = appendValues(dst, values)
	dst = appendFormats(dst, results)
	return finish(dst, at)
}

// AppendBindValues appends a Bind whose formats and values are already
// encoded: the Values of a Bind view, for another portal or statement.
func AppendBindValues[P, S text](dst []byte, portal P, statement S, values []byte) []byte {
	dst, at := begin(dst, MsgBind)
	dst = appendString(dst, portal)
	dst = appendString(dst, statement)
	return finish(append(dst, values...), at)
}

func appendFormats(dst []byte, formats []int16) []byte {
	dst = appendInt16(dst, len(formats))
	for _, f := range formats {
		dst = binary.BigEndian.AppendUint16(dst, uint16(f))
	}
	return dst
}

func appendValues(dst []byte, values [][]byte) []byte {
	dst = appendInt16(dst, len(values))
	for _, v := range values {
		if v == nil {
			dst = appendInt32(dst, math.MaxUint32) // -1: NULL
			continue
		}
		dst = appendInt32(dst, uint32(len(v)))
		dst = append(dst, v...)
	}
	return dst
}

// AppendDescribe appends a Describe of a KindStatement or KindPortal.
func AppendDescribe[T text](dst []byte, kind byte, name T) []byte {
	dst, at := begin(dst, MsgDescribe)
	return finish(appendString(append(dst, kind), name), at)
}

// AppendClose appends a Close of a KindStatement or KindPortal.
func AppendClose[T text](dst []byte, kind byte, name T) []byte {
	dst, at := begin(dst, MsgClose)
	return finish(appendString(append(dst, kind), name), at)
}

// AppendExecute appends an Execute; maxRows 0 means all.
func AppendExecute[T text](dst []byte, portal T, maxRows int32) []byte {
	dst, at := begin(dst, MsgExecute)
	dst = appendString(dst, portal)
	return finish(appendInt32(dst, uint32(maxRows)), at)
}

// AppendSync appends a Sync.
func AppendSync(dst []byte) []byte { return empty(dst, MsgSync) }

// AppendFlush appends a Flush.
func AppendFlush(dst []byte) []byte { return empty(dst, MsgFlush) }

// AppendTerminate appends a Terminate.
func AppendTerminate(dst []byte) []byte { return empty(dst, MsgTerminate) }

// AppendCopyDone appends a CopyDone (either direction).
func AppendCopyDone(dst []byte) []byte { return empty(dst, MsgCopyDone) }

// AppendCopyFail appends a CopyFail with its reason.
func AppendCopyFail[T text](dst []byte, reason T) []byte {
	dst, at := begin(dst, MsgCopyFail)
	return finish(appendString(dst, reason), at)
}

// AppendPassword appends a PasswordMessage.
func AppendPassword[T text](dst []byte, password T) []byte {
	dst, at := begin(dst, MsgPassword)
	return finish(appendString(dst, password), at)
}

// AppendSASLInitialResponse appends a SASLInitialResponse; a nil response
// means that the mechanism sends none.
func AppendSASLInitialResponse(dst []byte, mechanism string, response []byte) []byte {
	dst, at := begin(dst, MsgPassword)
	dst = appendString(dst, mechanism)
	if response == nil {
		return finish(appendInt32(dst, math.MaxUint32), at)
	}
	dst = appendInt32(dst, uint32(len(response)))
	return finish(append(dst, response...), at)
}

// AppendSASLResponse appends a SASLResponse.
func AppendSASLResponse(dst, response []byte) []byte {
	return AppendMessage(dst, MsgPassword, response)
}

// AppendStartup appends a StartupMessage with the parameters in their order;
// user and database are parameters like the others.
func AppendStartup(dst []byte, version ProtocolVersion, params []Param) []byte {
	at := len(dst)
	dst = appendInt32(dst, 0)
	dst = appendInt32(dst, uint32(version))
	for _, p := range params {
		dst = appendString(dst, p.Name)
		dst = appendString(dst, p.Value)
	}
	return finish(append(dst, 0), at)
}

// AppendCancelRequest appends a CancelRequest.
func AppendCancelRequest(dst []byte, pid uint32, key []byte) []byte {
	at := len(dst)
	dst = appendInt32(dst, 0)
	dst = appendInt32(dst, cancelRequestCode)
	dst = appendInt32(dst, pid)
	return finish(append(dst, key...), at)
}

// AppendSSLRequest appends an SSLRequest.
func AppendSSLRequest(dst []byte) []byte {
	return appendInt32(appendInt32(dst, 8), sslRequestCode)
}

// AppendGSSENCRequest appends a GSSENCRequest.
func AppendGSSENCRequest(dst []byte) []byte {
	return appendInt32(appendInt32(dst, 8), gssencRequestCode)
}
