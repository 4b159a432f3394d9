package pooler

import (
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/test/pgtest"
)

// Each way in which a session ends is counted, and so logged, under its own name.
func TestEveryEndOfASessionHasItsReason(t *testing.T) {
	pg := pgtest.Shared(t)
	welcome := append(message('R', "\x00\x00\x00\x00"), message('S', "server_version\x0017.0\x00")...)
	welcome = append(append(welcome, message('K', "\x00\x00\x00\x01\x00\x00\x00\x02")...), message('Z', "I")...)
	vanishing := hostile(t, func(conn net.Conn) {
		buf := make([]byte, 1024)
		_, _ = conn.Read(buf)
		_, _ = conn.Write(welcome)
		_, _ = conn.Read(buf) // the query
	})
	say := func(p []byte) func(*testing.T, *running) {
		return func(t *testing.T, r *running) {
			conn := rawClient(t, r.addr)
			if _, err := conn.Write(p); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, conn)
		}
	}
	for reason, tt := range map[string]struct {
		target string
		args   []string
		do     func(t *testing.T, r *running)
	}{
		"client_terminate":     {do: say([]byte{'X', 0, 0, 0, 4})},
		"protocol_violation":   {do: say([]byte{1, 0, 0, 0, 4})},
		"idle_in_transaction":  {args: []string{"--connpool-user-reserved-inactivity-timeout", "100ms"}, do: say(protocol.AppendQuery(nil, "begin"))},
		"client_idle_timeout":  {args: []string{"--client-idle-timeout", "100ms"}, do: say(protocol.AppendQuery(nil, "select 1"))},
		"client_stall_timeout": {args: []string{"--client-stall-timeout", "200ms"}, do: stall},
		"statement_mode":       {args: []string{"--pool-mode", "statement"}, do: say(protocol.AppendQuery(nil, "begin"))},
		"server_fatal":         {do: say(protocol.AppendQuery(nil, "select pg_terminate_backend(pg_backend_pid())"))},
		"server_gone":          {target: "postgres://app:secret@" + vanishing + "/app?sslmode=disable", do: say(protocol.AppendQuery(nil, "select 1"))},
		"client_gone":          {do: func(t *testing.T, r *running) { rawClient(t, r.addr).Close() }},
		"login_refused": {do: func(t *testing.T, r *running) {
			_, err := pgconn.Connect(t.Context(), r.addressOf("app", "x", "app")+"?work_mem=much")
			if err == nil {
				t.Error("the login succeeded")
			}
		}},
		"shutdown": {do: func(t *testing.T, r *running) {
			conn := rawClient(t, r.addr)
			r.stop()
			_, _ = io.Copy(io.Discard, conn)
		}},
	} {
		t.Run(reason, func(t *testing.T) {
			target := tt.target
			if target == "" {
				target = pg.URL("app", "app")
			}
			r := run(t, target, append(tt.args, "--auth-type", "trust")...)
			tt.do(t, r)
			eventually(t, "the end is counted", func() bool {
				ends := r.Totals().Disconnects
				all := uint64(0)
				for _, n := range ends {
					all += n
				}
				return ends[reason] == 1 && all == 1
			})
		})
	}
}

// stall asks for much and reads nothing.
func stall(t *testing.T, r *running) {
	conn := rawClient(t, r.addr)
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	if _, err := conn.Write(protocol.AppendQuery(nil, "select repeat('x', 1000000) from generate_series(1, 100)")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is cut", func() bool { return r.clients.Load() == 0 })
}
