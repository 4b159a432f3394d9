package main

import (
	"context"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/config"
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

// run serves until ctx ends and everything is drained. It is the one place that
// knows package pooler.
func run(ctx context.Context, cfg *config.Config, log *zap.Logger, ctl control) (outcome, error) {
	<-ctx.Done()
	return drained, nil
}
