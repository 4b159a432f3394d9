package fidelity

import (
	"testing"

	"github.com/multipooler/multipooler/test/differential"
	"github.com/multipooler/multipooler/test/faultconn"
)

// crumbs cuts both directions of a connection into single bytes, and from some
// point on into pieces that no buffer's size divides: single bytes all the way
// would take minutes for the large values.
func crumbs(n int) []faultconn.Fault {
	var all []faultconn.Fault
	for _, d := range []faultconn.Direction{faultconn.ToServer, faultconn.ToClient} {
		all = append(all,
			faultconn.Fault{At: faultconn.BeforeByte(d, 0), Action: faultconn.Fragment, Size: 1},
			faultconn.Fault{At: faultconn.BeforeByte(d, 6000), Action: faultconn.Fragment, Size: 2 + n%7},
			faultconn.Fault{At: faultconn.BeforeByte(d, 20000), Action: faultconn.Fragment, Size: 1021},
		)
	}
	return all
}

// between puts a proxy that crumbles everything in front of addr.
func between(tb testing.TB, addr string) string {
	tb.Helper()
	p, err := faultconn.Listen(addr, crumbs)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	return p.Addr()
}

func TestRepliesAreEqualHoweverTheBytesArrive(t *testing.T) {
	for _, tt := range []struct {
		name           string
		client, server bool
		cfg            differential.Config
	}{
		{"from and to clients", true, false, differential.Config{Seed: 101, Clients: 4, Steps: 15, State: true}},
		{"from and to the server", false, true, differential.Config{Seed: 102, Clients: 6, Steps: 8, Reconnect: true}},
		{"on both sides", true, true, differential.Config{Seed: 103, Clients: 4, Steps: 10, State: true, Reconnect: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := unstarted(t, 4)
			target := b.inside
			if tt.server {
				target = at(t, target, between(t, b.server.Addr()))
			}
			b.start(t, target, "--event-loops=2")
			plain := b.url
			if tt.client {
				b.url = at(t, b.url, between(t, b.in.Addr()))
			}
			b.same(t, tt.cfg)
			b.url = plain
			b.nothingLeaked(t)
		})
	}
}
