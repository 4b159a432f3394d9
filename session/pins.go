package session

import "strings"

// Pin is a set of reasons for which a session keeps its server connection past
// the end of a transaction.
type Pin uint32

// The reasons. All but PinUnnamed, PinDoubt and PinMode leave state behind that
// the connection must be reset of.
const (
	PinSet      Pin = 1 << iota // SET, RESET, set_config
	PinPrepared                 // a named prepared statement, or PREPARE
	PinListen                   // LISTEN
	PinTemp                     // a temporary object
	PinCursor                   // DECLARE … WITH HOLD
	PinLock                     // a session advisory lock
	PinSequence                 // nextval or setval: currval and lastval remember
	PinLoad                     // LOAD
	PinSeed                     // setseed
	PinFunction                 // FunctionCall of an unknown function
	PinEncoding                 // a client encoding that the scanner cannot read
	PinUnknown                  // a statement that multipooler does not know
	PinUnnamed                  // an unnamed statement that could not be kept
	PinDoubt                    // the reply ledger is in doubt
	PinMode                     // pool mode session
)

var pinNames = [...]string{
	"set", "prepared_statement", "listen", "temporary_object", "with_hold_cursor", "advisory_lock",
	"sequence", "load", "setseed", "function_call", "client_encoding", "unknown_statement",
	"unnamed_statement", "reply_doubt", "session_mode",
}

// PinNames lists the names of all reasons, in the order of their bits.
func PinNames() []string { return pinNames[:] }

const (
	// clean are the pins that leave nothing behind on the server connection.
	clean = PinUnnamed | PinDoubt | PinMode
	// unresettable is what DISCARD ALL does not undo: the connection is closed.
	unresettable = PinLoad | PinSeed | PinFunction | PinUnknown
)

// String joins the names of the reasons with commas.
func (p Pin) String() string {
	var b strings.Builder
	for i := range pinNames {
		if p&(1<<i) == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(pinNames[i])
	}
	return b.String()
}

// Each calls f with the index of every reason in p.
func (p Pin) Each(f func(i int)) {
	for i := range pinNames {
		if p&(1<<i) != 0 {
			f(i)
		}
	}
}
