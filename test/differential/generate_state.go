package differential

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Sections of this file keep state in the session between transactions, and
// end by removing it.

// clean ends a section with state: DISCARD ALL, or nothing that is left.
func (g *gen) clean(s section) section {
	s.holds = true
	s.steps = append(s.steps, g.queries("rollback", "discard all")...)
	return s
}

// aside are harmless steps in between, during which a proxy may let go of the
// server connection.
func (g *gen) aside() []step { return g.queries(g.statement()) }

// named prepares, reuses, redefines and closes named statements. All clients
// use the same names for their own texts.
func (g *gen) named() section {
	var s section
	name := func() string { return pick(g, "s1", "s2", "s3") }
	sync := &pgproto3.Sync{}
	for range 2 + g.rng.IntN(8) {
		n := name()
		switch g.rng.IntN(9) {
		case 0, 1:
			sql, oids, _ := g.parsed()
			s.steps = append(s.steps, g.send(&pgproto3.Parse{Name: n, Query: sql, ParameterOIDs: oids}, &pgproto3.Describe{ObjectType: 'S', Name: n}, sync))
		case 2:
			s.steps = append(s.steps, g.send(
				&pgproto3.Close{ObjectType: 'S', Name: n},
				&pgproto3.Parse{Name: n, Query: fmt.Sprintf("select 'client %d', $1::text", g.id)}, sync))
		case 3, 4, 5:
			b := &pgproto3.Bind{PreparedStatement: n, Parameters: [][]byte{[]byte("7")}}
			s.steps = append(s.steps, g.send(b, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{}, sync))
		case 6:
			s.steps = append(s.steps, g.send(&pgproto3.Close{ObjectType: 'S', Name: n}, sync))
		case 7:
			s.steps = append(s.steps, g.queries(pick(g, "deallocate "+n, "deallocate all", "discard plans", "discard all"))...)
		case 8: // prepared in a batch that fails afterwards: it stays
			s.steps = append(s.steps, g.send(&pgproto3.Parse{Name: n, Query: "select 1"}, &pgproto3.Parse{Query: "selec"}, sync))
		}
		if g.oneIn(3) {
			s.steps = append(s.steps, g.aside()...)
		}
	}
	return g.clean(s)
}

// settings are set, reset, rolled back and looked at.
func (g *gen) settings() section {
	var s section
	looks := g.queries("show datestyle", "select current_setting('my.marker', true)", "show search_path", "show timezone")
	for range 1 + g.rng.IntN(5) {
		s.steps = append(s.steps, g.queries(pick(g,
			"set datestyle = 'German'", "set timezone = 'Asia/Tokyo'", "set time zone 5", "reset timezone",
			fmt.Sprintf("set my.marker = 'client %d'", g.id), "reset my.marker",
			"set search_path = pg_catalog, \"$user\"", "set search_path to default", "reset all",
			"select set_config('datestyle', 'SQL, DMY', false)", "select set_config('my.marker', 'local', true)",
			"set application_name = 'renamed'", "set intervalstyle = 'iso_8601'", "set standard_conforming_strings = off",
			"set standard_conforming_strings = on", "set no_such.setting = 1", "set no_such_setting = 1", "set work_mem = 'x'",
			"begin; set datestyle = 'SQL'; rollback", "begin; set datestyle = 'SQL'; savepoint a; set datestyle = 'German'; rollback to a; commit",
			"begin; set local timezone = 'Europe/Rome'; select 1; commit", "set session characteristics as transaction read only",
			"set role none", "set bytea_output = 'escape'", "set extra_float_digits = 0", "set client_min_messages = warning",
			"set statement_timeout = 10000; select 1/0", "set datestyle = 'SQL'; select 1/0",
		))...)
		s.steps = append(s.steps, pick(g, looks...))
		s.steps = append(s.steps, g.queries("select date '2021-03-04', timestamptz '2021-03-04 05:06:07+00', interval '1 day 2 hours', 0.1::float8, '\\x00ff'::bytea")...)
		if g.oneIn(3) {
			s.steps = append(s.steps, g.aside()...)
		}
	}
	return g.clean(s)
}

// objects of a session: temporary tables, PREPARE, held cursors, advisory
// locks. Keys carry the client, since locks are the database's.
func (g *gen) objects() section {
	// A server process that has never had a temporary table says 3F000 where
	// another says 42P01; that is its history, not the session's.
	s := section{steps: g.queries("create temp table first_of_all (a int)")}
	for range 2 + g.rng.IntN(6) {
		s.steps = append(s.steps, g.queries(pick(g,
			"create temp table tmp (a int)", "insert into pg_temp.tmp values (1)", "select count(*) from pg_temp.tmp", "drop table pg_temp.tmp",
			"create temp table tmp on commit drop as select 1 as a",
			fmt.Sprintf("prepare st(int) as select $1 + %d", g.id), "execute st(1)", "execute st('x')", "deallocate st",
			"declare hc cursor with hold for select i from generate_series(1, 9) i", "fetch 2 from hc", "close hc", "close all",
			fmt.Sprintf("select pg_advisory_lock(%d)", 7000+g.id), fmt.Sprintf("select pg_advisory_unlock(%d)", 7000+g.id), "select pg_advisory_unlock_all()",
			"select name, statement from pg_prepared_statements where from_sql order by 1", "select name from pg_cursors where is_holdable order by 1",
			"select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
			"create temp sequence sq; select nextval('sq')", "select currval('pg_temp.sq')",
			"discard temp", "discard sequences",
		))...)
		if g.oneIn(3) {
			s.steps = append(s.steps, g.aside()...)
		}
	}
	return g.clean(s)
}

// listening notifies itself; the channel is the client's own.
func (g *gen) listening() section {
	c := fmt.Sprintf("channel_%d", g.id)
	s := section{steps: g.queries("listen " + c)}
	for range 1 + g.rng.IntN(5) {
		s.steps = append(s.steps, g.queries(pick(g,
			fmt.Sprintf("notify %s, 'p%d'", c, g.rng.IntN(1000)),
			fmt.Sprintf("select pg_notify('%s', 'f%d')", c, g.rng.IntN(1000)),
			fmt.Sprintf("begin; notify %s, 'never'; rollback", c),
			fmt.Sprintf("begin; notify %[1]s, 'a'; notify %[1]s, 'b'; commit", c),
			"unlisten *", "listen "+c, "select 1",
		))...)
	}
	return g.clean(s)
}
