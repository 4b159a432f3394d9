package pooler

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/multipooler/multipooler/admin"
	"github.com/multipooler/multipooler/auth"
	"github.com/multipooler/multipooler/certs"
	"github.com/multipooler/multipooler/config"
	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/session"
)

// noisyLines is how many lines of one kind a second tell what goes on; more only
// fill disks.
const noisyLines = 10

// Pooler is a running multipooler.
type Pooler struct {
	cfg        atomic.Pointer[config.Config]
	log        *zap.Logger
	noisy      *zap.Logger // for what strangers can cause at will: at most noisyLines of a kind a second, then one in a hundred
	highWater  int         // backlog of a socket at which its source is not read any more; the loop resumes it below a quarter
	workers    []*worker
	targets    []*target
	users      atomic.Pointer[auth.Userlist]
	frontTLS   *certs.Frontend
	processKey *auth.ProcessKey
	interner   session.Interner
	cancels    cancelRegistry
	servers    serverSet
	noClients  *emptied
	state      *admin.State
	loops      int // how many event loops
	console    *admin.Console
	stats      stats
	version    Version

	ctx        context.Context // ends when the drain begins to cut
	background context.Context // ends with the process: dials and cancels of the drain
	goes       sync.WaitGroup  // all goroutines but loops and listeners

	crypto      semaphore // PBKDF2
	cancelSlots semaphore
	nextID      atomic.Uint64
	clients     atomic.Int64 // logged in
	loggingIn   atomic.Int64 // accepted, not logged in
	active      atomic.Int32 // loops that take clients
	draining    atomic.Bool
	cut         atomic.Int64 // sessions that the drain has cut

	reloadFailed atomic.Bool  // the latest one
	configLoaded atomic.Int64 // Unix milliseconds
}

// Version is what multipooler says of itself.
type Version struct{ Number, Revision string }

// Outcome is how a run has ended.
type Outcome struct {
	Cut int // sessions that were cut because the drain timeout had passed
}

// New makes a Pooler; it binds nothing and starts nothing.
func New(cfg *config.Config, version Version, log *zap.Logger) (*Pooler, error) {
	p := &Pooler{log: log, loops: loops(cfg), highWater: int(cfg.HighWater), state: &admin.State{}, version: version, noClients: newEmptied(), servers: serverSet{empty: newEmptied()}}
	p.noisy = log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, time.Second, noisyLines, 100)
	}))
	p.cfg.Store(cfg)
	p.configLoaded.Store(time.Now().UnixMilli())
	mode, err := certs.ParseMode(string(cfg.TLS.Mode))
	if err != nil {
		return nil, err
	}
	if p.frontTLS, err = certs.NewFrontend(certs.FrontendConfig{Mode: mode, CertFile: cfg.TLS.Cert, KeyFile: cfg.TLS.Key, CAFile: cfg.TLS.CA}); err != nil {
		return nil, err
	}
	if p.processKey, err = auth.NewProcessKey(nil); err != nil {
		return nil, err
	}
	users, err := loadUsers(cfg, nil)
	if err != nil {
		return nil, err
	}
	p.users.Store(users)
	for i := range cfg.Targets {
		t, err := newTarget(p, &cfg.Targets[i])
		if err != nil {
			return nil, err
		}
		p.targets = append(p.targets, t)
	}
	p.crypto = newSemaphore(max(1, p.loops-1))
	p.cancelSlots = newSemaphore(cfg.Cancel.Concurrency)
	p.console = admin.NewConsole(admin.ConsoleConfig{Source: p, Version: version.Number, Log: log, OnPanic: func(any) { p.stats.panics.Add(1) }})
	p.state.SetConfigured(true)
	return p, nil
}

// loadUsers reads the user list, or makes one of the targets' own users. A user
// of several targets logs in with the password that stands first.
func loadUsers(cfg *config.Config, previous *auth.Userlist) (*auth.Userlist, error) {
	if cfg.Auth.File != "" {
		return auth.LoadUserlist(cfg.Auth.File, previous)
	}
	passwords := make(map[string]string)
	for i := range cfg.Targets {
		t := &cfg.Targets[i]
		if _, known := passwords[t.User]; !known && t.User != "" && t.Password != "" {
			passwords[t.User] = t.Password.Reveal()
		}
	}
	return auth.Plain(passwords)
}

// Loops is how many event loops Run will run. With GOMAXPROCS above it, busy
// loops wait for their sockets without the scheduler, which is cheaper.
func (p *Pooler) Loops() int { return p.loops }

func (p *Pooler) config() *config.Config { return p.cfg.Load() }

func (p *Pooler) target(name string) *target {
	for _, t := range p.targets {
		if t.cfg.Name == name {
			return t
		}
	}
	return nil
}

// Listeners are the bound addresses, for whoever has asked for port 0.
type Listeners struct {
	Clients []net.Addr
	HTTP    net.Addr // nil when off
}

// Run binds the listeners, serves until ctx ends, drains, and returns when
// every goroutine has ended. ready is called once everything is bound; hard
// ends the drain at once. What is read again comes through reload.
func (p *Pooler) Run(ctx, hard context.Context, reload <-chan Reload, ready func(Listeners)) (Outcome, error) {
	background, stop := context.WithCancel(context.Background())
	defer stop()
	cutting, cut := context.WithCancel(background)
	defer cut()
	p.ctx, p.background = cutting, background

	var bound Listeners
	listeners, err := p.bind(ctx, &bound)
	if err != nil {
		return Outcome{}, err
	}
	httpLn, err := p.bindHTTP(ctx, &bound)
	if err != nil {
		closeAll(listeners)
		return Outcome{}, err
	}
	n := p.loops
	for i := range n {
		w, err := newWorker(p, i)
		if err != nil {
			closeAll(listeners)
			if httpLn != nil {
				httpLn.Close()
			}
			return Outcome{}, fmt.Errorf("start event loop %d: %w", i, err)
		}
		p.workers = append(p.workers, w)
	}
	p.active.Store(1)

	loopCtx, stopLoops := context.WithCancel(background)
	defer stopLoops()
	var running sync.WaitGroup
	for _, w := range p.workers {
		w.loop.Post(task(func(*eventloop.Loop) { w.start() }))
		running.Go(func() {
			if err := w.loop.Run(loopCtx); err != nil {
				p.log.Error("event loop ended", zap.Int("loop", w.id()), zap.Error(err))
			}
		})
	}
	for _, l := range listeners {
		l.start()
	}
	p.state.SetListening(true)
	if httpLn != nil {
		p.goes.Go(func() { p.serveHTTP(background, httpLn) })
	}
	p.goes.Go(func() { p.console.Run(cutting) })
	p.goes.Go(func() { p.keepHouse(cutting, reload) })
	p.log.Info("ready", zap.Any("listen", addresses(bound.Clients)), zap.Int("loops", n), zap.Int("targets", len(p.targets)))
	if ready != nil {
		ready(bound)
	}

	<-ctx.Done()
	p.drain(hard, func() {
		for _, l := range listeners {
			l.stop()
		}
	})
	cut()
	p.cutAll()
	p.awaitServers()
	stop()
	stopLoops()
	running.Wait()
	p.goes.Wait() // last, because loops start them
	return Outcome{Cut: int(p.cut.Load())}, nil
}

func (p *Pooler) bind(ctx context.Context, bound *Listeners) ([]*listener, error) {
	var all []*listener
	for _, at := range p.config().Listeners() {
		l, err := p.listen(ctx, at)
		if err != nil {
			closeAll(all)
			return nil, err
		}
		all = append(all, l)
		bound.Clients = append(bound.Clients, l.ln.Addr())
	}
	return all, nil
}

func closeAll(all []*listener) {
	for _, l := range all {
		l.close()
	}
}

func addresses(all []net.Addr) []string {
	var out []string
	for _, a := range all {
		out = append(out, a.String())
	}
	return out
}

// keepHouse reloads what has changed and spreads load over the loops.
func (p *Pooler) keepHouse(ctx context.Context, reload <-chan Reload) {
	var gov governor
	slow := time.NewTicker(10 * time.Second)
	defer slow.Stop()
	fast := time.NewTicker(governorPeriod)
	defer fast.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-reload:
			p.reload(r)
		case <-slow.C:
			p.pollFiles()
			for _, t := range p.targets {
				t.forget()
			}
		case now := <-fast.C:
			p.govern(&gov, now)
		}
	}
}

// pollFiles takes over certificates and user lists that have changed.
func (p *Pooler) pollFiles() {
	report := func(what string, changed bool, err error) {
		switch {
		case err != nil:
			p.log.Error("reload failed, the old one stays in force", zap.String("what", what), zap.Error(err))
		case changed:
			p.log.Info("reloaded", zap.String("what", what))
		}
	}
	changed, err := p.frontTLS.Poll()
	report("client TLS", changed, err)
	for _, t := range p.targets {
		changed, err := t.tls.Poll()
		report("TLS of target "+t.cfg.Name, changed, err)
	}
}
