package admin

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"
)

// SQLSTATEs of the console, by PostgreSQL's names (errcodes.txt).
const (
	stateFeatureNotSupported   = "0A000"
	stateProtocolViolation     = "08P01"
	stateInvalidCursorName     = "34000"
	stateInvalidStatementName  = "26000"
	stateDuplicateCursor       = "42P03"
	stateDuplicateStatement    = "42P05"
	stateInsufficientPrivilege = "42501"
	stateSyntaxError           = "42601"
	stateUndefinedObject       = "42704"
	stateTooComplex            = "54000"
	stateAdminShutdown         = "57P01"
	stateInternal              = "XX000"
)

// Error is what a console client reads. Commands return it, or any error with
// a SQLState method; everything else is XX000.
type Error struct {
	State   string
	Message string
	Detail  string
	Hint    string
}

func (e *Error) Error() string { return e.Message }

// SQLState is the error's SQLSTATE.
func (e *Error) SQLState() string { return e.State }

const helpHint = "SHOW HELP lists the commands."

func syntaxError(format string, args ...any) *Error {
	return &Error{State: stateSyntaxError, Message: fmt.Sprintf(format, args...), Hint: helpHint}
}

// response builds the message for err; severity is ERROR or FATAL.
func response(severity string, err error) *pgproto3.ErrorResponse {
	r := &pgproto3.ErrorResponse{
		Severity:            severity,
		SeverityUnlocalized: severity,
		Code:                stateInternal,
		Message:             Text(err.Error()).String(),
	}
	if e, ok := errors.AsType[*Error](err); ok {
		r.Code, r.Detail, r.Hint = e.State, Text(e.Detail).String(), Text(e.Hint).String()
		return r
	}
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		r.Code = e.SQLState()
	}
	return r
}
