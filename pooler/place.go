package pooler

import (
	"go.uber.org/zap"

	"github.com/multipooler/multipooler/eventloop"
)

// maxPlaces bounds the free places that a loop keeps.
const maxPlaces = 1024

// place is a client's place in the queue for a server connection. It is the
// message that carries a grant to another loop, too, so that neither waiting nor
// granting allocates; clients that do not wait have none.
type place struct {
	waiter waiter
	c      *clientConn

	// The grant on its way to another loop.
	sc *serverConn
	to *worker
}

func (w *worker) takePlace() *place {
	if n := len(w.places); n > 0 {
		pl := w.places[n-1]
		w.places = w.places[:n-1]
		return pl
	}
	pl := &place{}
	pl.waiter.Owner = pl
	return pl
}

func (w *worker) givePlace(pl *place) {
	pl.c, pl.sc, pl.to = nil, nil, nil
	if len(w.places) < maxPlaces {
		w.places = append(w.places, pl)
	}
}

// Run implements eventloop.Task: the grant has come to the client's loop.
func (pl *place) Run(*eventloop.Loop) {
	c, sc, w := pl.c, pl.sc, pl.to
	if err := w.loop.Adopt(sc.ec); err != nil {
		w.p.log.Warn("server connection lost between loops", zap.Error(err))
		w.lost(sc)
		c.refused(errServerGone)
		return
	}
	sc.w = w
	c.granted(sc)
}
