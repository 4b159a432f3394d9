package protocol

// AppendErrorResponse appends an ErrorResponse.
func AppendErrorResponse(dst []byte, e *Error) []byte {
	return appendReport(dst, MsgErrorResponse, SeverityError, e)
}

// AppendNoticeResponse appends a NoticeResponse; an empty severity is NOTICE.
func AppendNoticeResponse(dst []byte, e *Error) []byte {
	return appendReport(dst, MsgNoticeResponse, SeverityNotice, e)
}

func appendReport(dst []byte, typ Type, severity string, e *Error) []byte {
	if e.Severity != "" {
		severity = e.Severity
	}
	dst, at := begin(dst, typ)
	dst = appendString(append(dst, FieldSeverity), severity)
	dst = appendString(append(dst, FieldSeverityUnlocal), severity)
	dst = appendString(append(dst, FieldCode), e.SQLState())
	dst = appendString(append(dst, FieldMessage), e.Message)
	if e.Detail != "" {
		dst = appendString(append(dst, FieldDetail), e.Detail)
	}
	if e.Hint != "" {
		dst = appendString(append(dst, FieldHint), e.Hint)
	}
	return finish(append(dst, endOfFields), at)
}

// AppendReadyForQuery appends a ReadyForQuery.
func AppendReadyForQuery(dst []byte, status TxStatus) []byte {
	return append(dst, byte(MsgReadyForQuery), 0, 0, 0, 5, byte(status))
}

// AppendParameterStatus appends a ParameterStatus.
func AppendParameterStatus[N, V text](dst []byte, name N, value V) []byte {
	dst, at := begin(dst, MsgParameterStatus)
	dst = appendString(dst, name)
	return finish(appendString(dst, value), at)
}

// AppendBackendKeyData appends a BackendKeyData; keys of more than 4 bytes need
// protocol 3.2.
func AppendBackendKeyData(dst []byte, pid uint32, key []byte) []byte {
	if len(key) < MinCancelKey || len(key) > MaxCancelKey {
		panic("bug: cancel key of an impossible length")
	}
	dst, at := begin(dst, MsgBackendKeyData)
	dst = appendInt32(dst, pid)
	return finish(append(dst, key...), at)
}

// AppendAuthentication appends an Authentication message: AuthOk,
// AuthCleartextPassword (no data), AuthMD5Password (the salt of 4 bytes),
// AuthSASLContinue, AuthSASLFinal (the data of the mechanism).
func AppendAuthentication(dst []byte, typ AuthType, data []byte) []byte {
	dst, at := begin(dst, MsgAuthentication)
	dst = appendInt32(dst, uint32(typ))
	return finish(append(dst, data...), at)
}

// AppendAuthenticationSASL appends an AuthenticationSASL that offers the
// mechanisms in this order.
func AppendAuthenticationSASL(dst []byte, mechanisms ...string) []byte {
	dst, at := begin(dst, MsgAuthentication)
	dst = appendInt32(dst, uint32(AuthSASL))
	for _, m := range mechanisms {
		dst = appendString(dst, m)
	}
	return finish(append(dst, 0), at)
}

// AppendNegotiateProtocolVersion appends a NegotiateProtocolVersion.
func AppendNegotiateProtocolVersion(dst []byte, newest ProtocolVersion, unrecognized []string) []byte {
	dst, at := begin(dst, MsgNegotiateProtocolVersion)
	dst = appendInt32(dst, uint32(newest))
	dst = appendInt32(dst, uint32(len(unrecognized)))
	for _, name := range unrecognized {
		dst = appendString(dst, name)
	}
	return finish(dst, at)
}

// AppendCommandComplete appends a CommandComplete with its tag.
func AppendCommandComplete[T text](dst []byte, tag T) []byte {
	dst, at := begin(dst, MsgCommandComplete)
	return finish(appendString(dst, tag), at)
}

// AppendParseComplete appends a ParseComplete.
func AppendParseComplete(dst []byte) []byte { return empty(dst, MsgParseComplete) }

// AppendBindComplete appends a BindComplete.
func AppendBindComplete(dst []byte) []byte { return empty(dst, MsgBindComplete) }

// AppendCloseComplete appends a CloseComplete.
func AppendCloseComplete(dst []byte) []byte { return empty(dst, MsgCloseComplete) }

// AppendEmptyQueryResponse appends an EmptyQueryResponse.
func AppendEmptyQueryResponse(dst []byte) []byte { return empty(dst, MsgEmptyQueryResponse) }

// AppendNoData appends a NoData.
func AppendNoData(dst []byte) []byte { return empty(dst, MsgNoData) }

// AppendPortalSuspended appends a PortalSuspended.
func AppendPortalSuspended(dst []byte) []byte { return empty(dst, MsgPortalSuspended) }

// AppendParameterDescription appends a ParameterDescription.
func AppendParameterDescription(dst []byte, types OIDs) []byte {
	dst, at := begin(dst, MsgParameterDescription)
	dst = appendInt16(dst, types.Len())
	return finish(append(dst, types...), at)
}

// AppendNotification appends a NotificationResponse.
func AppendNotification[C, P text](dst []byte, pid uint32, channel C, payload P) []byte {
	dst, at := begin(dst, MsgNotificationResponse)
	dst = appendInt32(dst, pid)
	dst = appendString(dst, channel)
	return finish(appendString(dst, payload), at)
}

// Types of the columns that the console shows (pg_type.oid).
const (
	OIDBool    uint32 = 16
	OIDInt8    uint32 = 20
	OIDInt4    uint32 = 23
	OIDText    uint32 = 25
	OIDNumeric uint32 = 1700
)

// Column describes a column of a result in text format. The zero OID means
// text.
type Column struct {
	Name string
	OID  uint32
}

// AppendRowDescription appends a RowDescription.
func AppendRowDescription(dst []byte, columns ...Column) []byte {
	dst, at := begin(dst, MsgRowDescription)
	dst = appendInt16(dst, len(columns))
	for _, c := range columns {
		oid, size := c.OID, typeSize(c.OID)
		if oid == 0 {
			oid = OIDText
		}
		dst = appendString(dst, c.Name)
		dst = append(dst, 0, 0, 0, 0, 0, 0) // not a column of a table
		dst = appendInt32(dst, oid)
		dst = append(dst, byte(uint16(size)>>8), byte(size))
		dst = append(dst, 0xff, 0xff, 0xff, 0xff) // no type modifier
		dst = append(dst, 0, 0)                   // text format
	}
	return finish(dst, at)
}

// typeSize is pg_type.typlen; -1 is variable.
func typeSize(oid uint32) int16 {
	switch oid {
	case OIDBool:
		return 1
	case OIDInt4:
		return 4
	case OIDInt8:
		return 8
	}
	return -1
}

// AppendDataRow appends a DataRow; a nil value is NULL.
func AppendDataRow(dst []byte, values ...[]byte) []byte {
	dst, at := begin(dst, MsgDataRow)
	return finish(appendValues(dst, values), at)
}

// AppendTextRow appends a DataRow of strings.
func AppendTextRow(dst []byte, values ...string) []byte {
	dst, at := begin(dst, MsgDataRow)
	dst = appendInt16(dst, len(values))
	for _, v := range values {
		dst = appendInt32(dst, uint32(len(v)))
		dst = append(dst, v...)
	}
	return finish(dst, at)
}
