//go:build linux

package eventloop

import (
	"errors"
	"fmt"
)

// Config bounds the memory of a loop and its conns. Zero fields take the
// default; sizes are in bytes.
type Config struct {
	// ReadBuffer is the size of the loop's one read buffer and so the most that
	// one read takes from a socket. Default 64 KiB.
	ReadBuffer int
	// HighWater is the backlog from which a conn counts as congested; it stays
	// so until the backlog is below LowWater. Defaults 256 KiB and 64 KiB.
	HighWater int
	LowWater  int
	// MaxRemainder bounds what a conn keeps of delivered and unconsumed bytes
	// (on a TLS conn it can be exceeded by two ReadBuffers). Default 1 MiB.
	MaxRemainder int
	// MaxReads bounds the reads from one socket in one turn, so that a fast
	// peer does not starve the others. Default 4.
	MaxReads int
	// DirectWait lets a busy loop wait for its sockets in a system call that
	// keeps its processor, see direct.go. GOMAXPROCS must be larger than the
	// number of loops, or everything else waits for them.
	DirectWait bool
}

func (cfg Config) withDefaults() (Config, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&cfg.ReadBuffer, 64<<10)
	def(&cfg.HighWater, 256<<10)
	def(&cfg.LowWater, 64<<10)
	def(&cfg.MaxRemainder, 1<<20)
	def(&cfg.MaxReads, 4)
	var errs []error
	if cfg.ReadBuffer < 16 {
		errs = append(errs, fmt.Errorf("ReadBuffer %d: want at least 16", cfg.ReadBuffer))
	}
	if cfg.LowWater < 1 || cfg.HighWater < cfg.LowWater {
		errs = append(errs, fmt.Errorf("LowWater %d, HighWater %d: want 1 <= LowWater <= HighWater", cfg.LowWater, cfg.HighWater))
	}
	if cfg.MaxRemainder < cfg.ReadBuffer {
		errs = append(errs, fmt.Errorf("MaxRemainder %d: want at least ReadBuffer (%d)", cfg.MaxRemainder, cfg.ReadBuffer))
	}
	if cfg.MaxReads < 1 {
		errs = append(errs, fmt.Errorf("MaxReads %d: want at least 1", cfg.MaxReads))
	}
	return cfg, errors.Join(errs...)
}
