package pooler

import (
	"runtime"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/multipooler/multipooler/config"
	"github.com/multipooler/multipooler/eventloop"
)

// Few loops for light load: one loop is 15–20 % cheaper per query than two
// (better batches, fewer wake-ups across cores). All clients start on one loop;
// when the process uses more than spreadAbove of a core per active loop, another
// loop takes its share of the clients, and below gatherBelow it gives them back.
// Process CPU, because a loop's busy time contains its wait for a core.
const (
	governorPeriod = 100 * time.Millisecond
	spreadAbove    = 0.60
	gatherBelow    = 0.35
	spreadAfter    = 2  // periods in a row
	gatherAfter    = 20 // periods in a row
)

// governor decides how many loops are active. It is a pure state machine over
// samples of the process's CPU time.
type governor struct {
	lastCPU   time.Duration
	lastTime  time.Time
	hot, cold int
}

// sample returns the number of loops that should be active.
func (g *governor) sample(now time.Time, cpu time.Duration, active, most int) int {
	elapsed := now.Sub(g.lastTime)
	used := cpu - g.lastCPU
	first := g.lastTime.IsZero()
	g.lastTime, g.lastCPU = now, cpu
	if first || elapsed <= 0 {
		return active
	}
	load := float64(used) / float64(elapsed)
	switch {
	case load > spreadAbove*float64(active) && active < most:
		g.hot, g.cold = g.hot+1, 0
	case active > 1 && load < gatherBelow*float64(active-1):
		g.hot, g.cold = 0, g.cold+1
	default:
		g.hot, g.cold = 0, 0
	}
	if g.hot >= spreadAfter {
		g.hot = 0
		return active + 1
	}
	if g.cold >= gatherAfter {
		g.cold = 0
		return active - 1
	}
	return active
}

// loops is how many event loops there are.
func loops(cfg *config.Config) int {
	if cfg.EventLoops > 0 {
		return cfg.EventLoops
	}
	return runtime.GOMAXPROCS(0)
}

func (p *Pooler) govern(g *governor, now time.Time) {
	active := int(p.active.Load())
	want := g.sample(now, processCPU(), active, len(p.workers))
	if want == active {
		return
	}
	p.active.Store(int32(want))
	p.log.Debug("event loops in use", zap.Int("loops", want))
	total := int64(0)
	for _, w := range p.workers {
		total += w.n.Load()
	}
	share := total / int64(want)
	for i, w := range p.workers {
		keep := share
		if i >= want {
			keep = 0
		}
		w.loop.Post(task(func(*eventloop.Loop) { w.shed(int(w.n.Load() - keep)) }))
	}
}

func processCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// place chooses the loop of a new client: the active one with the fewest.
func (p *Pooler) place() *worker {
	active := min(max(int(p.active.Load()), 1), len(p.workers))
	best := p.workers[0]
	for _, w := range p.workers[1:active] {
		if w.n.Load() < best.n.Load() {
			best = w
		}
	}
	return best
}

// shed moves n clients to other loops: those at rest now, the others as they
// come to rest.
func (w *worker) shed(n int) {
	w.surplus = max(n, 0)
	for c := w.first; c != nil && w.surplus > 0; {
		next := c.next
		c.moveIfSurplus()
		c = next
	}
}

// moveIfSurplus moves the client if its loop has too many and it is at rest.
func (c *clientConn) moveIfSurplus() {
	w := c.w
	if w.surplus <= 0 || w.p.draining.Load() || c.dead || c.login != nil || !c.sess.Idle() || c.ec.Backlog() > 0 {
		return
	}
	to := w.p.place()
	if to == w {
		w.surplus = 0
		return
	}
	w.surplus--
	c.disarm()
	w.remove(c)
	c.home.Store(nil)
	c.ec.GiveTo(to.id())
	if !to.loop.Post(task(func(*eventloop.Loop) { to.takeOver(c) })) {
		w.p.lostBetweenLoops(c)
	}
}

// takeOver makes a client of another loop this loop's.
func (w *worker) takeOver(c *clientConn) {
	if err := w.loop.Adopt(c.ec); err != nil {
		w.p.lostBetweenLoops(c)
		return
	}
	w.add(c)
	c.timeUp(w.now())
	if w.p.draining.Load() {
		c.drain()
	}
}

// lostBetweenLoops ends a client whose new loop cannot take it: the process is
// about to end.
func (p *Pooler) lostBetweenLoops(c *clientConn) {
	c.dead = true
	c.home.Store(p.workers[0]) // where whoever still looks for it learns that
	c.ec.Discard()
	p.clientEnded(c, "shutdown", "no loop takes the client any more")
}
