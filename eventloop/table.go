//go:build linux

package eventloop

import (
	"fmt"
	"sync/atomic"
)

const (
	tableChunk  = 1 << 9 // entries in a chunk: 4 KiB, allocated when the first of its descriptors is attached
	tableChunks = 1 << 15
	maxFD       = tableChunk * tableChunks // 16.7 million; Linux allows 1,048,576 by default (fs.nr_open)
)

// fdTable maps a descriptor to its Conn for the whole process, because a conn
// may be registered with one loop and owned by another. It grows by chunks
// that never move, so readers need no lock.
type fdTable struct {
	chunks [tableChunks]atomic.Pointer[[tableChunk]atomic.Pointer[Conn]]
	used   atomic.Int64 // descriptors below this may be in use
}

var conns fdTable

// generations numbers registrations, process-wide. It never hands out 0, which
// marks the eventfds. It wraps after 4 billion registrations; an event would
// have to stay fetched for that long to be mistaken.
var generations atomic.Uint32

func nextGeneration() uint32 {
	for {
		if g := generations.Add(1); g != 0 {
			return g
		}
	}
}

func (t *fdTable) set(fd int, c *Conn) error {
	if fd < 0 || fd >= maxFD {
		return fmt.Errorf("descriptor %d: outside of 0..%d", fd, maxFD-1)
	}
	slot := &t.chunks[fd/tableChunk]
	chunk := slot.Load()
	if chunk == nil {
		slot.CompareAndSwap(nil, new([tableChunk]atomic.Pointer[Conn]))
		chunk = slot.Load()
	}
	chunk[fd%tableChunk].Store(c)
	for {
		used := t.used.Load()
		if int64(fd) < used || t.used.CompareAndSwap(used, int64(fd)+1) {
			return nil
		}
	}
}

// clear must come before the descriptor is closed or handed out: from then on
// its number can be used for another conn.
func (t *fdTable) clear(fd int) {
	t.chunks[fd/tableChunk].Load()[fd%tableChunk].Store(nil)
}

func (t *fdTable) get(fd int) *Conn {
	if fd < 0 || fd >= maxFD {
		return nil
	}
	chunk := t.chunks[fd/tableChunk].Load()
	if chunk == nil {
		return nil
	}
	return chunk[fd%tableChunk].Load()
}

// each calls f for every attached conn, whoever owns it.
func (t *fdTable) each(f func(*Conn)) {
	for fd := range int(t.used.Load()) {
		if c := t.get(fd); c != nil {
			f(c)
		}
	}
}
