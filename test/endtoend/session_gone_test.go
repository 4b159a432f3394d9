package endtoend

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
)

// hangUp ends the connection as a crashed process does: with a reset.
func (r *raw) hangUp() {
	if c, ok := r.conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	r.conn.Close()
}

func TestAClientThatIsGoneLeavesNothingAndItsSlotComesBack(t *testing.T) {
	in, s := front(t, slots(1), trusting)
	psql(t, s, s.URL("app", "app"), "-c", "CREATE TABLE gone (what text)")
	defer psql(t, s, s.URL("app", "app"), "-c", "DROP TABLE gone")
	other := loginRaw(t, in.Addr())
	for _, tt := range []struct {
		name string
		do   func(r *raw)
		rows string // that stay in the table
	}{
		{"idle", func(*raw) {}, "0"},
		{"in a transaction", func(r *raw) {
			r.query("BEGIN")
			r.query("INSERT INTO gone VALUES ('x')")
		}, "0"},
		{"in a failed transaction", func(r *raw) {
			r.query("BEGIN; INSERT INTO gone VALUES ('x'); SELECT 1/0")
		}, "0"},
		{"in a query", func(r *raw) {
			r.send(&pgproto3.Query{String: "SELECT pg_sleep(0.2), 'gone in a query'"})
			untilRunning(t, s, "gone in a query", 1)
		}, "0"},
		{"in a write that was sent", func(r *raw) {
			r.send(&pgproto3.Query{String: "INSERT INTO gone SELECT 'stays' FROM pg_sleep(0.2)"})
			untilRunning(t, s, "stays", 1)
		}, "1"},
		{"in a write of the extended protocol", func(r *raw) {
			r.send(parse("", "INSERT INTO gone SELECT 'stays too' FROM pg_sleep(0.2)"), bind(""), execute, syncNow)
			untilRunning(t, s, "stays too", 1)
		}, "1"},
		{"in a batch without its Sync", func(r *raw) {
			r.send(parse("", "INSERT INTO gone VALUES ('never')"), bind(""), execute, flush)
			r.expect("1", "2", "C(INSERT 0 1)")
		}, "0"},
		{"in COPY IN", func(r *raw) {
			r.send(&pgproto3.Query{String: "COPY gone FROM STDIN"})
			r.expect("G")
			r.send(&pgproto3.CopyData{Data: []byte("never\n")})
		}, "0"},
		{"in a message of COPY IN", func(r *raw) {
			r.send(&pgproto3.Query{String: "COPY gone FROM STDIN"})
			r.expect("G")
			r.sendBytes(append([]byte{'d', 0, 0, 1, 0}, "half a message"...))
		}, "0"},
		{"in COPY OUT", func(r *raw) {
			r.send(&pgproto3.Query{String: "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 1000000)) TO STDOUT"})
			r.expect("H", "d(\""+strings.Repeat("x", 1000)+"\\n\")")
		}, "0"},
		{"in a large result", func(r *raw) {
			r.send(&pgproto3.Query{String: "SELECT repeat('x', 1000) FROM generate_series(1, 1000000)"})
			r.expect("T")
		}, "0"},
		{"in a large query", func(r *raw) {
			r.sendBytes(append([]byte{'Q', 0, 16, 0, 0}, bytes.Repeat([]byte("-- half a query\n"), 10_000)...))
		}, "0"},
		{"with a setting", func(r *raw) { r.query("SET work_mem = '9MB'") }, "0"},
		{"with a lock", func(r *raw) { r.query("SELECT pg_advisory_lock(1)") }, "0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := loginRaw(t, in.Addr())
			tt.do(r)
			r.hangUp()
			if got := other.value("SELECT count(*) FROM gone"); got != tt.rows {
				t.Errorf("%s rows, want %s", got, tt.rows)
			}
			if got := other.value("SHOW work_mem"); got != "4MB" {
				t.Errorf("work_mem %s", got)
			}
			if got := other.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"); got != "0" {
				t.Errorf("%s advisory locks", got)
			}
			other.query("TRUNCATE gone")
		})
	}
	mp.Eventually(t, limitOfRest, "one client is left", func() bool { return in.Metric(t, "multipooler_clients") == 1 })
	if got := in.Metric(t, "multipooler_client_disconnects_total", `reason="client_gone"`); got != 14 {
		t.Errorf("%v clients were gone", got)
	}
}

func TestAFatalErrorOfTheServerReachesTheClient(t *testing.T) {
	in, s := front(t, slots(2), trusting)
	admin := s.Admin(t)
	r, other := loginRaw(t, in.Addr()), loginRaw(t, in.Addr())
	r.send(&pgproto3.Query{String: "SELECT pg_sleep(60), 'terminated'"})
	untilRunning(t, s, "terminated", 1)
	do(t, admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%terminated%' AND pid <> pg_backend_pid()")
	if got := r.reply(); !strings.HasSuffix(got, "E(FATAL 57P01) EOF") {
		t.Errorf("in a query: %s", got)
	}

	r = loginRaw(t, in.Addr())
	r.query("BEGIN; SELECT 'idle in it'")
	do(t, admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'")
	if got := r.reply(); got != "E(FATAL 57P01) EOF" {
		t.Errorf("idle in a transaction: %s", got)
	}

	// A session without a server connection has nothing to do with it.
	if got := other.value("SELECT 'alive'"); got != "alive" {
		t.Error(got)
	}
	// The death of an idle server connection is noticed without a client's help.
	do(t, admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
	mp.Eventually(t, limitOfRest, "no server connection is left", func() bool { return in.Metric(t, "multipooler_slots", `state="idle"`) == 0 })
	if got := other.value("SELECT 'alive'"); got != "alive" {
		t.Error(got)
	}
	if got := in.Metric(t, "multipooler_client_disconnects_total", `reason="server_fatal"`); got != 2 {
		t.Errorf("%v sessions ended by the server", got)
	}
}
