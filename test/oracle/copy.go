package oracle

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
)

// repeating is an io.Writer that expects line again and again.
type repeating struct {
	c    *client
	line []byte
	n    int64 // bytes so far
	bad  bool
}

func (r *repeating) Write(p []byte) (int, error) {
	size := len(p)
	for len(p) > 0 && !r.bad {
		want := r.line[r.n%int64(len(r.line)):]
		want = want[:min(len(want), len(p))]
		if d := difference(p[:len(want)], want); d != "" {
			r.bad = true
			r.c.violate("after %d bytes of COPY: %s", r.n, d)
		}
		r.n += int64(len(want))
		p = p[len(want):]
	}
	return size, nil
}

func (c *client) copyOut(ctx context.Context) error {
	m, rows := c.marker(), logUniform(c.rng, 500)
	size := logUniform(c.rng, c.run.cfg.MaxValue/(rows+1))
	w := &repeating{c: c, line: append(payload(m, size), '\n')}
	sql := fmt.Sprintf("copy (select rpad('', %d, '%s') from generate_series(1, %d)) to stdout", size, m, rows)
	tag, err := c.conn.CopyTo(ctx, w, sql)
	if err != nil {
		return err
	}
	if want := int64(rows * (size + 1)); w.n != want || tag.RowsAffected() != int64(rows) {
		c.violate("COPY of %d bytes with tag %q, want %d bytes and %d rows", w.n, tag, want, rows)
	}
	c.verified += w.n
	return nil
}

// copyIn loads rows, lets the server compare them with the marker, and removes them.
func (c *client) copyIn(ctx context.Context) error {
	m, rows := c.marker(), logUniform(c.rng, 300)
	size := logUniform(c.rng, c.run.cfg.MaxValue/(rows+1))
	tag, err := c.conn.CopyFrom(ctx, bytes.NewReader(copyRows(m, rows, size)), "copy "+c.run.table+" from stdin")
	if err != nil {
		return err
	}
	if tag.RowsAffected() != int64(rows) {
		c.violate("tag %q for %d rows", tag, rows)
	}
	table := c.run.table
	if err := c.oneRow(ctx, "select count(*), coalesce(sum(length(payload)), 0), "+
		"coalesce(bool_and(payload = rpad('', length(payload), marker)), true) from "+table+" where marker = '"+m+"'",
		strconv.Itoa(rows), strconv.Itoa(rows*size), "t"); err != nil {
		return err
	}
	_, err = c.read(ctx, "delete from "+table+" where marker = '"+m+"'")
	return err
}

func copyRows(m string, rows, size int) []byte {
	var b bytes.Buffer
	p := payload(m, size)
	for i := range rows {
		fmt.Fprintf(&b, "%s\t%d\t%s\n", m, i, p)
	}
	return b.Bytes()
}
