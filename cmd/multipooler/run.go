package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/config"
	"github.com/multipooler/multipooler/pooler"
)

// outcome is how a run that did not fail ended.
type outcome int

const (
	drained outcome = iota // every session ended by itself or at a boundary
	cut                    // sessions were ended in the middle of their work
)

// control is what reaches a running pooler besides the end of its context,
// which means: drain.
type control struct {
	cut    <-chan struct{} // closed by a second signal: end every session now
	reload <-chan reload   // holds at most the newest one
}

// reload is a configuration that was read again. Every reload is reported, so
// that the pooler can show when the last one was and whether it succeeded.
type reload struct {
	config  *config.Config  // ready to take over; nil when err is set
	changes []config.Change // what differs from the one before
	err     error           // why it was refused
}

// gcPercent: idle clients are nearly all of the heap, and the steady state does
// not allocate, so that collecting twice as often costs nothing and saves a
// quarter of the memory. GOGC in the environment wins.
const gcPercent = 50

// run serves until ctx ends and everything is drained. It is the one place that
// knows package pooler.
func run(ctx context.Context, cfg *config.Config, log *zap.Logger, ctl control) (outcome, error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	info, _ := debug.ReadBuildInfo()
	p, err := pooler.New(cfg, buildVersion(info), log)
	if err != nil {
		return drained, err
	}
	if os.Getenv("GOMAXPROCS") == "" {
		// One processor to spare: busy loops keep theirs while they wait.
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), p.Loops()+1))
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var forwarder sync.WaitGroup
	defer func() {
		stop()
		forwarder.Wait()
	}()
	hard, cutNow := context.WithCancel(background)
	defer cutNow()
	reloads := make(chan pooler.Reload, 1)
	forwarder.Go(func() {
		for {
			select {
			case <-ctl.cut:
				cutNow()
				<-background.Done()
				return
			case r := <-ctl.reload:
				select {
				case reloads <- pooler.Reload{Config: r.config, Err: r.err}:
				case <-background.Done():
					return
				}
			case <-background.Done():
				return
			}
		}
	})
	out, err := p.Run(ctx, hard, reloads, nil)
	if err != nil {
		return drained, err
	}
	if out.Cut > 0 {
		log.Warn("sessions were cut", zap.Int("sessions", out.Cut))
		return cut, nil
	}
	return drained, nil
}

// buildVersion is the version for the console and the metrics.
func buildVersion(info *debug.BuildInfo) pooler.Version {
	v := pooler.Version{Number: "0.1.0"}
	if info == nil {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Revision = s.Value
		}
	}
	return v
}
