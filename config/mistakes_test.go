package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares with testdata/NAME, or rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestEveryMistakeIsNamedWithItsPlace loads each testdata/mistakes/*.yaml and
// holds all mistakes and remarks against *.golden.
func TestEveryMistakeIsNamedWithItsPlace(t *testing.T) {
	files, err := filepath.Glob("testdata/mistakes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			c, err := Load(Input{Args: []string{"--config", path}})
			if err == nil {
				t.Fatal("no mistake was found")
			}
			var b strings.Builder
			for _, m := range Mistakes(err) {
				b.WriteString(m.Error() + "\n")
			}
			for _, n := range c.Notes {
				b.WriteString("note: " + n.String() + "\n")
			}
			if strings.Contains(b.String(), "hunter2") || strings.Contains(b.String(), "hun/ter2") {
				t.Errorf("a secret is shown:\n%s", b.String())
			}
			golden(t, "mistakes/"+name+".golden", b.String())
		})
	}
}

func TestTheCommandLinesMistakesAreAllNamed(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		want []string
	}{
		{"nothing at all", nil, nil, []string{
			"target: no target is given: add postgres://user:password@host:port/dbname to the command line, set MULTIPOOLER_TARGET, or list targets in the file",
		}},
		{"unknown flags, and a bad value besides", []string{"--pool_mode=session", "--max-client=3", "--drain-delay=x", sole}, nil, []string{
			`argument: unknown flag --pool_mode; did you mean "--pool-mode"?`,
			`argument: unknown flag --max-client; did you mean "--max-clients"?`,
			`flag --drain-delay: drain_delay: "x" is not a duration: write 30s, 1h30m, 250ms or 0`,
		}},
		{"short flags", []string{"-phunter2"}, nil, []string{
			"argument: flags are written --name=value or --name value (one-letter flags do not exist)",
		}},
		{"value missing", []string{sole, "--max-clients"}, nil, []string{
			"flag --max-clients: its value is missing",
		}},
		{"two targets", []string{sole, "postgres://b:hunter2@c"}, nil, []string{
			"argument: target: 2 arguments are given, one target URL is expected",
		}},
		{"target twice", []string{"--target=postgres://a:hunter2@b", "postgres://a:hunter2@c"}, nil, []string{
			"argument: target: the target is given twice, here and as --target, and they differ",
		}},
		{"environment", []string{sole}, []string{"MULTIPOOLER_MAX_CLIENTS=none", "DB_MAX_OPEN_CONNS=1.5"}, []string{
			`env MULTIPOOLER_MAX_CLIENTS: max_clients: "none" is not a whole number`,
			`env DB_MAX_OPEN_CONNS: connpool_global_capacity: "1.5" is not a whole number`,
		}},
		{"an overridden mistake is one too", []string{sole, "--max-clients=5"}, []string{"MULTIPOOLER_MAX_CLIENTS=none"}, []string{
			`env MULTIPOOLER_MAX_CLIENTS: max_clients: "none" is not a whole number`,
		}},
		{"no file", []string{sole, "--config=/nonexistent/x.yaml"}, nil, []string{
			"flag --config: config: open /nonexistent/x.yaml: no such file or directory",
		}},
		{"a folder", []string{sole}, []string{"MULTIPOOLER_CONFIG=/"}, []string{
			"env MULTIPOOLER_CONFIG: config: read /: is a directory",
		}},
		{"the same address twice", []string{sole, "--http-listen=127.0.0.1:6432"}, nil, []string{
			"flag --http-listen: http_listen: 127.0.0.1:6432 is taken by listen",
		}},
		{"password twice", []string{sole, "--target-password-file=/nonexistent"}, nil, []string{
			"flag --target-password-file: target_password_file: the password is given twice, here and with the target",
		}},
		{"verify-ca without an authority", []string{sole + "?sslmode=verify-ca"}, nil, []string{
			"argument: target: verify-ca needs server_tls_ca (sslrootcert): with the system's roots anybody's certificate would do; use verify-full",
		}},
		{"unset reference", []string{"env:NOT_THERE"}, nil, []string{
			"argument: target: the environment variable NOT_THERE is not set",
		}},
		{"host missing", []string{"postgres://u:p@/db"}, nil, []string{"argument: target: the host is missing"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(Input{Args: tt.args, Env: tt.env})
			var got []string
			for _, m := range Mistakes(err) {
				got = append(got, m.Error())
			}
			if g, w := strings.Join(got, "\n"), strings.Join(tt.want, "\n"); g != w {
				t.Fatalf("got\n%s\nwant\n%s", g, w)
			}
		})
	}
}

func TestWhatIsPossibleButSeldomMeantIsRemarked(t *testing.T) {
	c := load(t, nil, "MULTIPOOLER_TARGET="+sole+"?sslmode=disable", "MULTIPOOLER_AUTH_TYPE=trust", "MULTIPOOLER_LISTEN=:6432",
		"MULTIPOOLER_CONNPOOL_MAX_IDLE=200", "MULTIPOOLER_MAX_CLIENTS=100", "MULTIPOOLER_MAX_UNAUTHENTICATED_CLIENTS=200", "MULTIPOOLER_ACQUIRE_TIMEOUT=2m",
		"MULTIPOOLER_SERVER_TLS_MODE=require")
	golden(t, "remarks.golden", strings.Join(noteTexts(c), "\n")+"\n")
	if got := noteTexts(load(t, nil, "MULTIPOOLER_TARGET="+sole, "MULTIPOOLER_AUTH_TYPE=trust")); got != nil {
		t.Errorf("trust on the loopback address is remarked: %q", got)
	}
}
