//go:build linux

package eventloop

import (
	"testing"

	"golang.org/x/sys/unix"
)

// While a loop looks at an event of a parked conn, somebody's TryClaim fails.
// If the event brings nothing, the handler must hear of it all the same: it is
// the one that makes up for the failed claim.
func TestAnEventOnAParkedConnReachesItsHandlerAlsoWithoutBytes(t *testing.T) {
	l := startLoop(t, 0, Config{})
	fd, peer := pair(t)
	defer unix.Close(peer)
	var got []int
	c := attach(t, l, fd, &funcs{received: func(c *Conn, p []byte) int {
		got = append(got, len(p))
		c.Consume(len(p))
		c.Park()
		return 0
	}})
	do(t, l, func() {
		c.Park()
		l.dispatch(int(c.fd), c.word.Load().generation(), unix.EPOLLIN)
	})
	if len(got) != 1 || got[0] != 0 {
		t.Errorf("the handler was called with %v bytes, want once with none", got)
	}
	if !c.TryClaim(0) {
		t.Fatal("the conn is not parked again")
	}
	do(t, l, func() {
		if err := l.Adopt(c); err != nil {
			t.Error(err)
		}
	})
}
