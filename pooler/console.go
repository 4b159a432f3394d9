package pooler

import (
	"context"
	"fmt"
	"net"
	"slices"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/admin"
	"github.com/multipooler/multipooler/protocol"
)

// isConsole tells whether a database name is the console's.
func isConsole(database string) bool { return database == "multipooler" || database == "pgbouncer" }

// console hands an authenticated client over to the admin console, which runs
// on a goroutine over an ordinary connection.
func (lg *login) console() {
	c, p := lg.c, lg.c.w.p
	s := &lg.packet
	if !slices.Contains(p.config().AdminUsers, s.User) {
		p.stats.logins[loginFailed].Add(1)
		lg.refuse(&protocol.Error{
			Code: "42501", Message: fmt.Sprintf("user %q may not use the console", s.User),
			Hint: "The users of the console are --admin-users.",
		})
		return
	}
	w := c.w
	c.disarm()
	w.remove(c)
	c.dead = true
	if lg.taken > 0 { // within a delivery
		c.ec.Consume(lg.taken)
	}
	nc, rest, err := c.ec.DetachConn()
	p.loginOver()
	if err != nil {
		p.log.Warn("console connection lost", zap.Uint64("client", c.id), zap.Error(err))
		return
	}
	p.stats.logins[loginOK].Add(1)
	pid, key := p.cancels.issue(c, minorOf(s)) // of no use: the client is dead to cancels
	p.goes.Go(func() {
		defer p.cancels.revoke(pid)
		defer nc.Close()
		p.serveConsole(c.id, s, nc, rest, pid, key)
	})
}

func (p *Pooler) serveConsole(id uint64, s *protocol.Startup, nc net.Conn, rest []byte, pid uint32, key []byte) {
	err := p.console.Serve(p.ctx, nc, admin.ConsoleSession{
		ID: id, User: s.User, Database: s.Database, Admin: true, ProcessID: pid, SecretKey: key, Received: rest,
	})
	p.log.Info("console session ended", zap.Uint64("client", id), zap.String("user", s.User), zap.Error(err))
}

// bindHTTP and serveHTTP are the side door: metrics, probes, status page.
func (p *Pooler) bindHTTP(ctx context.Context, bound *Listeners) (net.Listener, error) {
	at := p.config().HTTPListen
	if at == "" {
		return nil, nil
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", at)
	if err != nil {
		return nil, fmt.Errorf("listen on --http-listen %s: %w", at, err)
	}
	bound.HTTP = ln.Addr()
	return ln, nil
}

func (p *Pooler) serveHTTP(ctx context.Context, ln net.Listener) {
	metrics := admin.NewMetrics(admin.MetricsConfig{Source: p, Version: p.version.Number, Revision: p.version.Revision, Service: p.config().ServiceName})
	h := admin.NewHTTP(admin.HTTPConfig{
		State: p.state, Source: p, Registry: admin.NewRegistry(metrics), Version: p.version.Number, Log: p.log,
	})
	if err := h.Run(ctx, ln); err != nil && ctx.Err() == nil {
		p.log.Error("HTTP server ended", zap.Error(err))
	}
}
