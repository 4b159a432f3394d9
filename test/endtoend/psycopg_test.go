package endtoend

import (
	"strings"
	"testing"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

// The checks are Python; each is written so that it holds directly as well.
const psycopgChecks = "testdata/psycopg_checks.py"

func TestPsycopgWorks(t *testing.T) {
	in, s := front(t, slots(6))
	python := pgtest.Python(t)
	check := func(url string) ended {
		return run(t, program{path: python, args: []string{psycopgChecks, url}})
	}
	direct, pooled := check(s.URL("app", "app")), check(in.URL("app", "app"))
	if strings.Count(direct.stdout, " ok\n") < 15 || strings.Contains(direct.stdout, "failed") || direct.code != 0 {
		t.Fatalf("the checks are wrong, they fail directly: %d\n%s%s", direct.code, direct.stdout, direct.stderr)
	}
	if pooled.stdout != direct.stdout {
		t.Errorf("%d\n%s%s", pooled.code, pooled.stdout, pooled.stderr)
	}
	mp.Eventually(t, limitOfRest, "no slot is taken", func() bool { return in.Metric(t, "multipooler_slots", `state="active"`) == 0 })
}
