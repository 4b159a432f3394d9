package connpool

import (
	"errors"
	"fmt"
)

// sqlStateTooMany is too_many_connections: ours when we refuse, the server's
// when it has no slot for us.
const sqlStateTooMany = "53300"

// RefusedError is an early refusal: a bound is reached, and waiting would only
// make it worse.
type RefusedError struct {
	Key      Key
	What     string // what is bounded: "waiting borrows of this user", "user pools"
	Value    int    // how many there are
	Limit    int    // how many there may be
	InUse    int    // server connections in use, all users of the target
	Capacity int    // server connections there may be
	Knob     string // the setting to raise, "" when the bound is fixed
}

func (e *RefusedError) Error() string {
	remedy := "lower the concurrency"
	if e.Knob != "" {
		remedy = "raise " + e.Knob + " or " + remedy
	}
	return fmt.Sprintf("too many %s (user %q, database %q): %d of at most %d, %d of %d server connections in use; %s",
		e.What, e.Key.User, e.Key.Database, e.Value, e.Limit, e.InUse, e.Capacity, remedy)
}

// SQLState lets the protocol layer build the ErrorResponse without knowing us.
func (e *RefusedError) SQLState() string { return sqlStateTooMany }

// ErrClosed answers each Get, and each waiter, once Close was called.
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string    { return "the connection pool is shutting down" }
func (closedError) SQLState() string { return "57P01" }

// serverIsFull reports whether a dial failed because the server has no free
// connection slot.
func serverIsFull(err error) bool {
	s, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	return ok && s.SQLState() == sqlStateTooMany
}
