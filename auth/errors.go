package auth

import "fmt"

// SQLSTATEs that this package produces.
const (
	codeInvalidPassword      = "28P01"
	codeInvalidAuthorization = "28000"
	codeProtocolViolation    = "08P01"
	codeFeatureNotSupported  = "0A000"
)

// Error is why a login ended. Code, Message and Detail may be sent to the peer;
// Reason is for the log only: it tells apart what the peer must not be able to
// tell apart (unknown user, wrong password, secret of the wrong kind). No field
// ever holds a secret.
type Error struct {
	Code    string // SQLSTATE
	Message string
	Detail  string // "" when there is none
	Reason  string // for the log only; "" when Message says it all
}

// Error is for the log: it includes Reason.
func (e *Error) Error() string {
	s := e.Message
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// SQLState lets the protocol layer build the ErrorResponse without knowing us.
func (e *Error) SQLState() string { return e.Code }

func violation(message, detail string) *Error {
	return &Error{Code: codeProtocolViolation, Message: message, Detail: detail}
}

// malformed is PostgreSQL's answer to a SCRAM message that it cannot read.
func malformed(detail string, args ...any) *Error {
	return violation("malformed SCRAM message", fmt.Sprintf(detail, args...))
}
