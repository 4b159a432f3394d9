package oracle

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// state is what a client has left in its session; the zero value is a session
// as it starts. Names are the same for all clients, values are markers: what
// leaks, collides.
type state struct {
	setting    string // my.marker
	searchPath string
	temp       string // the one row of pg_temp.oracle_temp
	lock       string // advisory lock as classid:objid
	channel    string
	cursor     string            // held cursor oracle_cursor returns this
	sqlStmt    string            // PREPARE oracle_sql returns this
	prepared   map[string]string // protocol-level statements
}

func stateOperations() operationTable {
	return operationTable{
		{name: "transaction", weight: 10, do: (*client).transaction},
		{name: "gone in transaction", weight: 1, do: (*client).goneInTransaction},
		{name: "prepared", weight: 8, do: (*client).prepared, changesState: true},
		{name: "look", weight: 12, do: (*client).look},
		{name: "set", weight: 2, do: (*client).set, changesState: true},
		{name: "temporary table", weight: 2, do: (*client).temporary, changesState: true},
		{name: "advisory lock", weight: 2, do: (*client).advisoryLock, changesState: true},
		{name: "listen", weight: 2, do: (*client).listen, changesState: true},
		{name: "held cursor", weight: 2, do: (*client).heldCursor, changesState: true},
		{name: "SQL prepare", weight: 2, do: (*client).sqlPrepare, changesState: true},
		{name: "tidy up", weight: 4, do: (*client).tidyUp, changesState: true},
	}
}

// transaction works over several round trips on one server process and ends
// either way; nothing of a rolled back one is ever seen again.
func (c *client) transaction(ctx context.Context) error {
	m := c.marker()
	committing := false
	err := func() error {
		res, err := c.read(ctx, "begin; select pg_backend_pid()")
		if err != nil {
			return err
		}
		pid := string(res[1].Rows[0][0])
		rows := 1 + c.rng.IntN(4)
		for i := range rows {
			sql := fmt.Sprintf("insert into %s values ($1::text, $2::int, '')", c.run.table)
			if r := c.conn.ExecParams(ctx, sql, [][]byte{[]byte(m), []byte(strconv.Itoa(i))}, nil, nil, nil).Read(); r.Err != nil {
				return r.Err
			}
		}
		count := "select count(*) from " + c.run.table + " where marker = '" + m + "'"
		if err := c.oneRow(ctx, "select pg_backend_pid(), ("+count+")", pid, strconv.Itoa(rows)); err != nil {
			return err
		}
		end := "rollback"
		if c.rng.IntN(2) == 0 {
			end, committing = "commit", true
		} else {
			rows = 0
			c.ghost(m)
		}
		if _, err := c.read(ctx, end); err != nil {
			return err
		}
		if err := c.oneRow(ctx, count, strconv.Itoa(rows)); err != nil {
			return err
		}
		_, err = c.read(ctx, "delete from "+c.run.table+" where marker = '"+m+"'")
		return err
	}()
	if err != nil && !committing {
		c.ghost(m)
	}
	return err
}

func (c *client) goneInTransaction(ctx context.Context) error {
	m := c.marker()
	c.ghost(m)
	if _, err := c.read(ctx, "begin; insert into "+c.run.table+" values ('"+m+"', 0, '')"); err != nil {
		return err
	}
	return c.leave()
}

// prepared uses statement names that all clients share, each with its own text.
func (c *client) prepared(ctx context.Context) error {
	name := "s" + strconv.Itoa(c.rng.IntN(3))
	if c.s.prepared == nil {
		c.s.prepared = make(map[string]string)
	}
	if c.s.prepared[name] == "" || c.rng.IntN(3) == 0 {
		if err := c.conn.Deallocate(ctx, name); err != nil {
			return err
		}
		delete(c.s.prepared, name)
		// Without a statement of that name the server must say so.
		if res := c.conn.ExecPrepared(ctx, name, nil, nil, nil).Read(); sqlState(res.Err) != "26000" {
			if res.Err != nil {
				return res.Err
			}
			c.violate("statement %s runs before it was prepared: %.100q", name, res.Rows)
			return nil
		}
		m := c.marker()
		if _, err := c.conn.Prepare(ctx, name, "select '"+m+"' || $1::text", nil); err != nil {
			return err
		}
		c.s.prepared[name] = m
	}
	add := c.marker()
	res := c.conn.ExecPrepared(ctx, name, [][]byte{[]byte(add)}, nil, nil).Read()
	if res.Err != nil {
		return res.Err
	}
	c.row("prepared "+name, res, c.s.prepared[name]+add)
	return nil
}

// lookSQL shows the state that settings, temporary tables, locks and LISTEN leave.
const lookSQL = `select coalesce(current_setting('my.marker', true), ''), current_setting('search_path'),
	to_regclass('pg_temp.oracle_temp') is not null,
	(select coalesce(string_agg(classid || ':' || objid, ','), '') from pg_locks
		where locktype = 'advisory' and pid = pg_backend_pid()),
	(select coalesce(string_agg(c, ','), '') from pg_listening_channels() c),
	(select coalesce(string_agg(name, ','), '') from pg_cursors where is_holdable)`

// look compares all state that can be seen with what the client believes.
func (c *client) look(ctx context.Context) error {
	res, err := c.read(ctx, lookSQL)
	if err != nil {
		return err
	}
	if len(res) != 1 || len(res[0].Rows) != 1 || len(res[0].Rows[0]) != 6 {
		c.violate("look: %d results", len(res))
		return nil
	}
	want := []string{c.s.setting, c.run.searchPath, "f", c.s.lock, c.s.channel, ""}
	if c.s.searchPath != "" {
		want[1] = c.s.searchPath
	}
	if c.s.temp != "" {
		want[2] = "t"
	}
	if c.s.cursor != "" {
		want[5] = "oracle_cursor"
	}
	for i, name := range []string{"my.marker", "search_path", "temporary table", "advisory locks", "channels", "held cursors"} {
		got := string(res[0].Rows[0][i])
		// A proxy may listen on a connection of its own: then the view is empty,
		// and whether it works is for the listen operation to say.
		if got != want[i] && (name != "channels" || got != "") {
			c.violate("%s is %q (marker of client %s), want %q", name, got, owner([]byte(got)), want[i])
		}
	}
	return nil
}

func (c *client) set(ctx context.Context) error {
	m := c.marker()
	sql, field := "set my.marker = '"+m+"'", &c.s.setting
	if c.rng.IntN(3) == 0 {
		sql, field = "set search_path = "+m, &c.s.searchPath
	}
	if _, err := c.read(ctx, sql); err != nil {
		return err
	}
	*field = m
	return c.look(ctx)
}

// owned runs use, which must answer with value when this session has the
// object, and fail with missing when it has not.
func (c *client) owned(ctx context.Context, use, value, missing string) error {
	if value != "" {
		return c.oneRow(ctx, use, value)
	}
	res, err := c.read(ctx, use)
	if err == nil {
		c.violate("%s works in a session that has no such thing: %.100q (marker of client %s)",
			use, res[0].Rows, owner(fmt.Appendf(nil, "%q", res[0].Rows)))
		return nil
	}
	if sqlState(err) != missing {
		return err
	}
	return nil
}

func (c *client) temporary(ctx context.Context) error {
	if err := c.owned(ctx, "select m from pg_temp.oracle_temp", c.s.temp, "42P01"); err != nil || c.s.temp != "" {
		return err
	}
	m := c.marker()
	if _, err := c.read(ctx, "create temp table oracle_temp as select '"+m+"' as m"); err != nil {
		return err
	}
	c.s.temp = m
	return c.owned(ctx, "select m from pg_temp.oracle_temp", m, "")
}

func (c *client) advisoryLock(ctx context.Context) error {
	if c.s.lock != "" {
		return c.look(ctx)
	}
	// Nobody else asks for this key, so the lock is to be had at once.
	low := c.rng.Int32()
	if err := c.oneRow(ctx, fmt.Sprintf("select pg_try_advisory_lock(%d, %d)", c.id, low), "t"); err != nil {
		return err
	}
	c.s.lock = fmt.Sprintf("%d:%d", c.id, low)
	return c.look(ctx)
}

// listen waits for its own notification, on the channel it already has or on a new one.
func (c *client) listen(ctx context.Context) error {
	if c.s.channel == "" {
		channel := "c" + c.marker()
		if _, err := c.read(ctx, "listen "+channel); err != nil {
			return err
		}
		c.s.channel = channel
	}
	m := c.marker()
	if _, err := c.read(ctx, "notify "+c.s.channel+", '"+m+"'"); err != nil {
		return err
	}
	for !c.hasHeard(m) {
		if err := c.conn.WaitForNotification(ctx); err != nil {
			return fmt.Errorf("wait for own notification: %w", err)
		}
	}
	return nil
}

func (c *client) hasHeard(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.heard {
		if h.kind == "notification" && h.text == text {
			return true
		}
	}
	return false
}

func (c *client) heldCursor(ctx context.Context) error {
	if err := c.owned(ctx, "fetch first from oracle_cursor", c.s.cursor, "34000"); err != nil || c.s.cursor != "" {
		return err
	}
	m := c.marker()
	sql := "declare oracle_cursor scroll cursor with hold for select '" + m + "' from generate_series(1, 3)"
	if _, err := c.read(ctx, sql); err != nil {
		return err
	}
	c.s.cursor = m
	return c.owned(ctx, "fetch first from oracle_cursor", m, "")
}

func (c *client) sqlPrepare(ctx context.Context) error {
	if err := c.owned(ctx, "execute oracle_sql", c.s.sqlStmt, "26000"); err != nil || c.s.sqlStmt != "" {
		return err
	}
	m := c.marker()
	if _, err := c.read(ctx, "prepare oracle_sql as select '"+m+"'"); err != nil {
		return err
	}
	c.s.sqlStmt = m
	return c.owned(ctx, "execute oracle_sql", m, "")
}

// tidyUp removes this session's state: all of it with DISCARD ALL, or piece by piece.
func (c *client) tidyUp(ctx context.Context) error {
	if c.rng.IntN(3) == 0 {
		if _, err := c.read(ctx, "discard all"); err != nil {
			return err
		}
		c.s = state{}
		return c.look(ctx)
	}
	var sql []string
	add := func(value *string, statement string) {
		if *value != "" && c.rng.IntN(2) == 0 {
			sql = append(sql, statement)
			*value = ""
		}
	}
	add(&c.s.setting, "reset my.marker")
	add(&c.s.searchPath, "reset search_path")
	add(&c.s.temp, "drop table pg_temp.oracle_temp")
	add(&c.s.lock, "select pg_advisory_unlock_all()")
	add(&c.s.channel, "unlisten *")
	add(&c.s.cursor, "close oracle_cursor")
	add(&c.s.sqlStmt, "deallocate oracle_sql")
	if len(sql) > 0 {
		if _, err := c.read(ctx, strings.Join(sql, ";")); err != nil {
			return err
		}
	}
	return c.look(ctx)
}
