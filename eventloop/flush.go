//go:build linux

package eventloop

// Flush sends what was written so far, instead of at the end of the running
// call. It is worth a call before something that takes a lock and parks a conn:
// the system calls then happen outside the lock.
func (l *Loop) Flush() { l.flushDirty() }
