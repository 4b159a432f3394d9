// Package differential sends the same messages to PostgreSQL directly and
// through a proxy, and compares every message that comes back.
//
// Each client has a script drawn from the seed: sections of steps, a step being
// frontend messages that are sent together (simple queries, extended batches
// with and without Sync, COPY, function calls, transactions, session state).
// All clients run at once, so that with fewer server connections than clients
// the proxy moves them between servers; each client works on a table of its
// own, so that what it sees depends on its own script only. One client's two
// connections go through the script in step: send to both, read both replies
// to their end, compare byte by byte. What may differ is in normalise.go; the
// end of a reply is in tracker.go.
//
// Run owns one goroutine per client and ends them all. A difference is a
// *Mismatch, cut down to the steps that are needed to see it where it can be
// seen again with that client alone.
package differential

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Config of Run. The zero value of a number means its default.
type Config struct {
	// Direct and Proxy are URLs of two databases with the same content (empty
	// ones will do) on one server or two of the same version, reached without
	// and with the proxy. Two, since both sides run the same DDL. The same URL
	// twice with different database names tests the harness itself.
	Direct, Proxy string
	Clients       int    // 8
	Steps         int    // sections per client (40)
	Seed          uint64 // 0 draws one
	// State lets clients keep session state between transactions (SET, LISTEN,
	// temporary tables, PREPARE, named statements, held cursors), at most Holders
	// clients at a time (Clients): a proxy that pins cannot serve more of them
	// than it has server connections.
	State   bool
	Holders int
	// Reconnect ends the session after each section: for a proxy that keeps a
	// pin until the session ends, whatever in a section made it pin.
	Reconnect bool
	// Hang is how long a reply may take (10 s).
	Hang time.Duration
	// NoMinimise reports the first difference as it was met.
	NoMinimise bool
}

func (c *Config) fill() {
	if c.Clients == 0 {
		c.Clients = 8
	}
	if c.Steps == 0 {
		c.Steps = 40
	}
	if c.Holders == 0 {
		c.Holders = c.Clients
	}
	if c.Hang == 0 {
		c.Hang = 10 * time.Second
	}
	for c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
}

// Run compares until the scripts end, the first difference, or ctx's end. The
// error is a *Mismatch for a difference.
func Run(ctx context.Context, cfg Config) error {
	cfg.fill()
	scripts := make([]script, cfg.Clients)
	for id := range scripts {
		scripts[id] = generate(rand.New(rand.NewPCG(cfg.Seed, uint64(id))), id, cfg.Steps, cfg.State)
	}
	err := runScripts(ctx, cfg, scripts)
	m, differs := errors.AsType[*Mismatch](err)
	if !differs || cfg.NoMinimise || ctx.Err() != nil {
		return err
	}
	return minimise(ctx, cfg, scripts, m)
}

// runScripts runs one script per client; an empty one does not connect.
func runScripts(ctx context.Context, cfg Config, scripts []script) error {
	for _, url := range []string{cfg.Direct, cfg.Proxy} {
		// Bounded, since it waits for locks: those of a former session that a
		// proxy has not ended would be waited for without end.
		timed, stop := context.WithTimeoutCause(ctx, 2*cfg.Hang, fmt.Errorf("tables not free after %s", 2*cfg.Hang))
		err := setUp(timed, url, len(scripts))
		cause := context.Cause(timed)
		stop()
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("differential: set up: %w", errors.Join(cause, err))
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	holders := make(chan struct{}, cfg.Holders)
	var clients sync.WaitGroup
	for id, s := range scripts {
		if len(s) == 0 {
			continue
		}
		clients.Go(func() {
			p := pair{cfg: cfg, id: id, holders: holders}
			if err := p.run(ctx, s); err != nil {
				stop(err) // the first one wins
			}
		})
	}
	clients.Wait()
	return context.Cause(ctx)
}

// tableOf is the table that belongs to one client.
func tableOf(id int) string { return fmt.Sprintf("diff_%d", id) }

// setUp gives each client its table, as it is at the start of every script.
func setUp(ctx context.Context, url string, clients int) error {
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for id := range clients {
		t := tableOf(id)
		// In one transaction and without a notice, so that it works in any pool mode.
		sql := fmt.Sprintf(`set local client_min_messages = error; drop table if exists %[1]s, %[1]s_ddl cascade;
			create table %[1]s (k int primary key, v text);
			insert into %[1]s select i, repeat('v' || i, i) from generate_series(1, 20) i`, t)
		if _, err := conn.Exec(ctx, "begin;"+sql+";commit").ReadAll(); err != nil {
			return err
		}
	}
	return nil
}
