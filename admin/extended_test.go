package admin

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

func TestExtendedProtocol(t *testing.T) {
	type messages = []pgproto3.FrontendMessage
	parse := func(name, sql string) pgproto3.FrontendMessage { return &pgproto3.Parse{Name: name, Query: sql} }
	bind := func(portal, stmt string, formats ...int16) pgproto3.FrontendMessage {
		return &pgproto3.Bind{DestinationPortal: portal, PreparedStatement: stmt, ResultFormatCodes: formats}
	}
	describe := func(kind byte, name string) pgproto3.FrontendMessage {
		return &pgproto3.Describe{ObjectType: kind, Name: name}
	}
	execute := func(portal string, rows uint32) pgproto3.FrontendMessage {
		return &pgproto3.Execute{Portal: portal, MaxRows: rows}
	}
	sync := &pgproto3.Sync{}
	const lists = "RowDescription n:20/0 name:25/0"

	for _, tt := range []struct {
		name string
		send messages
		want []string
	}{
		{
			"unnamed, as psycopg and JDBC send it",
			messages{parse("", "SHOW NUMBERS;"), bind("", ""), describe('P', ""), execute("", 0), sync},
			[]string{"ParseComplete", "BindComplete", lists, `DataRow ["1" "one"]`, `DataRow ["2" "two"]`, `DataRow ["3" ""]`, "CommandComplete SHOW", "Ready I"},
		},
		{
			"binary results",
			messages{parse("", "SHOW NUMBERS"), bind("", "", 1), describe('P', ""), execute("", 1), sync},
			[]string{"ParseComplete", "BindComplete", "RowDescription n:20/1 name:25/1", `DataRow ["\x00\x00\x00\x00\x00\x00\x00\x01" "one"]`, "PortalSuspended", "Ready I"},
		},
		{
			"formats per column",
			messages{parse("", "SHOW NUMBERS"), bind("", "", 0, 1), execute("", 1), sync},
			[]string{"ParseComplete", "BindComplete", `DataRow ["1" "one"]`, "PortalSuspended", "Ready I"},
		},
		{
			"named statement, described before it is bound, used twice",
			messages{parse("s", "SHOW NUMBERS"), describe('S', "s"), sync, bind("", "s"), execute("", 0), bind("p", "s"), execute("p", 2), sync},
			[]string{
				"ParseComplete", "ParameterDescription", lists, "Ready I",
				"BindComplete", `DataRow ["1" "one"]`, `DataRow ["2" "two"]`, `DataRow ["3" ""]`, "CommandComplete SHOW",
				"BindComplete", `DataRow ["1" "one"]`, `DataRow ["2" "two"]`, "PortalSuspended", "Ready I",
			},
		},
		{
			"row limits resume where they stopped",
			messages{parse("", "SHOW NUMBERS"), bind("", ""), execute("", 2), execute("", 1), execute("", 1), sync},
			[]string{
				"ParseComplete", "BindComplete", `DataRow ["1" "one"]`, `DataRow ["2" "two"]`, "PortalSuspended",
				`DataRow ["3" ""]`, "CommandComplete SHOW", "CommandComplete SHOW", "Ready I",
			},
		},
		{
			"portals end with Sync",
			messages{parse("", "SHOW NUMBERS"), bind("p", ""), sync, execute("p", 0), sync},
			[]string{"ParseComplete", "BindComplete", "Ready I", "ERROR 34000", "Ready I"},
		},
		{
			"but not inside BEGIN",
			messages{&pgproto3.Query{String: "BEGIN"}, parse("", "SHOW NUMBERS"), bind("p", ""), sync, execute("p", 1), sync},
			[]string{"CommandComplete BEGIN", "Ready T", "ParseComplete", "BindComplete", "Ready T", `DataRow ["1" "one"]`, "PortalSuspended", "Ready T"},
		},
		{
			"no rows to describe",
			messages{parse("", "SET client_encoding = 'UTF8'"), describe('S', ""), bind("", ""), describe('P', ""), execute("", 0), sync},
			[]string{"ParseComplete", "ParameterDescription", "NoData", "BindComplete", "NoData", "CommandComplete SET", "Ready I"},
		},
		{
			"the empty query",
			messages{parse("", ";"), describe('S', ""), bind("", "", 1), execute("", 0), sync},
			[]string{"ParseComplete", "ParameterDescription", "NoData", "BindComplete", "EmptyQueryResponse", "Ready I"},
		},
		{
			"an error skips to Sync",
			messages{parse("", "NONSENSE"), bind("", ""), execute("", 0), sync, parse("", "SHOW VERSION"), sync},
			[]string{"ERROR 42601", "Ready I", "ParseComplete", "Ready I"},
		},
		{
			"an error while executing skips to Sync",
			messages{parse("", "SHOW BROKEN"), bind("", ""), execute("", 0), execute("", 0), sync},
			[]string{"ParseComplete", "BindComplete", "ERROR XX000", "Ready I"},
		},
		{
			"two commands in one statement",
			messages{parse("", "SHOW VERSION; SHOW VERSION"), sync},
			[]string{"ERROR 42601", "Ready I"},
		},
		{
			"a name that is taken",
			messages{parse("s", "SHOW VERSION"), parse("s", "SHOW VERSION"), sync},
			[]string{"ParseComplete", "ERROR 42P05", "Ready I"},
		},
		{
			"a portal that is taken",
			messages{parse("", "SHOW VERSION"), bind("p", ""), bind("p", ""), sync},
			[]string{"ParseComplete", "BindComplete", "ERROR 42P03", "Ready I"},
		},
		{
			"a closed statement is gone, closing nothing is fine",
			messages{
				parse("s", "SHOW VERSION"), &pgproto3.Close{ObjectType: 'S', Name: "s"}, &pgproto3.Close{ObjectType: 'P', Name: "x"},
				bind("", "s"), sync,
			},
			[]string{"ParseComplete", "CloseComplete", "CloseComplete", "ERROR 26000", "Ready I"},
		},
		{
			"a simple query drops the unnamed statement",
			messages{parse("", "SHOW VERSION"), sync, &pgproto3.Query{String: ""}, bind("", ""), sync},
			[]string{"ParseComplete", "Ready I", "EmptyQueryResponse", "Ready I", "ERROR 26000", "Ready I"},
		},
		{
			"parameters",
			messages{
				parse("", "SHOW VERSION"),
				&pgproto3.Bind{Parameters: [][]byte{[]byte("1")}}, sync,
			},
			[]string{"ParseComplete", "ERROR 08P01", "Ready I"},
		},
		{
			"a wrong number of formats",
			messages{parse("", "SHOW VERSION"), bind("", "", 0, 0), sync},
			[]string{"ParseComplete", "ERROR 08P01", "Ready I"},
		},
		{
			"an unknown format",
			messages{parse("", "SHOW VERSION"), bind("", "", 7), sync},
			[]string{"ParseComplete", "ERROR 08P01", "Ready I"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newTestConsole(t, nil)
			c.Register(Command{Name: "NUMBERS", Columns: columns("n# name"), Rows: func(context.Context) ([][]Value, error) {
				return [][]Value{{Int(1), Text("one")}, {Int(2), Text("two")}, {Int(3), Null()}}, nil
			}})
			c.Register(Command{Name: "BROKEN", Columns: columns("n#"), Rows: func(context.Context) ([][]Value, error) {
				return nil, fmt.Errorf("no such luck")
			}})
			w := dialConsole(t, c, testAdmin)
			w.send(tt.send...)
			var got []string
			for _, m := range tt.send {
				switch m.(type) {
				case *pgproto3.Sync, *pgproto3.Query:
					got = append(got, w.until(untilReady)...)
				}
			}
			expect(t, tt.name, got, tt.want...)
		})
	}
}

func TestFlushAnswersWithoutSync(t *testing.T) {
	w := dialConsole(t, newTestConsole(t, nil), testAdmin)
	w.send(&pgproto3.Parse{Query: "SHOW VERSION"}, &pgproto3.Flush{})
	expect(t, "flush", w.until(&pgproto3.ParseComplete{}), "ParseComplete")
}

func TestStatementsAndPortalsAreBounded(t *testing.T) {
	var statements, portals []pgproto3.FrontendMessage
	for i := range maxNamed + 1 {
		statements = append(statements, &pgproto3.Parse{Name: fmt.Sprint("s", i), Query: "SHOW VERSION"})
		portals = append(portals, &pgproto3.Bind{DestinationPortal: fmt.Sprint("p", i), PreparedStatement: "s0"})
	}
	for what, msgs := range map[string][]pgproto3.FrontendMessage{"statements": statements, "portals": append(statements[:1:1], portals...)} {
		w := dialConsole(t, newTestConsole(t, nil), testAdmin)
		w.send(append(msgs, &pgproto3.Sync{})...)
		got := w.until(untilReady)
		if last := got[len(got)-2]; last != "ERROR 54000" {
			t.Errorf("%s: got %s after %d messages", what, last, len(got))
		}
	}
}
