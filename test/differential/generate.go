package differential

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/jackc/pgx/v5/pgproto3"
)

// gen draws one client's script. Equal seeds give equal scripts. What it writes
// must have one possible answer: no clock, no process ids, no unordered rows,
// nothing that another client can change.
type gen struct {
	rng   *rand.Rand
	id    int
	table string
}

func generate(rng *rand.Rand, id, sections int, state bool) script {
	g := &gen{rng: rng, id: id, table: tableOf(id)}
	kinds := []func() section{g.simple, g.simple, g.batches, g.batches, g.flushing, g.transaction, g.transaction, g.copying, g.functions, g.unnamed, g.large}
	if state {
		kinds = append(kinds, g.named, g.settings, g.objects, g.listening)
	}
	s := make(script, sections)
	for i := range s {
		s[i] = kinds[rng.IntN(len(kinds))]()
	}
	return s
}

func (g *gen) oneIn(n int) bool { return g.rng.IntN(n) == 0 }

func pick[T any](g *gen, from ...T) T { return from[g.rng.IntN(len(from))] }

// send makes a step; one in five is cut into pieces at arbitrary bytes.
func (g *gen) send(m ...pgproto3.FrontendMessage) step {
	s := step{messages: m, pieces: 1}
	if g.oneIn(5) {
		s.pieces = 2 + g.rng.IntN(6)
	}
	return s
}

func query(sql string) *pgproto3.Query { return &pgproto3.Query{String: sql} }

func (g *gen) queries(sql ...string) (steps []step) {
	for _, q := range sql {
		steps = append(steps, g.send(query(q)))
	}
	return steps
}

func (g *gen) key() int { return 1 + g.rng.IntN(30) }

// statement is one that may stand anywhere, also in a failed transaction.
func (g *gen) statement() string {
	t := g.table
	return pick(g,
		"select 1", "select 'a', null, 2.5", "values (1, 'x'), (2, null)",
		fmt.Sprintf("select * from %s order by k limit %d", t, g.rng.IntN(25)),
		fmt.Sprintf("select count(*), max(length(v)) from %s", t),
		fmt.Sprintf("insert into %s values (%d, 'new')", t, g.key()),
		fmt.Sprintf("insert into %s values (%d, 'up') on conflict (k) do update set v = excluded.v returning *", t, g.key()),
		fmt.Sprintf("update %s set v = v || '.' where k = %d", t, g.key()),
		fmt.Sprintf("delete from %s where k = %d returning k", t, g.key()),
		"select repeat('long', "+strconv.Itoa(g.rng.IntN(5000))+")",
		"select i from generate_series(1, "+strconv.Itoa(g.rng.IntN(300))+") i",
		"do $$ begin raise notice 'notice of client "+strconv.Itoa(g.id)+"'; end $$",
		"do $$ begin raise exception 'exception of client "+strconv.Itoa(g.id)+"' using errcode = 'P1234', hint = 'h', detail = 'd'; end $$",
		"select 1/0", "selec 1", "select * from no_such_table", "select 'x'::int", "select $1",
		"explain (costs off) select 1", "show transaction_isolation", "show server_version_num",
		"/* a comment */ select /* -- nested /* deeper */ */ 'it''s' -- end", "select $q$ ; $q$, $$$$, U&'d\\0061t', E'\\'; --'",
	)
}

// text of a simple query outside a transaction: single, multiple, empty, broken.
func (g *gen) text() string {
	switch g.rng.IntN(12) {
	case 0:
		return pick(g, "", ";", " ", "-- nothing", ";;select 1;;", "/* unfinished")
	case 1, 2:
		return g.statement() + "; " + g.statement() + ";" + g.statement()
	case 3:
		return "begin; " + g.statement() + "; commit"
	case 4:
		return "begin; " + g.statement() + "; rollback; " + g.statement()
	case 5:
		return pick(g, "commit", "rollback", "abort", "end; select 2", "set local work_mem = '5MB'", "savepoint s", "release s", "lock table pg_class")
	case 6:
		return fmt.Sprintf("create table %[1]s_ddl (a int); insert into %[1]s_ddl values (1); drop table %[1]s_ddl", g.table)
	case 7:
		return "copy (select k, v from " + g.table + " order by k) to stdout" + pick(g, "", " csv header", " binary", "; select 1")
	}
	return g.statement()
}

// simple queries; a transaction that one of them leaves open is ended.
func (g *gen) simple() section {
	var s section
	for range 1 + g.rng.IntN(5) {
		s.steps = append(s.steps, g.send(query(g.text())))
	}
	if g.oneIn(4) { // several queries without waiting
		s.steps = append(s.steps, g.send(query(g.text()), query(g.text()), query(g.text())))
	}
	s.steps = append(s.steps, g.queries("rollback")...)
	return s
}

// parsed is a statement for the extended protocol with its parameters.
func (g *gen) parsed() (sql string, oids []uint32, params [][]byte) {
	i := func(n int) []byte { return []byte(strconv.Itoa(n)) }
	switch g.rng.IntN(13) {
	case 0:
		return "select $1::int + $2::int", nil, [][]byte{i(g.rng.IntN(100)), i(g.rng.IntN(100))}
	case 1:
		return "select $1, $2", []uint32{25, 23}, [][]byte{[]byte("text"), nil}
	case 2:
		return "select k, v from " + g.table + " where k > $1::int order by k", nil, [][]byte{i(g.key())}
	case 3:
		return "insert into " + g.table + " values ($1, $2) on conflict do nothing", nil, [][]byte{i(g.key()), []byte("p")}
	case 4:
		return "update " + g.table + " set v = $2 where k = $1", nil, [][]byte{i(g.key()), []byte("q")}
	case 5:
		return pick(g, "", "selec", "select 1; select 2", "select $1::int from no_such_table"), nil, nil
	case 6:
		return "select $1::int / $2::int", nil, [][]byte{i(5), i(g.rng.IntN(2))}
	case 7:
		return "select i, repeat('x', i) from generate_series(1, $1::int) i", nil, [][]byte{i(g.rng.IntN(120))}
	case 8:
		return "select length($1::text)", nil, [][]byte{make([]byte, 0, 1)}
	}
	return g.statement(), nil, nil
}

// bind gives the parameters, sometimes one too many or of a wrong form.
func (g *gen) bind(portal, name string, params [][]byte) *pgproto3.Bind {
	b := &pgproto3.Bind{DestinationPortal: portal, PreparedStatement: name, Parameters: params}
	switch g.rng.IntN(12) {
	case 0:
		b.Parameters = append(b.Parameters[:len(b.Parameters):len(b.Parameters)], []byte("1"))
	case 1, 2:
		b.ResultFormatCodes = []int16{1}
	case 3:
		b.ResultFormatCodes = []int16{0, 1}
	}
	return b
}

// execute runs a portal whole or in parts.
func (g *gen) execute(portal string) (m []pgproto3.FrontendMessage) {
	if g.oneIn(3) {
		for range g.rng.IntN(3) {
			m = append(m, &pgproto3.Execute{Portal: portal, MaxRows: uint32(1 + g.rng.IntN(20))})
		}
	}
	return append(m, &pgproto3.Execute{Portal: portal})
}

// one is a whole unnamed statement's run with optional parts left in or out.
func (g *gen) one() (m []pgproto3.FrontendMessage) {
	sql, oids, params := g.parsed()
	portal := pick(g, "", "", "", "p1", "p2")
	m = append(m, &pgproto3.Parse{Query: sql, ParameterOIDs: oids})
	if g.oneIn(3) {
		m = append(m, &pgproto3.Describe{ObjectType: 'S'})
	}
	m = append(m, g.bind(portal, "", params))
	if g.oneIn(2) {
		m = append(m, &pgproto3.Describe{ObjectType: 'P', Name: portal})
	}
	m = append(m, g.execute(portal)...)
	if portal != "" || g.oneIn(6) {
		m = append(m, &pgproto3.Close{ObjectType: 'P', Name: portal})
	}
	if g.oneIn(8) {
		m = append(m, &pgproto3.Close{ObjectType: 'S'})
	}
	return m
}

// batches are pipelines: several statements to a Sync, several Syncs to a step.
func (g *gen) batches() section {
	var s section
	for range 1 + g.rng.IntN(3) {
		var m []pgproto3.FrontendMessage
		for range 1 + g.rng.IntN(4) {
			for range g.rng.IntN(4) {
				m = append(m, g.one()...)
				if g.oneIn(6) {
					m = append(m, &pgproto3.Flush{})
				}
			}
			m = append(m, &pgproto3.Sync{})
			if g.oneIn(6) {
				m = append(m, query(g.statement()))
			}
		}
		s.steps = append(s.steps, g.send(m...))
	}
	s.steps = append(s.steps, g.queries("rollback")...)
	return s
}

// flushing waits for replies that only a Flush brings, and syncs late.
func (g *gen) flushing() section {
	var s section
	for range 1 + g.rng.IntN(4) {
		m := g.one()
		if g.oneIn(3) { // sent, but neither flushed nor waited for
			cut := 1 + g.rng.IntN(len(m))
			s.steps = append(s.steps, g.send(m[:cut]...))
			m = m[cut:]
		}
		s.steps = append(s.steps, g.send(append(m, &pgproto3.Flush{})...))
	}
	s.steps = append(s.steps, g.send(&pgproto3.Sync{}))
	s.steps = append(s.steps, g.queries("rollback")...)
	return s
}

// unnamed reuses the unnamed statement over Syncs, and after what ends it.
func (g *gen) unnamed() section {
	s := section{holds: true}
	sql, oids, params := g.parsed()
	s.steps = append(s.steps, g.send(&pgproto3.Parse{Query: sql, ParameterOIDs: oids}, &pgproto3.Sync{}))
	for range 1 + g.rng.IntN(4) {
		if g.oneIn(5) {
			s.steps = append(s.steps, g.send(query("select 'ends the unnamed statement'")))
		}
		m := []pgproto3.FrontendMessage{g.bind("", "", params), &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{}, &pgproto3.Sync{}}
		s.steps = append(s.steps, g.send(m...))
	}
	// So that a proxy may let go of it.
	s.steps = append(s.steps, g.send(&pgproto3.Close{ObjectType: 'S'}, &pgproto3.Sync{}))
	return s
}

func (g *gen) transaction() section {
	var s section
	s.steps = g.queries(pick(g, "begin", "BEGIN;", "start transaction", "begin isolation level repeatable read", "begin read only", "begin; select 1"))
	for range g.rng.IntN(7) {
		switch g.rng.IntN(8) {
		case 0:
			s.steps = append(s.steps, g.queries("savepoint a")...)
		case 1:
			s.steps = append(s.steps, g.queries("rollback to a", "release a")...)
		case 2:
			m := append(g.one(), &pgproto3.Sync{})
			s.steps = append(s.steps, g.send(m...))
		case 3:
			s.steps = append(s.steps, g.queries("declare c cursor for select i from generate_series(1, 50) i", "fetch 7 from c", "move 3 in c; fetch 2 from c")...)
		case 4:
			// A portal that outlives its Sync.
			s.steps = append(s.steps,
				g.send(&pgproto3.Parse{Query: "select i from generate_series(1, 40) i"}, &pgproto3.Bind{DestinationPortal: "open"},
					&pgproto3.Execute{Portal: "open", MaxRows: 5}, &pgproto3.Sync{}),
				g.send(&pgproto3.Execute{Portal: "open", MaxRows: 6}, &pgproto3.Sync{}))
		case 5:
			s.steps = append(s.steps, g.queries("commit and chain")...)
		case 6:
			s.steps = append(s.steps, g.queries("set local statement_timeout = '1min'", "show statement_timeout", "set local datestyle = 'German'", "select date '2020-02-01'")...)
		default:
			s.steps = append(s.steps, g.queries(g.statement())...)
		}
	}
	s.steps = append(s.steps, g.queries(pick(g, "commit", "rollback", "COMMIT", "end"), "rollback", "show statement_timeout", "show datestyle")...)
	return s
}

// copying covers both directions, complete, failed, pipelined and out of place.
func (g *gen) copying() section {
	var s section
	start := "copy " + g.table + " from stdin"
	rows := func(n int) *pgproto3.CopyData {
		var b []byte
		for range n {
			b = fmt.Appendf(b, "%d\tcopied\n", 1000+g.rng.IntN(1e6))
		}
		return &pgproto3.CopyData{Data: b}
	}
	extended := func(sql string) []pgproto3.FrontendMessage {
		return []pgproto3.FrontendMessage{&pgproto3.Parse{Query: sql}, &pgproto3.Bind{}, &pgproto3.Execute{}}
	}
	done, fail := &pgproto3.CopyDone{}, &pgproto3.CopyFail{Message: "stopped by client " + strconv.Itoa(g.id)}
	for range 1 + g.rng.IntN(3) {
		switch g.rng.IntN(9) {
		case 0: // with the handshake
			s.steps = append(s.steps, g.send(query(start)), g.send(rows(g.rng.IntN(50)), rows(3), done))
		case 1: // without waiting for it
			s.steps = append(s.steps, g.send(query(start), rows(20), rows(0), done))
		case 2:
			s.steps = append(s.steps, g.send(query(start)), g.send(rows(5), fail))
		case 3: // bad data; the rest is ignored
			s.steps = append(s.steps, g.send(query(start), &pgproto3.CopyData{Data: []byte("not a number\tx\n")}, rows(2), done))
		case 4: // refused; the data is ignored
			s.steps = append(s.steps, g.send(query("copy no_such_table from stdin"), rows(2), done), g.send(query("select 1")))
		case 5:
			s.steps = append(s.steps, g.send(append(extended(start), rows(10), done, &pgproto3.Sync{})...))
		case 6: // the first Sync is swallowed by the COPY
			s.steps = append(s.steps, g.send(append(extended(start), &pgproto3.Sync{})...), g.send(rows(4), &pgproto3.Flush{}, done, &pgproto3.Sync{}))
		case 7:
			s.steps = append(s.steps, g.send(append(extended("copy "+g.table+" to stdout"), &pgproto3.Sync{})...))
		case 8: // several statements around it
			s.steps = append(s.steps, g.send(query("select 1; "+start+"; select 2"), rows(3), done))
		}
	}
	s.steps = append(s.steps, g.queries("delete from "+g.table+" where k >= 1000")...)
	return s
}

// Object ids of functions for FunctionCall (pg_proc.dat; they never change).
const (
	oidLower   = 870
	oidInt4Pl  = 177
	oidInt4Div = 154
)

func (g *gen) functions() section {
	i32 := func(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }
	var s section
	for range 1 + g.rng.IntN(3) {
		s.steps = append(s.steps, g.send(pick(g,
			&pgproto3.FunctionCall{Function: oidLower, ArgFormatCodes: []uint16{0}, Arguments: [][]byte{[]byte("ABC")}},
			&pgproto3.FunctionCall{Function: oidInt4Pl, ArgFormatCodes: []uint16{1}, Arguments: [][]byte{i32(40), i32(2)}, ResultFormatCode: 1},
			&pgproto3.FunctionCall{Function: oidInt4Div, ArgFormatCodes: []uint16{1}, Arguments: [][]byte{i32(1), i32(0)}},
			&pgproto3.FunctionCall{Function: oidInt4Pl, Arguments: [][]byte{[]byte("1")}},
			&pgproto3.FunctionCall{Function: 1, Arguments: [][]byte{}},
			&pgproto3.FunctionCall{Function: oidLower, Arguments: [][]byte{nil}},
		)))
	}
	return s
}

// large results and parameters, so that both directions fill up at once.
func (g *gen) large() section {
	size := 1 << (10 + g.rng.IntN(11))
	value := make([]byte, size)
	for i := range value {
		value[i] = byte('a' + (i+g.id)%26)
	}
	var m []pgproto3.FrontendMessage
	for range 1 + g.rng.IntN(3) {
		m = append(m, &pgproto3.Parse{Query: "select $1::text, length($1::text)"}, &pgproto3.Bind{Parameters: [][]byte{value}}, &pgproto3.Execute{})
	}
	m = append(m, &pgproto3.Sync{}, query(fmt.Sprintf("select repeat('%c', %d) from generate_series(1, 3)", 'a'+g.id%26, size)))
	return section{steps: []step{g.send(m...)}}
}
