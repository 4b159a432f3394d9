package faultconn

// lane is one direction of a connection with its faults. It is used by one
// goroutine at a time (the one that reads, or the one that writes).
type lane struct {
	framer   framer
	faults   []Fault // not yet fired, of this direction
	bytes    int64
	messages int64
	piece    int // largest piece to deliver; 0 = no limit
}

func newLane(w *wire, d Direction, faults []Fault) *lane {
	l := &lane{framer: newFramer(w, d)}
	for _, f := range faults {
		if f.At.Direction == d {
			l.faults = append(l.faults, f)
		}
	}
	return l
}

// admit tells how many of the bytes p may pass now and which fault, if any,
// happens after them. It counts those bytes as passed.
func (l *lane) admit(p []byte) (n int, fault *Fault) {
	if f := l.due(); f != nil {
		return 0, f
	}
	if l.piece > 0 && len(p) > l.piece {
		p = p[:l.piece]
	}
	for n < len(p) {
		took, end := l.framer.next(p[n : n+l.untilByteFault(len(p)-n)])
		n += took
		l.bytes += int64(took)
		if end {
			l.messages++
		}
		before := l.piece
		if f := l.due(); f != nil || l.piece != before {
			return n, f // a new piece size holds for the bytes behind its point
		}
	}
	return n, nil
}

// untilByteFault bounds a step of at most limit bytes by the nearest byte fault.
func (l *lane) untilByteFault(limit int) int {
	for _, f := range l.faults {
		if f.At.InBytes {
			limit = int(min(int64(limit), f.At.N-l.bytes))
		}
	}
	return limit
}

// due removes and returns the first fault whose point has been reached. A
// Fragment is applied here; it needs nothing from the caller.
func (l *lane) due() *Fault {
	for i := 0; i < len(l.faults); i++ {
		f := l.faults[i]
		reached := l.bytes >= f.At.N
		if !f.At.InBytes {
			reached = l.messages >= f.At.N && l.framer.atBoundary()
		}
		if !reached {
			continue
		}
		l.faults = append(l.faults[:i], l.faults[i+1:]...)
		if f.Action == Fragment {
			l.piece = max(1, f.Size)
			i--
			continue
		}
		return &f
	}
	return nil
}
