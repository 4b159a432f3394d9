package pooler

import (
	"cmp"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/multipooler/multipooler/admin"
	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/session"
)

// Pooler implements admin.Source. Pools and Totals read counters; the rest asks
// each loop for its part.
var _ admin.Source = (*Pooler)(nil)

// Pools implements admin.Source. Routes that differ only in what their startup
// packet says are one pool to the operator.
func (p *Pooler) Pools() []admin.PoolRow {
	type name struct{ database, user string }
	rows := make(map[name]*admin.PoolRow)
	now := eventloop.Now()
	for _, t := range p.targets {
		live := make(map[connpool.Handle]connpool.PoolStats)
		for _, up := range t.arb.Pools() {
			live[up.Handle()] = up.Stats()
		}
		capacity := t.arb.Stats().Capacity
		for _, r := range t.snapshot() {
			row := rows[name{r.database, r.user}]
			if row == nil {
				row = &admin.PoolRow{Database: r.database, User: r.user, Mode: modeName(r.mode), Capacity: capacity}
				rows[name{r.database, r.user}] = row
			}
			addRoute(row, r, live[r.handle], now)
		}
	}
	out := make([]admin.PoolRow, 0, len(rows))
	for _, row := range rows {
		out = append(out, *row)
	}
	return out
}

func addRoute(row *admin.PoolRow, r *route, s connpool.PoolStats, now int64) {
	row.ClientsActive += s.Active
	row.ClientsWaiting += s.Waiting
	row.ClientsIdle += max(int(r.clients.Load())-s.Active-s.Waiting, 0)
	row.ServersActive += s.Active
	row.ServersIdle += s.Idle
	row.ServersDialing += s.Dialing
	row.ServersDraining += s.Draining
	row.Pinned += int(r.pinned.Load())
	if s.Waiting > 0 {
		row.MaxWait = max(row.MaxWait, time.Duration(now-s.WaitingSince))
	}
	row.Stats.Assignments += r.assignments.Load()
	row.Stats.Transactions += r.transactions.Load()
	row.Stats.Queries += r.queries.Load()
	row.Stats.BytesReceived += r.bytesReceived.Load()
	row.Stats.BytesSent += r.bytesSent.Load()
	row.Stats.WaitTime += time.Duration(r.waited.Load())
}

// snapshot is the routes of this moment.
func (t *target) snapshot() []*route {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*route, 0, len(t.routes))
	for _, r := range t.routes {
		out = append(out, r)
	}
	return out
}

func modeName(m session.Mode) string {
	return [...]string{session.ModeTransaction: "transaction", session.ModeSession: "session", session.ModeStatement: "statement"}[m]
}

// askLoops runs f on every loop and waits, but not for a loop that has ended.
func (p *Pooler) askLoops(f func(w *worker)) {
	done := make(chan struct{}, len(p.workers))
	asked := 0
	for _, w := range p.workers {
		if w.loop.Post(task(func(*eventloop.Loop) { f(w); done <- struct{}{} })) {
			asked++
		}
	}
	for range asked {
		<-done
	}
}

// Clients implements admin.Source.
func (p *Pooler) Clients() []admin.ClientRow {
	perLoop := make([][]admin.ClientRow, len(p.workers))
	p.askLoops(func(w *worker) {
		for c := w.first; c != nil; c = c.next {
			if c.sess != nil && !c.dead {
				perLoop[w.id()] = append(perLoop[w.id()], c.row())
			}
		}
	})
	var out []admin.ClientRow
	for _, rows := range perLoop {
		out = append(out, rows...)
	}
	return out
}

// row describes the client; on its loop.
func (c *clientConn) row() admin.ClientRow {
	now := c.w.now()
	r := admin.ClientRow{
		ID: c.id, User: c.route.user, Database: c.route.database, State: "idle",
		Connected: wall(c.connected), ApplicationName: c.sess.AppName(), Loop: c.w.id(),
		TLS: tlsName(c.ec), Pins: reasons(c.sess.Pins()),
	}
	r.Addr, r.Port = "unix", 0
	if !c.peer.unix {
		r.Addr, r.Port = c.peer.addr.Addr().String(), int(c.peer.addr.Port())
	}
	r.LocalAddr, r.LocalPort = split(eventloop.LocalAddr(c.ec.FD()))
	if c.since != 0 {
		r.Requested = wall(c.since)
	}
	switch {
	case c.sess.Waiting():
		r.State = "waiting"
		r.Wait = time.Duration(now - c.since)
	case c.sc != nil:
		r.State = "active"
		r.Server = c.sc.pc.ID()
	}
	return r
}

// Servers implements admin.Source.
func (p *Pooler) Servers() []admin.ServerRow {
	perLoop := make([][]admin.ServerRow, len(p.workers))
	p.askLoops(func(w *worker) {
		for c := w.first; c != nil; c = c.next {
			if c.sc != nil {
				perLoop[w.id()] = append(perLoop[w.id()], c.sc.row())
			}
		}
	})
	var out []admin.ServerRow
	seen := make(map[uint64]bool)
	for _, rows := range perLoop {
		for _, r := range rows {
			seen[r.ID] = true
			out = append(out, r)
		}
	}
	// The others belong to nobody or to a loop that settles or drains them:
	// only what never changes is read.
	p.servers.mu.Lock()
	defer p.servers.mu.Unlock()
	for sc := range p.servers.all {
		if seen[sc.pc.ID()] {
			continue
		}
		key := sc.pc.Pool().Key()
		r := admin.ServerRow{
			ID: sc.pc.ID(), User: key.User, Database: key.Database, State: sc.pc.State().String(),
			Addr: sc.target.cfg.Host, Port: sc.target.cfg.Port, Connected: wall(sc.opened), RemotePID: sc.pid,
		}
		out = append(out, r)
	}
	return out
}

// row describes a borrowed server connection; on its loop.
func (sc *serverConn) row() admin.ServerRow {
	key := sc.pc.Pool().Key()
	r := admin.ServerRow{
		ID: sc.pc.ID(), User: key.User, Database: key.Database, State: "active",
		Addr: sc.target.cfg.Host, Port: sc.target.cfg.Port, Connected: wall(sc.opened),
		Requested: wall(sc.client.since), Client: sc.client.id, RemotePID: sc.pid,
		TLS: tlsName(sc.ec), ApplicationName: sc.client.sess.AppName(), Loop: sc.w.id(),
		Settings: uint64(sc.srv.Settings().ID()), Pins: reasons(sc.client.sess.Pins()),
	}
	if sc.cancels > 0 {
		r.State = "active_cancel"
	}
	r.LocalAddr, r.LocalPort = split(eventloop.LocalAddr(sc.ec.FD()))
	return r
}

// Pins implements admin.Source.
func (p *Pooler) Pins() []admin.PinRow {
	perLoop := make([][]admin.PinRow, len(p.workers))
	p.askLoops(func(w *worker) {
		for c := w.first; c != nil; c = c.next {
			if c.sc == nil || c.sess.Pins() == 0 {
				continue
			}
			perLoop[w.id()] = append(perLoop[w.id()], admin.PinRow{
				Database: c.route.database, User: c.route.user, Client: c.id, ServerPID: c.sc.pid,
				Reasons: reasons(c.sess.Pins()), Since: wall(cmp.Or(c.pinnedAt, c.since)),
			})
		}
	})
	var out []admin.PinRow
	for _, rows := range perLoop {
		out = append(out, rows...)
	}
	return out
}

// Databases implements admin.Source.
func (p *Pooler) Databases() []admin.DatabaseRow {
	var out []admin.DatabaseRow
	cfg := p.config()
	for i := range cfg.Targets {
		t := &cfg.Targets[i]
		for _, name := range t.Databases {
			out = append(out, admin.DatabaseRow{
				Name: name, Host: t.Host, Port: t.Port, Database: name, PoolSize: t.Capacity,
				ServerLifetime: cfg.Pool.RegularMaxLifetime, Mode: string(t.PoolMode),
			})
		}
	}
	return out
}

// Users implements admin.Source.
func (p *Pooler) Users() []admin.UserRow {
	var out []admin.UserRow
	cfg := p.config()
	for _, name := range p.users.Load().Names() {
		out = append(out, admin.UserRow{Name: name, Mode: string(cfg.Users[name].PoolMode)})
	}
	return out
}

// Config implements admin.Source.
func (p *Pooler) Config() []admin.ConfigRow {
	var out []admin.ConfigRow
	for _, e := range p.config().Entries() {
		out = append(out, admin.ConfigRow{Key: e.Key, Value: e.Value, Changeable: !e.Restart, Origin: e.Source.String()})
	}
	return out
}

func reasons(pins session.Pin) []string {
	if pins == 0 {
		return nil
	}
	return strings.Split(pins.String(), ",")
}

// wall turns an instant of the loops' clock into a time of day.
func wall(at int64) time.Time {
	return time.Now().Add(time.Duration(at - eventloop.Now()))
}

func split(a net.Addr) (host string, port int) {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.IP.String(), t.Port
	}
	h, s, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String(), 0
	}
	n, _ := strconv.Atoi(s)
	return h, n
}
