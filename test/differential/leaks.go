package differential

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// stateSQL lists what a session carries, a row per thing. Protocol-level
// prepared statements are not listed: a proxy may keep shared ones of its own.
const stateSQL = `
	select 'setting ' || name || ' = ' || setting from pg_settings where source = 'session' and name <> 'application_name'
	union all select 'prepared statement ' || name from pg_prepared_statements where from_sql
	union all select 'advisory lock ' || classid || ':' || objid from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()
	union all select 'cursor ' || name from pg_cursors where is_holdable
	union all select 'channel ' || c from pg_listening_channels() c
	union all select 'temporary ' || relkind::text || ' ' || relname from pg_class where relnamespace = pg_my_temp_schema() and relkind <> 'i'
	order by 1`

// LeakedState opens sessions through url until they hold that many server
// connections at once (each stays in a transaction), and returns what any of
// them finds in its session although it never put it there. Settings that a
// direct session finds too (ALTER ROLE, startup parameters in direct's URL) are
// no leak.
func LeakedState(ctx context.Context, direct, url string, servers int) (leaks []string, err error) {
	expected, err := sessionState(ctx, direct, 1)
	if err != nil {
		return nil, err
	}
	found, err := sessionState(ctx, url, servers)
	if err != nil {
		return nil, err
	}
	leaks = slices.DeleteFunc(found, func(s string) bool { return slices.Contains(expected, s) })
	slices.Sort(leaks)
	return slices.Compact(leaks), nil
}

func sessionState(ctx context.Context, url string, servers int) (all []string, err error) {
	for i := range servers {
		conn, err := pgconn.Connect(ctx, url)
		if err != nil {
			return nil, fmt.Errorf("session %d of %d: %w", i, servers, err)
		}
		defer conn.Close(ctx) // all stay open together
		found, err := carried(ctx, conn)
		if err != nil {
			return nil, fmt.Errorf("session %d of %d: %w", i, servers, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// carried opens a transaction in conn and lists what the session carries.
func carried(ctx context.Context, conn *pgconn.PgConn) (all []string, err error) {
	res, err := conn.Exec(ctx, "begin; "+stateSQL).ReadAll()
	if err != nil {
		return nil, err
	}
	for _, row := range res[1].Rows {
		all = append(all, string(row[0]))
	}
	return all, nil
}
