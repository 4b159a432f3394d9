package fidelity

import (
	"fmt"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/multipooler/multipooler/test/differential"
	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(mp.StopAfter(pgtest.StopAfter(m))) }

// bed is a multipooler before one of two equal databases of the shared server.
type bed struct {
	in     *mp.Instance
	server *pgtest.Server
	slots  int
	direct string // URL of the database that is reached without multipooler
	inside string // URL of the other one, without multipooler
	url    string // and with it
}

var beds atomic.Int64

// unstarted makes two databases of equal content. The second has room for slots
// connections, so that one too many is an error that clients see.
func unstarted(tb testing.TB, slots int) *bed {
	tb.Helper()
	s, n := pgtest.Shared(tb), beds.Add(1)
	direct, proxied := fmt.Sprintf("direct_%d", n), fmt.Sprintf("proxied_%d", n)
	s.Exec(tb, "create database "+direct+" owner app", fmt.Sprintf("create database %s owner app connection limit %d", proxied, slots))
	return &bed{server: s, slots: slots, direct: s.URL("app", direct), inside: s.URL("app", proxied)}
}

// newBed starts a multipooler with the given slots and flags.
func newBed(tb testing.TB, slots int, args ...string) *bed {
	tb.Helper()
	b := unstarted(tb, slots)
	b.start(tb, b.inside, args...)
	return b
}

// start runs multipooler in front of the server of a URL.
func (b *bed) start(tb testing.TB, target string, args ...string) {
	tb.Helper()
	b.in = mp.Start(tb, mp.Options{Target: target, Args: append([]string{
		"--connpool-global-capacity=" + strconv.Itoa(b.slots),
		"--acquire-timeout=60s", // a machine may be slow; a wait is not a fault here
	}, args...)})
	b.url = at(tb, b.inside, b.in.Addr())
}

// at is the URL with another address.
func at(tb testing.TB, base, addr string) string {
	tb.Helper()
	u, err := url.Parse(base)
	if err != nil {
		tb.Fatal(err)
	}
	u.Host = addr
	return u.String()
}

// nothingLeaked looks into every server connection for what sessions left behind.
func (b *bed) nothingLeaked(tb testing.TB) {
	tb.Helper()
	leaks, err := differential.LeakedState(tb.Context(), b.direct, b.url, b.slots)
	if err != nil || len(leaks) != 0 {
		tb.Errorf("left behind in server connections: %q, %v", leaks, err)
	}
}

// rest waits until multipooler has nothing to do.
func (b *bed) rest(tb testing.TB) {
	tb.Helper()
	mp.Eventually(tb, 20*time.Second, "all slots are back", func() bool {
		return b.in.Metric(tb, "multipooler_slots", `state="active"`) == 0 &&
			b.in.Metric(tb, "multipooler_slots", `state="dialing"`) == 0 &&
			b.in.Metric(tb, "multipooler_slots", `state="draining"`) == 0 &&
			b.in.Metric(tb, "multipooler_pool_waiting") == 0
	})
}
