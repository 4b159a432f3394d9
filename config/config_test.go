package config

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sole is a target that makes a configuration valid.
const sole = "postgres://app:hunter2@db.example/app"

func load(t *testing.T, args []string, env ...string) *Config {
	t.Helper()
	c, err := Load(Input{Args: args, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mp.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOneTargetURLIsAllThatIsNeeded(t *testing.T) {
	c := load(t, []string{sole})
	got := c.Targets[0]
	if got.Name != "default" || got.Address() != "db.example:5432" || got.User != "app" ||
		got.Password.Reveal() != "hunter2" || !slices.Equal(got.Databases, []string{"*"}) ||
		got.TLS.Mode != TLSPrefer || got.Capacity != 100 || got.PoolMode != PoolTransaction {
		t.Fatalf("got %+v", got)
	}
	if !slices.Equal(c.AdminUsers, []string{"app"}) {
		t.Fatalf("admin users: got %v", c.AdminUsers)
	}
	if to, ok := c.Route("anything"); !ok || to.Name != "default" {
		t.Fatalf("routed to %v, %v", to, ok)
	}
}

func TestTheManualDescribesEveryKeyExactlyOnce(t *testing.T) {
	described := map[string]int{}
	for _, ch := range manual {
		for _, o := range ch.options {
			described[o.key]++
		}
	}
	want := map[string]int{}
	for _, f := range fields(&Config{}) {
		want[f.key]++
	}
	if !maps.Equal(described, want) {
		t.Fatalf("got %v\nwant %v", described, want)
	}
	if !strings.Contains(Help(), "--connpool-global-capacity N (100)") {
		t.Fatal("the help does not show a default")
	}
}
