package session

// replyKind says which reply, or which end of a series of replies, settles a
// ledger entry (PostgreSQL manual, 55.2 "Message Flow").
type replyKind uint8

const (
	replyQuery    replyKind = iota // simple Query: ends with ReadyForQuery
	replySync                      // Sync: ends with ReadyForQuery
	replyFunction                  // FunctionCall: ends with ReadyForQuery
	replyParse                     // ParseComplete
	replyBind                      // BindComplete
	replyDescribe                  // RowDescription or NoData
	replyExecute                   // CommandComplete, EmptyQueryResponse or PortalSuspended
	replyClose                     // CloseComplete
	copyEnd                        // a CopyDone or CopyFail was sent: no reply of its own, marks where a COPY IN ends in the stream
)

// endsWithReady tells whether the server answers the entry with ReadyForQuery,
// also after an error.
func (k replyKind) endsWithReady() bool { return k <= replyFunction }

// handling says what becomes of the replies of an entry.
type handling uint8

const (
	forward handling = iota // the client asked: it gets the replies
	swallow                 // multipooler asked; an error makes the connection doubtful
	align                   // multipooler's settings round trip: swallowed, an error fails the borrow
	inject                  // multipooler sent it in front of a client's message of the same batch: swallowed, but an error is the client's
)

// entry is one expected settlement, four bytes: pipelines may be long.
type entry struct {
	kind replyKind
	how  handling
	// unnamed marks the Parse of an unnamed statement.
	unnamed bool
	// resets marks a Query that undoes the alignment if it succeeds.
	resets reset
}

// reset says what a statement of the client's resets.
type reset uint8

const (
	resetNothing  reset = iota
	resetPart           // RESET ALL or DISCARD ALL beside other statements, which may take it back
	resetSettings       // RESET ALL, alone
	resetAll            // DISCARD ALL, alone
)

// maxLedger bounds the entries of one server connection. A client that
// pipelines more is not read until replies have come.
const maxLedger = 1 << 16

// ledger is the FIFO of what a server still owes. The zero value is ready.
// Invariant: len(ring) is 0 or a power of two, n <= len(ring).
type ledger struct {
	ring []entry
	head int
	n    int
}

func (l *ledger) empty() bool { return l.n == 0 }
func (l *ledger) len() int    { return l.n }

func (l *ledger) push(e entry) {
	if l.n == len(l.ring) {
		l.grow()
	}
	l.ring[(l.head+l.n)&(len(l.ring)-1)] = e
	l.n++
}

func (l *ledger) grow() {
	size := max(8, 2*len(l.ring))
	ring := make([]entry, size)
	for i := range l.n {
		ring[i] = l.at(i)
	}
	l.ring, l.head = ring, 0
}

// at returns entry i counted from the head; i < len.
func (l *ledger) at(i int) entry { return l.ring[(l.head+i)&(len(l.ring)-1)] }

func (l *ledger) pop() entry {
	e := l.ring[l.head]
	l.head = (l.head + 1) & (len(l.ring) - 1)
	l.n--
	return e
}

// removeRange deletes entries from to to-1, keeping the order of the others.
func (l *ledger) removeRange(from, to int) {
	mask := len(l.ring) - 1
	for i := to; i < l.n; i++ {
		l.ring[(l.head+from+i-to)&mask] = l.ring[(l.head+i)&mask]
	}
	l.n -= to - from
}

// trim gives a ring back that one long pipeline has grown.
func (l *ledger) trim() {
	if l.n == 0 && len(l.ring) > 64 {
		l.ring, l.head = nil, 0
	}
}
