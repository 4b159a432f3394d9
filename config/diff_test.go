package config

import (
	"fmt"
	"slices"
	"testing"
)

const before = `
listen: "127.0.0.1:1"
target: postgres://app:hunter2@main/app
targets: [{name: b, url: "postgres://app:pw@b", databases: [b]}]
users: {batch: {pool_mode: session}}
`

func changeLines(changes []Change) (out []string) {
	for _, c := range changes {
		out = append(out, fmt.Sprintf("%s: %q -> %q %v", c.Key, c.Old, c.New, c.Restart))
	}
	return out
}

func TestAReloadSaysWhatChangesNowAndWhatLater(t *testing.T) {
	path := writeFile(t, before)
	old := load(t, []string{"--config", path})
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", before + "\n# a comment\n", nil},
		{"a default spelled out", before + "acquire_timeout: 5000ms\n", nil},
		{"now", before + "acquire_timeout: 7s\nlog_level: debug", []string{
			`acquire_timeout: "5s" -> "7s" false`,
			`log_level: "info" -> "debug" false`,
		}},
		{"later", before + "event_loops: 3", []string{`event_loops: "0" -> "3" true`}},
		{"a password, without showing it", `
listen: "127.0.0.1:1"
target: postgres://app:other@main/app
targets: [{name: b, url: "postgres://app:pw@b", databases: [b]}]
users: {batch: {pool_mode: session}}
`, []string{
			`target: "postgres://app:****@main/app" -> "postgres://app:****@main/app" false`,
			`targets.default.password: "****" -> "****" false`,
			`targets.default.url: "postgres://app:****@main/app" -> "postgres://app:****@main/app" false`,
		}},
		{"targets and users come and go", `
listen: "127.0.0.1:1"
target: postgres://app:hunter2@main/app
targets: [{name: c, url: "postgres://app:pw@c", databases: [c]}]
users: {nightly: {pool_mode: session}}
`, []string{
			`targets.b: "present" -> "" true`,
			`targets.c: "" -> "present" true`,
			`users.batch.pool_mode: "session" -> "" false`,
			`users.nightly.pool_mode: "" -> "session" false`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			after := load(t, []string{"--config", writeFile(t, tt.text)})
			after.File = old.File // two paths only because of the test
			next, changes := Reload(old, after)
			if got := changeLines(changes); !slices.Equal(got, tt.want) {
				t.Fatalf("got  %q\nwant %q", got, tt.want)
			}
			// What is left to do after taking over next is what needs a restart.
			rest := changeLines(Diff(next, after))
			var later []string
			for _, c := range changes {
				if c.Restart {
					later = append(later, changeLines([]Change{c})...)
				}
			}
			if !slices.Equal(rest, later) {
				t.Fatalf("left after the reload: got %q, want %q", rest, later)
			}
		})
	}
}

func TestAReloadKeepsTheAddressOfATargetUntilTheRestart(t *testing.T) {
	old := load(t, []string{"postgres://app:a@one/app"})
	after := load(t, []string{"postgres://app:b@two:7/app"})
	next, _ := Reload(old, after)
	got := next.Targets[0]
	if got.Address() != "one:5432" || got.Password.Reveal() != "b" {
		t.Fatalf("got %s with password %q", got.Address(), got.Password.Reveal())
	}
	if old.Targets[0].Password.Reveal() != "a" || after.Targets[0].Host != "two" {
		t.Fatal("a reload changed its inputs")
	}
}
