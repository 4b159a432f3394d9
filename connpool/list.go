package connpool

// link makes its owner a member of a list without allocating. A link is in at
// most one list; which one is known by the owner's state. Whoever makes the
// owner sets owner, once.
type link[T any] struct {
	prev, next *link[T]
	owner      *T
}

// list is a nil-terminated doubly linked list of links embedded in their
// owners. The zero value is empty. No link points at the list, so that a
// slice of lists may grow.
type list[T any] struct {
	head, tail *link[T]
}

func (l *list[T]) front() *T {
	if l.head == nil {
		return nil
	}
	return l.head.owner
}

func (l *list[T]) pushFront(k *link[T]) {
	k.prev, k.next = nil, l.head
	if l.head != nil {
		l.head.prev = k
	} else {
		l.tail = k
	}
	l.head = k
}

func (l *list[T]) pushBack(k *link[T]) {
	k.prev, k.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = k
	} else {
		l.head = k
	}
	l.tail = k
}

func (l *list[T]) remove(k *link[T]) {
	if k.prev != nil {
		k.prev.next = k.next
	} else {
		l.head = k.next
	}
	if k.next != nil {
		k.next.prev = k.prev
	} else {
		l.tail = k.prev
	}
	k.prev, k.next = nil, nil // what has left must not keep others from being collected
}
