package endtoend

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/multipooler/multipooler/test/pgtest"
)

// pgbench runs pgbench for a count of transactions per client and fails unless
// each of them was processed.
func pgbench(tb testing.TB, s *pgtest.Server, url string, clients, transactions int, args ...string) {
	tb.Helper()
	all := append([]string{"-n", "-c", strconv.Itoa(clients), "-j", "2", "-t", strconv.Itoa(transactions)}, args...)
	r := run(tb, program{path: s.Tool(tb, "pgbench"), args: all, env: libpqEnv(tb, url)})
	want := strconv.Itoa(clients*transactions) + "/" + strconv.Itoa(clients*transactions)
	if r.code != 0 || !strings.Contains(r.stdout, "processed: "+want) || strings.Contains(r.stderr, "ERROR") {
		tb.Fatalf("pgbench %q ended with %d:\n%s%s", all, r.code, r.stdout, r.stderr)
	}
	if m := regexp.MustCompile(`number of failed transactions: (\d+)`).FindStringSubmatch(r.stdout); m != nil && m[1] != "0" {
		tb.Fatalf("%s transactions failed:\n%s", m[1], r.stdout)
	}
}

func TestPgbenchRunsInAllItsModes(t *testing.T) {
	in, s := front(t, slots(20))
	url := in.URL("app", "app")
	runOK(t, program{path: s.Tool(t, "pgbench"), args: []string{"-i", "-q", "-s", "2"}, env: libpqEnv(t, url)})
	admin := s.Admin(t)

	for _, tt := range []struct {
		name             string
		clients, perEach int
		args             []string
	}{
		{"select-only, simple, 1 client", 1, 300, []string{"-S", "-M", "simple"}},
		{"select-only, simple, 200 clients", 200, 20, []string{"-S", "-M", "simple"}},
		{"select-only, extended, 64 clients", 64, 50, []string{"-S", "-M", "extended"}},
		{"select-only, prepared, 20 clients", 20, 100, []string{"-S", "-M", "prepared"}},
		{"TPC-B, simple, 50 clients", 50, 10, []string{"-M", "simple"}},
		{"TPC-B, extended, 200 clients", 200, 4, []string{"-M", "extended"}},
		{"TPC-B, prepared, 10 clients", 10, 20, []string{"-M", "prepared"}},
		{"a connection for each transaction", 8, 15, []string{"-S", "-C"}},
		{"a connection for each TPC-B transaction", 30, 4, []string{"-C", "-M", "extended"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pgbench(t, s, url, tt.clients, tt.perEach, tt.args...)
			var most int
			if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'").Scan(&most); err != nil || most > 20 {
				t.Errorf("%d server connections for 20 slots, %v", most, err)
			}
		})
	}

	// TPC-B moves money and loses none.
	sums := psql(t, s, s.URL("app", "app"), "-c", `SELECT (SELECT sum(abalance) FROM pgbench_accounts) = h AND (SELECT sum(bbalance) FROM pgbench_branches) = h
		AND (SELECT sum(tbalance) FROM pgbench_tellers) = h, n FROM (SELECT sum(delta) h, count(*) n FROM pgbench_history) x`)
	if want := "t|" + strconv.Itoa(50*10+200*4+10*20+30*4) + "\n"; sums.stdout != want {
		t.Errorf("sums %q, want %q", sums.stdout+sums.stderr, want)
	}
	runOK(t, program{path: s.Tool(t, "pgbench"), args: []string{"-i", "-I", "d"}, env: libpqEnv(t, url)})
}
