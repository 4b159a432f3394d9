package oracle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// operation asks for something and verifies all of the answer. It returns the
// error that ended it early, and reports wrong answers itself.
type operation struct {
	name   string
	weight int
	do     func(*client, context.Context) error
	// changesState: when it did not finish, the session's state is unknown.
	changesState bool
}

type operationTable []operation

func operations(noState bool) operationTable {
	t := operationTable{
		{name: "simple", weight: 10, do: (*client).simple},
		{name: "extended", weight: 10, do: (*client).extended},
		{name: "parameter", weight: 4, do: (*client).parameter},
		{name: "unnamed", weight: 4, do: (*client).unnamed},
		{name: "pipeline", weight: 8, do: (*client).pipeline},
		{name: "copy out", weight: 5, do: (*client).copyOut},
		{name: "copy in", weight: 5, do: (*client).copyIn},
		{name: "notices", weight: 5, do: (*client).notices},
		{name: "errors", weight: 5, do: (*client).errors},
		{name: "slow", weight: 9, do: (*client).slow},
		{name: "gone in result", weight: 1, do: (*client).goneInResult},
		{name: "gone in batch", weight: 1, do: (*client).goneInBatch},
		{name: "gone in message", weight: 1, do: (*client).goneInMessage},
		{name: "gone in copy", weight: 1, do: (*client).goneInCopy},
	}
	if noState {
		return t
	}
	return append(t, stateOperations()...)
}

func (t operationTable) pick(rng *rand.Rand) operation {
	sum := 0
	for _, op := range t {
		sum += op.weight
	}
	n := rng.IntN(sum)
	for _, op := range t {
		if n -= op.weight; n < 0 {
			return op
		}
	}
	panic("bug: weights do not add up")
}

func (c *client) marker() string { return newMarker(c.rng, c.id) }

// size is that of one value: each magnitude is as likely, and one in ten is empty.
func (c *client) size() int {
	if c.rng.IntN(10) == 0 {
		return 0
	}
	return logUniform(c.rng, c.run.cfg.MaxValue)
}

// read returns the rows of a simple query's statements.
func (c *client) read(ctx context.Context, sql string) ([]*pgconn.Result, error) {
	return c.conn.Exec(ctx, sql).ReadAll()
}

// oneRow runs a simple query and verifies the only row of its last result.
func (c *client) oneRow(ctx context.Context, sql string, want ...string) error {
	res, err := c.read(ctx, sql)
	if err != nil {
		return err
	}
	if len(res) == 0 {
		c.violate("no result for %.80s", sql)
		return nil
	}
	c.row(sql, res[len(res)-1], want...)
	return nil
}

func (c *client) row(what string, res *pgconn.Result, want ...string) {
	if len(res.Rows) != 1 || len(res.Rows[0]) != len(want) {
		c.violate("%.80s: %d rows, want one of %d columns: %.200q", what, len(res.Rows), len(want), res.Rows)
		return
	}
	for i, w := range want {
		c.same(fmt.Sprintf("column %d", i), res.Rows[0][i], []byte(w))
	}
}

func (c *client) simple(ctx context.Context) error {
	n := 1 + c.rng.IntN(3)
	markers, sizes := make([]string, n), make([]int, n)
	var sql strings.Builder
	for i := range n {
		markers[i], sizes[i] = c.marker(), c.size()
		fmt.Fprintf(&sql, "select '%s', rpad('', %d, '%s');", markers[i], sizes[i], markers[i])
	}
	res, err := c.read(ctx, sql.String())
	if err != nil {
		return err
	}
	if len(res) != n {
		c.violate("%d results for %d statements", len(res), n)
		return nil
	}
	for i, r := range res {
		c.row("simple", r, markers[i], string(payload(markers[i], sizes[i])))
	}
	return nil
}

// extended streams some rows and verifies each as it comes.
func (c *client) extended(ctx context.Context) error {
	m, rows := c.marker(), logUniform(c.rng, 200)
	size := logUniform(c.rng, c.run.cfg.MaxValue/(rows+1))
	want := payload(m, size)
	rr := c.conn.ExecParams(ctx, "select i, rpad('', $2::int, $1::text) from generate_series(1, $3::int) i",
		[][]byte{[]byte(m), []byte(strconv.Itoa(size)), []byte(strconv.Itoa(rows))}, nil, nil, nil)
	got := 0
	for rr.NextRow() {
		got++
		v := rr.Values()
		c.same("row number", v[0], []byte(strconv.Itoa(got)))
		c.same("payload", v[1], want)
	}
	tag, err := rr.Close()
	if err != nil {
		return err
	}
	if got != rows || tag.RowsAffected() != int64(rows) {
		c.violate("%d rows and tag %q, want %d", got, tag, rows)
	}
	return nil
}

// parameter sends a large value and has it echoed.
func (c *client) parameter(ctx context.Context) error {
	want := payload(c.marker(), c.size())
	res := c.conn.ExecParams(ctx, "select $1::text, length($1::text)", [][]byte{want}, nil, nil, nil).Read()
	if res.Err != nil {
		return res.Err
	}
	c.row("parameter", res, string(want), strconv.Itoa(len(want)))
	return nil
}

// unnamed parses the unnamed statement once and uses it over several Syncs.
func (c *client) unnamed(ctx context.Context) error {
	m := c.marker()
	if _, err := c.conn.Prepare(ctx, "", "select '"+m+"' || $1::text", nil); err != nil {
		return err
	}
	for range 1 + c.rng.IntN(4) {
		add := c.marker()
		res := c.conn.ExecPrepared(ctx, "", [][]byte{[]byte(add)}, nil, nil).Read()
		if res.Err != nil {
			return res.Err
		}
		c.row("unnamed statement", res, m+add)
	}
	return nil
}

// pipeline sends batches of queries, some of which fail, and verifies that
// each answer is in its place and that an error skips exactly to its Sync.
func (c *client) pipeline(ctx context.Context) error {
	type query struct {
		marker string
		size   int
		bad    bool
	}
	batches := make([][]query, 1+c.rng.IntN(4))
	p := c.conn.StartPipeline(ctx)
	for i := range batches {
		batches[i] = make([]query, c.rng.IntN(10))
		for j := range batches[i] {
			q := query{c.marker(), logUniform(c.rng, c.run.cfg.MaxValue/10), c.rng.IntN(12) == 0}
			batches[i][j] = q
			sql := "select rpad('', $2::int, $1::text)"
			if q.bad {
				sql = "select $1::text::int, $2::int"
			}
			p.SendQueryParams(sql, [][]byte{[]byte(q.marker), []byte(strconv.Itoa(q.size))}, nil, nil, nil)
		}
		p.SendPipelineSync()
	}
	if err := p.Flush(); err != nil {
		return errors.Join(err, p.Close())
	}
	for _, batch := range batches {
		for _, q := range batch {
			got, err := p.GetResults()
			rr, ok := got.(*pgconn.ResultReader)
			if err == nil && ok {
				res := rr.Read()
				if err = res.Err; err == nil {
					c.row("pipeline", res, string(payload(q.marker, q.size)))
				}
			}
			if err == nil && !ok {
				c.violate("pipeline: %T where a result belongs", got)
				return p.Close()
			}
			if q.bad && c.castError(err, q.marker) {
				break
			}
			if err != nil {
				return errors.Join(err, p.Close())
			}
			if q.bad {
				c.violate("pipeline: a statement that must fail succeeded")
			}
		}
		got, err := p.GetResults()
		if err != nil {
			return errors.Join(err, p.Close())
		}
		if _, ok := got.(*pgconn.PipelineSync); !ok {
			c.violate("pipeline: %T where a Sync's end belongs", got)
		}
	}
	return p.Close()
}

// castError reports whether err is the server's complaint about marker as a
// number, and verifies that it is about our marker.
func (c *client) castError(err error, marker string) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "22P02" {
		return false
	}
	c.same("error message", []byte(pg.Message), []byte(`invalid input syntax for type integer: "`+marker+`"`))
	return true
}

func (c *client) errors(ctx context.Context) error {
	m := c.marker()
	var err error
	if c.rng.IntN(2) == 0 {
		_, err = c.read(ctx, "select '"+m+"'::int")
	} else {
		err = c.conn.ExecParams(ctx, "select $1::text::int", [][]byte{[]byte(m)}, nil, nil, nil).Read().Err
	}
	if err == nil {
		c.violate("a statement that must fail succeeded")
	} else if !c.castError(err, m) {
		return err
	}
	return c.oneRow(ctx, "select '"+m+"'", m)
}

func (c *client) notices(ctx context.Context) error {
	m, n := c.marker(), 1+c.rng.IntN(5)
	sql := fmt.Sprintf("do $$ begin for i in 1..%d loop raise notice '%s'; end loop; end $$", n, m)
	if _, err := c.read(ctx, sql); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.heard) != n {
		c.violate("%d notices, want %d: %v", len(c.heard), n, c.heard)
	}
	for _, h := range c.heard {
		if h.text != m {
			c.violate("notice %q, want %q (marker of client %s)", h.text, m, owner([]byte(h.text)))
		}
	}
	c.heard = nil
	return nil
}

// slow gives cancels, cuts and timeouts something to meet.
func (c *client) slow(ctx context.Context) error {
	m := c.marker()
	return c.oneRow(ctx, fmt.Sprintf("select '%s' from pg_sleep(%g)", m, c.rng.Float64()*0.05), m)
}
