package differential

import "github.com/jackc/pgx/v5/pgproto3"

// tracker knows from the messages sent and received when the replies to what
// was sent are complete. It models the part of PostgreSQL's main loop that
// decides which message is answered by what (manual, "Message Flow"): an error
// in an extended batch skips to the Sync, COPY IN swallows Sync and Flush, and
// COPY messages outside COPY are ignored.
type tracker struct {
	queue    []expected
	skipping bool // an error happened in a batch whose Sync has not been sent
	copying  bool // the server waits for CopyData and its end has not been sent
}

// expected is a sent message that is still to be answered.
type expected struct {
	kind    byte // message type, frontend
	flushed bool // the server will send the answer without being asked again
}

// sent appends a message.
func (t *tracker) sent(m pgproto3.FrontendMessage) {
	kind := typeOf(m)
	if t.copying {
		if kind == 'c' || kind == 'f' {
			t.copying = false
		}
		return // Sync and Flush too are swallowed
	}
	if t.skipping {
		if kind != 'S' {
			return
		}
		t.skipping = false
	}
	switch kind {
	case 'H':
		t.flush()
	case 'Q', 'S', 'F':
		t.queue = append(t.queue, expected{kind: kind})
		t.flush()
	default:
		t.queue = append(t.queue, expected{kind: kind})
	}
}

func (t *tracker) flush() {
	for i := range t.queue {
		t.queue[i].flushed = true
	}
}

// complete means that nothing more will come before something is sent.
func (t *tracker) complete() bool {
	t.dropCopy()
	return t.copying || len(t.queue) == 0 || !t.queue[0].flushed
}

// dropCopy forgets COPY messages at the head: outside COPY they are ignored.
func (t *tracker) dropCopy() {
	for len(t.queue) > 0 && (t.queue[0].kind == 'd' || t.queue[0].kind == 'c' || t.queue[0].kind == 'f') {
		t.queue = t.queue[1:]
	}
}

// received takes the type of a reply and reports whether it was due at all.
func (t *tracker) received(reply byte) (due bool) {
	if reply == 'N' || reply == 'S' || reply == 'A' {
		return true
	}
	t.dropCopy()
	if len(t.queue) == 0 {
		return false
	}
	head := t.queue[0].kind
	switch {
	case reply == 'G':
		t.copyStarted()
	case head == 'Q' || head == 'S' || head == 'F':
		if reply == 'Z' {
			t.queue = t.queue[1:]
		}
	case reply == 'E':
		t.skip()
	case answers(head, reply):
		t.queue = t.queue[1:]
	}
	return true
}

// answers reports whether reply is the last one to an extended message.
func answers(kind, reply byte) bool {
	switch kind {
	case 'P':
		return reply == '1'
	case 'B':
		return reply == '2'
	case 'C':
		return reply == '3'
	case 'D':
		return reply == 'T' || reply == 'n'
	case 'E':
		return reply == 'C' || reply == 'I' || reply == 's'
	}
	return false
}

// skip drops what the server will not look at: everything up to the Sync.
func (t *tracker) skip() {
	for i, e := range t.queue {
		if e.kind == 'S' {
			t.queue = t.queue[i:]
			return
		}
	}
	t.queue, t.skipping = nil, true
}

// copyStarted drops what belongs to the COPY behind the head: its data, its
// end, and every Sync in between.
func (t *tracker) copyStarted() {
	for i, e := range t.queue[1:] {
		if e.kind == 'c' || e.kind == 'f' {
			t.queue = append(t.queue[:1:1], t.queue[i+2:]...)
			return
		}
	}
	t.queue, t.copying = t.queue[:1], true
}

// typeOf is the type byte of a frontend message after the startup.
func typeOf(m pgproto3.FrontendMessage) byte {
	switch m.(type) {
	case *pgproto3.Query:
		return 'Q'
	case *pgproto3.Parse:
		return 'P'
	case *pgproto3.Bind:
		return 'B'
	case *pgproto3.Describe:
		return 'D'
	case *pgproto3.Execute:
		return 'E'
	case *pgproto3.Close:
		return 'C'
	case *pgproto3.Flush:
		return 'H'
	case *pgproto3.Sync:
		return 'S'
	case *pgproto3.FunctionCall:
		return 'F'
	case *pgproto3.CopyData:
		return 'd'
	case *pgproto3.CopyDone:
		return 'c'
	case *pgproto3.CopyFail:
		return 'f'
	case *pgproto3.Terminate:
		return 'X'
	}
	panic("bug: no type for this message")
}
