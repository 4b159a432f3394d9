//go:build linux

package eventloop

import "sync"

// Buffers are borrowed only while bytes are in them: an idle conn has none.
// The pools are process-wide because conns move between loops.

// keepClasses are the sizes in which unconsumed bytes are kept.
var keepClasses = [...]int{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}

var keepPools [len(keepClasses)]sync.Pool

// keepBuf holds the delivered and unconsumed bytes of one conn.
type keepBuf struct {
	b     []byte // the whole of it
	r, w  int    // b[r:w] is kept
	class int    // index into keepClasses; -1 = too large for a pool
}

func newKeepBuf(size int) *keepBuf {
	for i, class := range keepClasses {
		if size > class {
			continue
		}
		if k, ok := keepPools[i].Get().(*keepBuf); ok {
			return k
		}
		return &keepBuf{b: make([]byte, class), class: i}
	}
	return &keepBuf{b: make([]byte, size), class: -1}
}

func (k *keepBuf) free() {
	if k != nil && k.class >= 0 {
		k.r, k.w = 0, 0
		keepPools[k.class].Put(k)
	}
}

func (k *keepBuf) bytes() []byte {
	if k == nil {
		return nil
	}
	return k.b[k.r:k.w:k.w]
}

func (k *keepBuf) len() int {
	if k == nil {
		return 0
	}
	return k.w - k.r
}

// append adds p and returns the buffer to go on with, which is another one
// when k is too small.
func (k *keepBuf) append(p []byte) *keepBuf {
	switch {
	case k == nil:
		k = newKeepBuf(len(p))
	case k.w+len(p) <= len(k.b):
	case k.len()+len(p) <= len(k.b)/2: // moving is cheap against what was consumed since
		k.w = copy(k.b, k.b[k.r:k.w])
		k.r = 0
	default:
		bigger := newKeepBuf(max(k.len()+len(p), min(2*len(k.b), keepClasses[len(keepClasses)-1])))
		bigger.w = copy(bigger.b, k.b[k.r:k.w])
		k.free()
		k = bigger
	}
	k.w += copy(k.b[k.w:], p)
	return k
}

// chunk is a link of a backlog.
type chunk struct {
	next *chunk
	r, w int
	b    [16<<10 - 24]byte
}

var chunkPool = sync.Pool{New: func() any { return new(chunk) }}

// backlog is what a socket has not taken yet.
type backlog struct {
	head, tail *chunk
	size       int
}

func (q *backlog) append(p []byte) {
	q.size += len(p)
	for len(p) > 0 {
		if q.tail == nil || q.tail.w == len(q.tail.b) {
			c := chunkPool.Get().(*chunk)
			c.next, c.r, c.w = nil, 0, 0
			if q.tail == nil {
				q.head = c
			} else {
				q.tail.next = c
			}
			q.tail = c
		}
		n := copy(q.tail.b[q.tail.w:], p)
		q.tail.w += n
		p = p[n:]
	}
}

// segments appends the first parts of the backlog to segs, as far as its
// capacity goes.
func (q *backlog) segments(segs [][]byte) [][]byte {
	for c := q.head; c != nil && len(segs) < cap(segs); c = c.next {
		segs = append(segs, c.b[c.r:c.w])
	}
	return segs
}

// advance forgets the first n bytes.
func (q *backlog) advance(n int) {
	q.size -= n
	for n > 0 {
		c := q.head
		m := min(n, c.w-c.r)
		c.r += m
		n -= m
		if c.r < c.w {
			return
		}
		q.head = c.next
		if q.head == nil {
			q.tail = nil
		}
		chunkPool.Put(c)
	}
}

func (q *backlog) drop() { q.advance(q.size) }
