package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/multipooler/multipooler/config"
)

// watchInterval is how often the configuration file is looked at. A poll of its
// content needs no inotify and sees Kubernetes' swap of a symbolic link.
const watchInterval = 10 * time.Second

// daemon is one run of the process: it owns the goroutine that runs the pooler
// and is used once.
type daemon struct {
	args, env []string
	stderr    io.Writer
	terminal  bool
	signals   <-chan os.Signal
	run       func(context.Context, *config.Config, *zap.Logger, control) (outcome, error)

	cfg     *config.Config
	seen    [sha256.Size]byte // content of the configuration file at the last load
	log     *zap.Logger
	level   zap.AtomicLevel
	cut     chan struct{}
	reloads chan reload
}

// errSignal is the cause with which the pooler's context ends.
type errSignal struct{ os.Signal }

func (e errSignal) Error() string { return "signal: " + e.String() }

// serve loads the configuration, runs the pooler, and carries signals to it:
// the first SIGTERM or SIGINT drains, the second cuts every session, the third
// ends the process as it is.
func (d *daemon) serve() exitCode {
	cfg, err := config.Load(config.Input{Args: d.args, Env: d.env})
	if err != nil {
		printMistakes(d.stderr, "multipooler: ", err)
		fmt.Fprintln(d.stderr, "multipooler: nothing was started; `multipooler help` is the manual")
		return exitFailed
	}
	d.cfg = cfg
	d.seen = fileHash(cfg.File)
	d.log, d.level = newLogger(cfg.Log, d.stderr, d.terminal)
	defer func() { _ = d.log.Sync() }()
	d.notes(cfg)
	d.checkFileLimit()
	d.cut = make(chan struct{})
	d.reloads = make(chan reload, 1)

	type result struct {
		outcome
		err error
	}
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	done := make(chan result, 1)
	go func() {
		how, err := d.run(ctx, cfg, d.log, control{cut: d.cut, reload: d.reloads})
		done <- result{how, err}
	}()

	watch := time.NewTicker(watchInterval)
	defer watch.Stop()
	for ends := 0; ; {
		select {
		case r := <-done:
			return d.ended(r.outcome, r.err)
		case <-watch.C:
			if d.cfg.File != "" && fileHash(d.cfg.File) != d.seen {
				d.reload("the file changed")
			}
		case s := <-d.signals:
			if s == syscall.SIGHUP {
				d.reload("SIGHUP")
				continue
			}
			ends++
			switch ends {
			case 1:
				d.log.Info("signal received", zap.Stringer("signal", s))
				stop(errSignal{s})
			case 2:
				d.log.Warn("second signal: cutting every session", zap.Stringer("signal", s))
				close(d.cut)
			default:
				d.log.Warn("third signal: ending at once", zap.Stringer("signal", s))
				return exitCut
			}
		}
	}
}

// ended turns the end of the pooler into an exit code.
func (d *daemon) ended(how outcome, err error) exitCode {
	switch {
	case err != nil:
		d.log.Error("stopped", zap.Error(err))
		return exitFailed
	case how == cut:
		d.log.Warn("stopped, sessions were cut")
		return exitCut
	}
	d.log.Info("stopped, drained")
	return exitDrained
}

func (d *daemon) notes(cfg *config.Config) {
	for _, n := range cfg.Notes {
		log := d.log.Info
		if n.Warn {
			log = d.log.Warn
		}
		log("configuration", zap.Stringer("source", n.Source), zap.String("key", n.Key), zap.String("note", n.Text))
	}
}

// reload reads every source again. A configuration with a mistake changes
// nothing.
func (d *daemon) reload(why string) {
	d.seen = fileHash(d.cfg.File) // before reading: a change in between is seen by the next look
	after, err := config.Load(config.Input{Args: d.args, Env: d.env})
	if err != nil {
		for _, m := range config.Mistakes(err) {
			d.log.Error("configuration refused, the old one stays", zap.String("why", why), zap.Error(m))
		}
		d.offer(reload{err: err})
		return
	}
	next, changes := config.Reload(d.cfg, after)
	for _, c := range changes {
		if c.Restart {
			d.log.Warn("configuration changed, effective after a restart", zap.String("key", c.Key), zap.String("old", c.Old), zap.String("new", c.New))
		} else {
			d.log.Info("configuration changed", zap.String("key", c.Key), zap.String("old", c.Old), zap.String("new", c.New))
		}
	}
	d.log.Info("configuration read again", zap.String("why", why), zap.Int("changes", len(changes)))
	d.cfg = next
	setLevel(d.level, next.Log.Level)
	d.offer(reload{config: next, changes: changes})
}

// offer leaves the newest reload for the pooler; an older one that it has not
// taken yet is dropped. Only this goroutine sends.
func (d *daemon) offer(r reload) {
	select {
	case <-d.reloads:
	default:
	}
	d.reloads <- r
}

// fileHash is zero for what cannot be read: a file that is away for a moment is
// no change to a broken one.
func fileHash(path string) (sum [sha256.Size]byte) {
	if path == "" {
		return sum
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return sum
	}
	return sha256.Sum256(data)
}

// filesBeside is a generous count of descriptors that are no session's: epoll,
// listeners, log, certificates, metrics.
const filesBeside = 128

// filesNeeded is how many descriptors the configured limits can use at once.
func filesNeeded(c *config.Config) uint64 {
	n := uint64(c.Client.Max) + uint64(c.Cancel.Concurrency) + filesBeside
	for i := range c.Targets {
		n += uint64(c.Targets[i].Capacity)
	}
	return n
}

// checkFileLimit warns when the system allows fewer open files than the
// configuration may need. (Go has raised the soft limit to the hard one.)
func (d *daemon) checkFileLimit() {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		d.log.Warn("open files limit is unknown", zap.Error(err))
		return
	}
	if need := filesNeeded(d.cfg); limit.Cur < need {
		d.log.Warn("the open files limit is lower than max_clients and the capacities may need; raise ulimit -n or lower max_clients",
			zap.Uint64("limit", limit.Cur), zap.Uint64("needed", need))
	}
}
