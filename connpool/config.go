package connpool

import (
	"math/bits"
	"math/rand/v2"
	"time"
)

// Defaults of the zero values in Config.
const (
	DefaultMaxWaiters      = 10_000
	DefaultMaxPools        = 10_000
	DefaultInactiveTimeout = 5 * time.Minute
	DefaultSwitchAfter     = 100 * time.Millisecond
	// DefaultMaxSkips: measured with the prototypes, 8 skips keep nearly all
	// hand-overs on their loop; 32 were no better, a strict FIFO cost 20 %.
	DefaultMaxSkips    = 8
	DefaultRetryMin    = 100 * time.Millisecond
	DefaultRetryMax    = 5 * time.Second
	DefaultRefusalHold = 5 * time.Second
)

// lifetimeSpread: a lifetime is shortened by up to one part in lifetimeSpread.
const lifetimeSpread = 10

// Config is what New is given. SetCapacity and Reconfigure change parts of it.
type Config struct {
	Capacity        int           // slots of the target, at least 1
	MaxIdle         int           // idle connections kept; 0 = Capacity, negative = none; follows SetCapacity in proportion
	MaxWaiters      int           // queue bound of each user pool; 0 = DefaultMaxWaiters
	MaxPools        int           // bound on user pools; 0 = DefaultMaxPools
	IdleTimeout     time.Duration // an idle connection is closed after this; 0 = never
	MaxLifetime     time.Duration // a connection is closed at the first boundary after this less its jitter; 0 = never
	InactiveTimeout time.Duration // an empty user pool is forgotten after this; 0 = DefaultInactiveTimeout
	SwitchAfter     time.Duration // see decide; 0 = DefaultSwitchAfter
	MaxSkips        int           // how often the head of a queue may be overtaken by a waiter of the releasing loop; 0 = DefaultMaxSkips, negative = never
	RetryMin        time.Duration // back-off after the first failed dial of a pool; 0 = DefaultRetryMin
	RetryMax        time.Duration // its upper bound; 0 = DefaultRetryMax
	RefusalHold     time.Duration // how long a 53300 of the server lowers the capacity; 0 = DefaultRefusalHold
	Rand            func() uint64 // 64 random bits, called under the lock; nil = math/rand/v2
}

func (c Config) withDefaults() Config {
	orDefault(&c.MaxWaiters, DefaultMaxWaiters)
	orDefault(&c.MaxPools, DefaultMaxPools)
	orDefault(&c.InactiveTimeout, DefaultInactiveTimeout)
	orDefault(&c.SwitchAfter, DefaultSwitchAfter)
	orDefault(&c.MaxSkips, DefaultMaxSkips)
	orDefault(&c.RetryMin, DefaultRetryMin)
	orDefault(&c.RetryMax, DefaultRetryMax)
	orDefault(&c.RefusalHold, DefaultRefusalHold)
	if c.Rand == nil {
		c.Rand = rand.Uint64
	}
	return c
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// maxIdle scales the configured bound to the capacity now in force, rounding
// up so that a bound of at least one stays at least one.
func (c *Config) maxIdle(capacity int) int {
	switch {
	case c.MaxIdle < 0:
		return 0
	case c.MaxIdle == 0:
		return capacity
	default:
		return (c.MaxIdle*capacity + c.Capacity - 1) / c.Capacity
	}
}

// below spreads d evenly over (d-spread, d], so that what started together
// does not end together.
func below(d, spread time.Duration, random uint64) time.Duration {
	if spread <= 0 {
		return d
	}
	hi, _ := bits.Mul64(random, uint64(spread)) // hi is uniform in [0, spread)
	return d - time.Duration(hi)
}

// backoff is the pause after the n-th failed dial in a row (n counts from 1):
// doubling from lo to hi, of which the upper half is spread.
func backoff(n int, lo, hi time.Duration, random uint64) time.Duration {
	d := hi
	if shift := n - 1; shift < 32 && lo<<shift < hi && lo<<shift > 0 {
		d = lo << shift
	}
	return below(d, d/2, random)
}
