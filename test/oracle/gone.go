package oracle

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// The operations of this file end with their client gone, as by a crash. What
// they leave behind must reach nobody: neither the answers still under way nor
// the work that was not committed.

func (c *client) leave() error {
	abandon(c.conn, c.rng.IntN(2) == 0)
	return errAbandoned
}

func (c *client) goneInResult(ctx context.Context) error {
	m := c.marker()
	sql := fmt.Sprintf("select rpad('', 1000, '%s') from generate_series(1, %d)", m, 1+logUniform(c.rng, 20_000))
	mrr := c.conn.Exec(ctx, sql)
	want := payload(m, 1000)
	limit := c.rng.IntN(50)
	for n := 0; n < limit && mrr.NextResult(); {
		for rr := mrr.ResultReader(); n < limit && rr.NextRow(); n++ {
			c.same("payload", rr.Values()[0], want)
		}
	}
	return c.leave()
}

// goneInBatch leaves before the Sync, with or without a Flush, sometimes in a transaction.
func (c *client) goneInBatch(ctx context.Context) error {
	m := c.marker()
	if c.rng.IntN(2) == 0 {
		if _, err := c.read(ctx, "begin"); err != nil {
			return err
		}
	}
	c.ghost(m)
	f := c.conn.Frontend()
	for i := range 1 + c.rng.IntN(5) {
		sql := fmt.Sprintf("insert into %s values ('%s', %d, '')", c.run.table, m, i)
		f.SendParse(&pgproto3.Parse{Query: sql})
		f.SendBind(&pgproto3.Bind{})
		f.SendExecute(&pgproto3.Execute{})
	}
	if c.rng.IntN(2) == 0 {
		f.Send(&pgproto3.Flush{})
	}
	if err := f.Flush(); err != nil {
		return err
	}
	return c.leave()
}

// goneInMessage leaves with a message half sent.
func (c *client) goneInMessage(context.Context) error {
	m := c.marker()
	c.ghost(m)
	b, err := (&pgproto3.Query{String: fmt.Sprintf("insert into %s values ('%s', 0, '')", c.run.table, m)}).Encode(nil)
	if err != nil {
		return err
	}
	if _, err := c.conn.Conn().Write(b[:1+c.rng.IntN(len(b)-1)]); err != nil {
		return err
	}
	return c.leave()
}

// goneInCopy leaves between CopyData and CopyDone.
func (c *client) goneInCopy(ctx context.Context) error {
	m := c.marker()
	c.ghost(m)
	f := c.conn.Frontend()
	f.SendQuery(&pgproto3.Query{String: "copy " + c.run.table + " from stdin"})
	if err := f.Flush(); err != nil {
		return err
	}
	msg, err := c.conn.ReceiveMessage(ctx)
	if err != nil {
		return err
	}
	if e, ok := msg.(*pgproto3.ErrorResponse); ok {
		_, _ = c.conn.ReceiveMessage(ctx)
		return pgconn.ErrorResponseToPgError(e)
	}
	f.Send(&pgproto3.CopyData{Data: copyRows(m, logUniform(c.rng, 100), 100)})
	if err := f.Flush(); err != nil {
		return err
	}
	return c.leave()
}
