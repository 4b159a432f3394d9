package admin

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// connect logs a real driver in. The login that pooler does is done here.
func connect(t *testing.T, c *Console, mode pgx.QueryExecMode) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig("postgres://root@console/multipooler?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	cfg.DefaultQueryExecMode = mode
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer server.Close()
			login := pgproto3.NewBackend(server, server)
			if _, err := login.ReceiveStartupMessage(); err != nil {
				return
			}
			login.Send(&pgproto3.AuthenticationOk{})
			if login.Flush() == nil {
				_ = c.Serve(t.Context(), server, testAdmin)
			}
		}()
		t.Cleanup(func() { <-ended })
		return client, nil
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement,
	pgx.QueryExecModeCacheDescribe,
	pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec,
	pgx.QueryExecModeSimpleProtocol,
}

func TestPgxReadsTablesInEveryExecMode(t *testing.T) {
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			conn := connect(t, newTestConsole(t, nil), mode)
			for range 2 { // the second time from pgx's statement cache
				rows, err := conn.Query(t.Context(), "SHOW POOLS")
				if err != nil {
					t.Fatal(err)
				}
				got, err := pgx.CollectRows(rows, pgx.RowToMap)
				if err != nil {
					t.Fatal(err)
				}
				if len(got) != 2 || got[0]["user"] != "alice" || got[0]["cl_waiting"] != int64(13) || got[0]["load_balance_hosts"] != nil {
					t.Fatalf("got %v", got)
				}
			}
			var one int
			var version string
			if err := conn.QueryRow(t.Context(), "select 1 as one, version()").Scan(&one, &version); err != nil {
				t.Fatal(err)
			}
			if one != 1 || version != "multipooler 1.2.3" {
				t.Fatalf("got %d, %q", one, version)
			}
		})
	}
}

func TestPgxGoesOnAfterAnError(t *testing.T) {
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			conn := connect(t, newTestConsole(t, nil), mode)
			_, err := conn.Exec(t.Context(), "FROBNICATE now")
			pgErr, ok := errors.AsType[*pgconn.PgError](err)
			if !ok || pgErr.Code != "42601" || pgErr.Hint == "" {
				t.Fatalf("got %v, want 42601 with a hint", err)
			}
			if err := conn.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestPgxTransactionsAndBatches(t *testing.T) {
	conn := connect(t, newTestConsole(t, nil), pgx.QueryExecModeCacheStatement)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := conn.PgConn().TxStatus(); got != 'T' {
		t.Errorf("status %c inside BEGIN", got)
	}
	b := &pgx.Batch{}
	b.Queue("SHOW VERSION")
	b.Queue("SHOW LISTS")
	if err := tx.SendBatch(t.Context(), b).Close(); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := conn.PgConn().TxStatus(); got != 'I' {
		t.Errorf("status %c after COMMIT", got)
	}
}

func TestHelpIsANoticeAndATable(t *testing.T) {
	c := newTestConsole(t, nil)
	conn := connect(t, c, pgx.QueryExecModeSimpleProtocol)
	results, err := conn.PgConn().Exec(t.Context(), "show help;").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for _, row := range results[0].Rows {
		commands = append(commands, string(row[0]))
	}
	for _, want := range []string{"SHOW POOLS", "SHOW CLIENTS", "SHOW SERVERS", "SHOW PINS", "SHOW VERSION", "SHOW HELP"} {
		if !slices.Contains(commands, want) {
			t.Errorf("%s is missing in %v", want, commands)
		}
	}
}
