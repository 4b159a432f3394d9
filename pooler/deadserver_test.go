package pooler

import (
	"net"
	"testing"

	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/test/pgtest"
)

// The loop on which a server connection is parked is the one that hears of its
// end. When that loop is behind, a client of another loop must notice by itself.
func TestAServerConnectionThatDiedOnABusyLoopIsNotLent(t *testing.T) {
	pg := pgtest.Start(t, pgtest.Options{})
	r := run(t, pg.URL("app", "app"), "--auth-type", "trust", "--event-loops", "2", "--connpool-global-capacity", "3")
	r.active.Store(2)
	query, buf := protocol.AppendQuery(nil, "select 1"), make([]byte, 4096)
	clients := [...]net.Conn{rawClient(t, r.addr), rawClient(t, r.addr)} // one on each loop
	eventually(t, "each loop has a client", func() bool { return r.workers[0].n.Load() == 1 && r.workers[1].n.Load() == 1 })
	for i, c := range clients {
		exchange(t, c, query, buf) // parks the connection on this client's loop
		other := clients[1-i]
		here := r.workers[i]
		blocked, goOn := make(chan struct{}), make(chan struct{})
		here.loop.Post(task(func(*eventloop.Loop) {
			close(blocked)
			<-goOn
		}))
		<-blocked
		pg.Exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'")
		eventually(t, "the backends have gone", func() bool {
			var n int
			if err := pg.Admin(t).QueryRow(t.Context(), "select count(*) from pg_stat_activity where usename = 'app'").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n == 0
		})
		exchange(t, other, query, buf) // fails the test when it is answered by an error
		close(goOn)
	}
}
