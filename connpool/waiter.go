package connpool

// Class tells what a borrow is for.
type Class uint8

const (
	Regular  Class = iota // one statement outside a transaction
	Reserved              // a transaction, pin, cursor or COPY
)

// Borrow is what a borrower wants of a connection.
type Borrow struct {
	Class    Class
	Settings SettingsID // preferred alignment
	Loop     int        // the borrower's loop; negative: none
}

// Waiter is a place in a user pool's queue. A session embeds one by value, sets
// Owner once and uses it again and again; it must not be copied or reused while
// it is queued.
type Waiter[R Resource] struct {
	// Owner is the shell's: a pointer to the embedding session (a pointer in an
	// interface does not allocate).
	Owner any

	// Guarded by the Arbiter's lock while queued; the owner's otherwise.
	pool   *UserPool[R]
	borrow Borrow
	seq    uint64 // order of arrival at the Arbiter
	since  int64
	skips  int // how often it was overtaken while it was the head
	queued bool
	inPool link[Waiter[R]]
	inLoop link[Waiter[R]]
}

// Borrow is what the waiter asked for.
func (w *Waiter[R]) Borrow() Borrow { return w.borrow }

// Pool is the user pool it waits or waited in.
func (w *Waiter[R]) Pool() *UserPool[R] { return w.pool }

// Since is when it began to wait.
func (w *Waiter[R]) Since() int64 { return w.since }

// queue is a user pool's waiters in order of arrival, and the same waiters
// once more by loop, so that a release finds the oldest one of its own loop at
// once.
type queue[R Resource] struct {
	n      int
	all    list[Waiter[R]]
	byLoop []list[Waiter[R]] // index: loop; as long as the highest loop that ever waited
}

func (q *queue[R]) push(w *Waiter[R]) {
	q.n++
	w.inPool.owner, w.inLoop.owner = w, w
	q.all.pushBack(&w.inPool)
	if loop := w.borrow.Loop; loop >= 0 {
		for loop >= len(q.byLoop) {
			q.byLoop = append(q.byLoop, list[Waiter[R]]{})
		}
		q.byLoop[loop].pushBack(&w.inLoop)
	}
	w.queued = true
}

// remove is the linearization point of every outcome.
func (q *queue[R]) remove(w *Waiter[R]) {
	q.n--
	q.all.remove(&w.inPool)
	if loop := w.borrow.Loop; loop >= 0 {
		q.byLoop[loop].remove(&w.inLoop)
	}
	w.queued = false
}

// pop removes the waiter that a release on loop serves: the oldest one of that
// loop, unless that would overtake the head more than maxSkips times. The queue
// must not be empty.
func (q *queue[R]) pop(loop, maxSkips int) *Waiter[R] {
	head := q.all.front()
	w := head
	if head.skips < maxSkips && loop >= 0 && loop < len(q.byLoop) {
		if local := q.byLoop[loop].front(); local != nil && local != head {
			head.skips++
			w = local
		}
	}
	q.remove(w)
	return w
}
