package protocol

import "fmt"

// SQLSTATEs that this package raises (PostgreSQL manual, appendix A).
const (
	CodeProtocolViolation     = "08P01"
	CodeFeatureNotSupported   = "0A000"
	CodeInvalidParameterValue = "22023"
	CodeInvalidAuthorization  = "28000"

	defaultSQLState = "XX000"
)

// Severities of errors and notices.
const (
	SeverityError   = "ERROR"
	SeverityFatal   = "FATAL"
	SeverityPanic   = "PANIC"
	SeverityWarning = "WARNING"
	SeverityNotice  = "NOTICE"
)

// Error is an ErrorResponse or a NoticeResponse as a value: what PostgreSQL
// would say, with its severity and SQLSTATE. AppendErrorResponse sends it.
type Error struct {
	Severity string // never localised; empty means ERROR
	Code     string // SQLSTATE; empty means XX000
	Message  string
	Detail   string
	Hint     string

	// Quiet: PostgreSQL writes this to its log only (COMMERROR) and closes the
	// connection without an answer, because the peer has lost the thread of
	// the conversation.
	Quiet bool
}

// Error implements error.
func (e *Error) Error() string { return e.Message + " (SQLSTATE " + e.SQLState() + ")" }

// SQLState returns the code that the client sees.
func (e *Error) SQLState() string {
	if e.Code == "" {
		return defaultSQLState
	}
	return e.Code
}

// Fatal reports whether the session ends with this error.
func (e *Error) Fatal() bool { return e.Severity == SeverityFatal || e.Severity == SeverityPanic }

// violation is an ERROR: the message is bad, the session goes on.
func violation(format string, args ...any) error {
	return &Error{Severity: SeverityError, Code: CodeProtocolViolation, Message: fmt.Sprintf(format, args...)}
}

// fatalViolation ends the session and tells the client why.
func fatalViolation(format string, args ...any) error {
	return &Error{Severity: SeverityFatal, Code: CodeProtocolViolation, Message: fmt.Sprintf(format, args...)}
}

// lostSync ends the session without an answer.
func lostSync(message string) error {
	return &Error{Severity: SeverityFatal, Code: CodeProtocolViolation, Message: message, Quiet: true}
}

// UnencryptedData is the FATAL for bytes that arrived in clear text together
// with an SSLRequest or a GSSENCRequest (CVE-2021-23214): they may have been
// put there by somebody else, so they must never be read as if they had come
// through the encrypted channel.
func UnencryptedData(kind StartupKind) *Error {
	request := "SSL"
	if kind == StartupGSSENC {
		request = "GSSAPI encryption"
	}
	return &Error{
		Severity: SeverityFatal,
		Code:     CodeProtocolViolation,
		Message:  "received unencrypted data after " + request + " request",
		Detail: "This could be either a client-software bug or evidence of an attempted " +
			"man-in-the-middle attack.",
	}
}
