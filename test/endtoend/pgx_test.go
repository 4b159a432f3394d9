package endtoend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/multipooler/multipooler/test/mp"
)

// limitOfRest is how long something that has to happen in another process may
// take on a busy machine.
const limitOfRest = 10 * time.Second

func TestPgxWorksInAllItsModes(t *testing.T) {
	in, s := front(t, slots(2))
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			cfg, err := pgx.ParseConfig(in.URL("app", "app"))
			if err != nil {
				t.Fatal(err)
			}
			cfg.DefaultQueryExecMode = mode
			ctx := limited(t, 30*time.Second)
			conn, err := pgx.ConnectConfig(ctx, cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(ctx)
			for i := range 5 {
				var n int
				var text string
				var at time.Time
				err := conn.QueryRow(ctx, "SELECT $1::int + 1, $2::text || '!', $3::timestamptz", i, "é'\\", time.Unix(int64(i), 0)).Scan(&n, &text, &at)
				if err != nil || n != i+1 || text != "é'\\!" || at.Unix() != int64(i) {
					t.Fatalf("got %d, %q, %v, %v", n, text, at, err)
				}
			}
			if _, err := conn.Exec(ctx, "SELECT 1/$1::int", 0); sqlState(err) != "22012" {
				t.Errorf("division by zero: %v", err)
			}
			tx, err := conn.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(ctx, "CREATE TABLE pgx_modes (n int)"); err != nil {
				t.Fatal(err)
			}
			b := &pgx.Batch{}
			for i := range 50 {
				b.Queue("INSERT INTO pgx_modes VALUES ($1)", i)
			}
			b.Queue("SELECT sum(n) FROM pgx_modes")
			res := tx.SendBatch(ctx, b)
			for range 50 {
				if _, err := res.Exec(); err != nil {
					t.Fatal(err)
				}
			}
			var sum int
			if err := res.QueryRow().Scan(&sum); err != nil || sum != 49*50/2 {
				t.Errorf("sum %d, %v", sum, err)
			}
			if err := res.Close(); err != nil {
				t.Error(err)
			}
			n, err := tx.CopyFrom(ctx, pgx.Identifier{"pgx_modes"}, []string{"n"}, pgx.CopyFromSlice(1000, func(i int) ([]any, error) { return []any{i}, nil }))
			if err != nil || n != 1000 {
				t.Errorf("copied %d, %v", n, err)
			}
			if err := tx.Rollback(ctx); err != nil {
				t.Error(err)
			}
			if _, err := conn.Exec(ctx, "SELECT * FROM pgx_modes"); sqlState(err) != "42P01" {
				t.Errorf("the table after the rollback: %v", err)
			}
		})
	}
	if got := s.Password("app"); got == "" {
		t.Error("the server asks for no password")
	}
}

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

func TestABatchThatFailsInTheMiddleLeavesTheSessionUsable(t *testing.T) {
	in, _ := front(t, slots(1))
	conn := connect(t, in.URL("app", "app"))
	ctx := limited(t, 20*time.Second)
	for range 3 {
		b := &pgx.Batch{}
		b.Queue("SELECT 1")
		b.Queue("SELECT 1/$1::int", 0)
		b.Queue("SELECT 3")
		res := conn.SendBatch(ctx, b)
		if _, err := res.Exec(); err != nil {
			t.Fatal(err)
		}
		if _, err := res.Exec(); sqlState(err) != "22012" {
			t.Fatal(err)
		}
		res.Close()
		if got := one(t, conn, "SELECT 'alive'"); got != "alive" {
			t.Error(got)
		}
	}
}

func TestNotificationsReachTheListenerAndNobodyElse(t *testing.T) {
	in, _ := front(t, slots(3))
	listener, other, sender := connect(t, in.URL("app", "app")), connect(t, in.URL("app", "app")), connect(t, in.URL("app", "app"))
	do(t, listener, "LISTEN news")
	do(t, other, "SELECT 1")
	for i := range 5 {
		do(t, sender, fmt.Sprintf("NOTIFY news, 'number %d'", i))
		n, err := listener.WaitForNotification(limited(t, limitOfRest))
		if err != nil || n.Channel != "news" || n.Payload != fmt.Sprintf("number %d", i) {
			t.Fatalf("got %+v, %v", n, err)
		}
	}
	do(t, listener, "UNLISTEN *")
	do(t, sender, "NOTIFY news, 'nobody'")
	for range 20 { // on whatever connection they get
		do(t, other, "SELECT 1")
		do(t, listener, "SELECT 1")
	}
	for name, c := range map[string]*pgx.Conn{"other": other, "listener": listener} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if n, err := c.WaitForNotification(ctx); err == nil {
			t.Errorf("%s was notified: %+v", name, n)
		}
		cancel()
	}
}

func TestLargeObjectsAreReadAndWritten(t *testing.T) {
	in, _ := front(t, slots(1))
	conn := connect(t, in.URL("app", "app"))
	ctx := limited(t, 30*time.Second)
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	objects := tx.LargeObjects()
	oid, err := objects.Create(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := objects.Open(ctx, oid, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("large object ", 50_000)
	if _, err := io.WriteString(obj, text); err != nil {
		t.Fatal(err)
	}
	if _, err := obj.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(obj)
	if err != nil || string(got) != text {
		t.Errorf("read %d bytes of %d, %v", len(got), len(text), err)
	}
	if err := objects.Unlink(ctx, oid); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Error(err)
	}
}

func TestAContextThatEndsCancelsTheStatement(t *testing.T) {
	in, s := front(t, slots(1))
	cfg, err := pgx.ParseConfig(in.URL("app", "app"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, CancelRequestDelay: 0, DeadlineDelay: 10 * time.Second}
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	admin := s.Admin(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for sleeping := 0; sleeping == 0 && t.Context().Err() == nil; {
			if admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(60)%' AND state = 'active'").Scan(&sleeping) != nil {
				return
			}
		}
	}()
	start := time.Now()
	_, err = conn.Exec(ctx, "SELECT pg_sleep(60)")
	if sqlState(err) != "57014" || time.Since(start) > 20*time.Second {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	if got := one(t, conn, "SELECT 'alive'"); got != "alive" {
		t.Error(got)
	}
	if in.Metric(t, "multipooler_cancels_total", `result="sent"`) != 1 {
		t.Error("the cancel was not counted")
	}
}

func TestAPoolOfFiftyWorksOnFiveSlots(t *testing.T) {
	in, s := front(t, slots(5))
	ctx := limited(t, time.Minute)
	cfg, err := pgxpool.ParseConfig(in.URL("app", "app", "default_query_exec_mode=exec", "pool_max_conns=50"))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "CREATE TABLE fifty (worker int, n int)"); err != nil {
		t.Fatal(err)
	}
	var workers sync.WaitGroup
	for worker := range 50 {
		workers.Go(func() {
			for i := range 20 {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, "INSERT INTO fifty VALUES ($1, $2)", worker, i); err != nil {
						return err
					}
					var mine int
					if err := tx.QueryRow(ctx, "SELECT count(*) FROM fifty WHERE worker = $1", worker).Scan(&mine); err != nil || mine != i+1 {
						return fmt.Errorf("worker %d sees %d of %d rows: %w", worker, mine, i+1, err)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	if got := one(t, s.Admin(t), "SELECT count(*)::text FROM pg_stat_activity WHERE usename = 'app'"); got > "5" {
		t.Errorf("%s server connections", got)
	}
	var rows int
	if err := pool.QueryRow(ctx, "SELECT count(*) FROM fifty").Scan(&rows); err != nil || rows != 1000 {
		t.Errorf("%d rows, %v", rows, err)
	}
	if _, err := pool.Exec(ctx, "DROP TABLE fifty"); err != nil {
		t.Error(err)
	}
	mp.Eventually(t, limitOfRest, "all slots are idle", func() bool { return in.Metric(t, "multipooler_slots", `state="active"`) == 0 })
}
