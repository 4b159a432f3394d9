package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// samples gives, per kind of value, two texts that differ from every default.
func samples(t *testing.T, f field) (a, b string) {
	t.Helper()
	if f.oneof != nil {
		var words []string
		for _, w := range f.oneof {
			if w != "" && w != f.text() {
				words = append(words, w)
			}
		}
		return words[0], words[len(words)-1]
	}
	switch f.value.Interface().(type) {
	case []string:
		return "10.0.0.1:1", "10.0.0.2:2"
	case time.Duration:
		return "7s", "8s"
	case Size:
		return "32KiB", "48KiB"
	case int:
		return "7", "8"
	case URL:
		return "postgres://a:b@one/x", "postgres://a:b@two/x"
	}
	if f.key == "unix_socket_mode" {
		return "0700", "0770"
	}
	return "10.0.0.1:8", "10.0.0.2:9" // good for a name, a path, and an address
}

// TestEverySettingHasThreeNamesOfOneSpelling walks the struct: each key works
// as flag, as variable and in the file, and the flag wins over the variable, it
// over the file, and it over the default.
func TestEverySettingHasThreeNamesOfOneSpelling(t *testing.T) {
	for _, proto := range fields(Default()) {
		t.Run(proto.key, func(t *testing.T) {
			inFile, other := samples(t, proto)
			flag, env := "--"+flagName(proto.key)+"=", envName(proto.key)+"="
			get := func(args, env []string) (string, Source) {
				t.Helper()
				// Values that make no sense together are fine here: only
				// parsing and precedence are under test.
				c, _ := Load(Input{Args: args, Env: env})
				f, _ := find(fields(c), proto.key)
				return f.exact(), c.Source(proto.key)
			}
			check := func(what, got, want string, src Source, kind SourceKind) {
				t.Helper()
				if got != want || src.Kind != kind {
					t.Errorf("%s: got %q from %v, want %q", what, got, src, want)
				}
			}
			got, src := get([]string{flag + inFile}, []string{env + other})
			check("flag over environment", got, inFile, src, FromFlag)
			got, src = get(nil, []string{env + other})
			check("environment over default", got, other, src, FromEnv)
			if proto.noFile {
				return
			}
			path := writeFile(t, "\n"+proto.key+": \""+inFile+"\"\n")
			file := "--config=" + path
			got, src = get([]string{file}, nil)
			check("file over default", got, inFile, src, FromFile)
			if want := path + ":2"; src.String() != want {
				t.Errorf("place: got %s, want %s", src, want)
			}
			got, src = get([]string{file}, []string{env + other})
			check("environment over file", got, other, src, FromEnv)
			got, src = get([]string{file, flag + other}, nil)
			check("flag over file", got, other, src, FromFlag)
			for _, seed := range proto.seeds {
				got, src = get([]string{file}, []string{seed + "=" + other})
				check("seed over file", got, other, src, FromSeedEnv)
				got, src = get(nil, []string{seed + "=" + inFile, env + other})
				check("own variable over seed", got, other, src, FromEnv)
			}
		})
	}
}

func TestEveryKeyIsSpelledInSnakeCaseAndHasAParser(t *testing.T) {
	for _, ptr := range []any{&Config{}, &Target{}, &Override{}} {
		for _, f := range fields(ptr) {
			if f.key != strings.ToLower(f.key) || strings.ContainsAny(f.key, "- .") {
				t.Errorf("key %q", f.key)
			}
			if err := f.set([]string{"0"}); err != nil && f.value.Kind() != reflect.Slice {
				t.Errorf("%s: %v", f.key, err)
			}
			for _, bound := range []string{f.min, f.max} {
				if bound != "" {
					f.bound(bound) // panics when it cannot be read
				}
			}
		}
	}
}

func TestDefaultsAreInRange(t *testing.T) {
	for _, f := range fields(Default()) {
		if f.oneof == nil && f.min == "" && f.max == "" {
			continue
		}
		if err := f.inRange(); err != nil {
			t.Errorf("%s: %v", f.key, err)
		}
	}
}

func noteTexts(c *Config) (out []string) {
	for _, n := range c.Notes {
		out = append(out, fmt.Sprintf("%v %s", n.Warn, n))
	}
	return out
}

func TestPredecessorsNamesAreReportedAndTheirConflictsWarned(t *testing.T) {
	env := "MULTIPOOLER_TARGET=" + sole
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		want []string
	}{
		{"used", nil, []string{env, "DB_MAX_OPEN_CONNS=25"}, []string{
			"false env DB_MAX_OPEN_CONNS: connpool_global_capacity: set to 25 by a name from before multipooler; its own is MULTIPOOLER_CONNPOOL_GLOBAL_CAPACITY",
		}},
		{"overridden", []string{"--acquire-timeout=2s"}, []string{env, "DB_CONN_ACQUIRE_TIMEOUT=5s"}, []string{
			"true env DB_CONN_ACQUIRE_TIMEOUT: acquire_timeout: 5s is overridden by 2s of flag --acquire-timeout",
		}},
		{"agreeing, in another spelling", []string{"--server-check-period=60s"}, []string{env, "DB_HEALTH_CHECK_PERIOD=1m"}, nil},
		{"empty counts as not set", nil, []string{env, "DB_MAX_OPEN_CONNS=", "MULTIPOOLER_ACQUIRE_TIMEOUT="}, nil},
		{"a Service named multipooler is no setting", nil, []string{
			env, "MULTIPOOLER_PORT=tcp://10.0.0.1:6432", "MULTIPOOLER_SERVICE_HOST=10.0.0.1",
			"MULTIPOOLER_PORT_6432_TCP_ADDR=10.0.0.1", "MULTIPOOLER_SERVICE_PORT_PG=6432",
		}, nil},
		{"an unknown variable", nil, []string{env, "MULTIPOOLER_MAX_CLIENT=3"}, []string{
			`true env MULTIPOOLER_MAX_CLIENT: not a setting of multipooler, ignored; did you mean "MULTIPOOLER_MAX_CLIENTS"?`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := noteTexts(load(t, tt.args, tt.env...))
			if !slices.Equal(got, tt.want) {
				t.Fatalf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestTheFilesConflictWithAPredecessorsNameIsWarned(t *testing.T) {
	path := writeFile(t, "connpool_max_idle: 3\ntarget: env:MAIN\n")
	c := load(t, []string{"--config", path}, "DB_MAX_IDLE_CONNS=4", "MAIN="+sole)
	if c.Pool.MaxIdle != 4 || !strings.Contains(strings.Join(noteTexts(c), "\n"), "overrides 3 of "+path+":1") {
		t.Fatalf("got %d, %q", c.Pool.MaxIdle, noteTexts(c))
	}
}

func TestListsComeByRepetitionByCommaAndFromTheFile(t *testing.T) {
	want := []string{"127.0.0.1:1", "/run/mp"}
	for _, c := range []*Config{
		load(t, []string{"--listen=127.0.0.1:1", "--listen", "/run/mp", sole}),
		load(t, []string{sole}, "MULTIPOOLER_LISTEN=127.0.0.1:1, /run/mp"),
		load(t, []string{"--config", writeFile(t, "listen: [\"127.0.0.1:1\", /run/mp]\ntarget: "+sole)}),
	} {
		if !slices.Equal(c.Listen, want) {
			t.Errorf("got %q", c.Listen)
		}
	}
}

func TestTheTargetsPasswordIsFoundInEveryPlace(t *testing.T) {
	file := writeFile(t, "s3cret\n")
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		want string
	}{
		{"url", []string{"postgres://u:in%20url@h/"}, nil, "in url"},
		{"query", []string{"postgres://u@h/?password=q"}, nil, "q"},
		{"file", []string{"postgres://u@h", "--target-password-file", file}, nil, "s3cret"},
		{"PGPASSWORD", []string{"postgres://u@h"}, []string{"PGPASSWORD=pg"}, "pg"},
		{"url before PGPASSWORD", []string{"postgres://u:url@h"}, []string{"PGPASSWORD=pg"}, "url"},
		{"reference", []string{"env:MAIN"}, []string{"MAIN=postgres://u:ref@h"}, "ref"},
		{"variable", nil, []string{"MULTIPOOLER_TARGET=postgres://u:var@h"}, "var"},
		{"listed, reference", []string{"--config", writeFile(t, "targets:\n- {name: a, host: h, user: u, password: env:PW}")}, []string{"PW=listed"}, "listed"},
		{"listed, file", []string{"--config", writeFile(t, "targets:\n- {name: a, url: postgres://u@h, password_file: "+file+"}")}, nil, "s3cret"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := load(t, tt.args, tt.env...).Targets[0].Password.Reveal(); got != tt.want {
				t.Fatalf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTLSToAServerIsDecidedByTheNearestWord(t *testing.T) {
	for _, tt := range []struct {
		name string
		text string // file
		args []string
		want ServerTLS
	}{
		{"nothing said", "target: postgres://u:p@h", nil, ServerTLS{Mode: TLSPrefer, Negotiation: NegotiatePostgres}},
		{"url", "target: postgres://u:p@h?sslmode=verify-full&sslrootcert=system", nil, ServerTLS{Mode: TLSVerifyFull, Negotiation: NegotiatePostgres, CA: "system"}},
		{"flag over url", "target: postgres://u:p@h?sslmode=disable", []string{"--server-tls-mode=require"}, ServerTLS{Mode: TLSRequire, Negotiation: NegotiatePostgres}},
		{"listed: own over url", "targets: [{name: a, url: 'postgres://u:p@h?sslmode=disable', server_tls_mode: require}]", nil, ServerTLS{Mode: TLSRequire, Negotiation: NegotiatePostgres}},
		{"listed: url over top level", "server_tls_mode: require\ntargets: [{name: a, url: 'postgres://u:p@h?sslmode=disable'}]", nil, ServerTLS{Mode: TLSDisable, Negotiation: NegotiatePostgres}},
		{"listed: top level over default", "server_tls_mode: require\ntargets: [{name: a, url: 'postgres://u:p@h'}]", nil, ServerTLS{Mode: TLSRequire, Negotiation: NegotiatePostgres}},
		{"direct asks for TLS", "target: postgres://u:p@h?sslnegotiation=direct", nil, ServerTLS{Mode: TLSRequire, Negotiation: NegotiateDirect}},
		{"the system's roots are for verify-full", "target: postgres://u:p@h?sslrootcert=system", nil, ServerTLS{Mode: TLSVerifyFull, Negotiation: NegotiatePostgres, CA: "system"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := load(t, append(tt.args, "--config", writeFile(t, tt.text)))
			if got := c.Targets[0].TLS; got != tt.want {
				t.Fatalf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestDatabasesAndUsersAreRoutedAndModed(t *testing.T) {
	c := load(t, []string{"--config", writeFile(t, `
targets:
  - {name: main, url: "postgres://app:x@main", databases: ["*"]}
  - {name: stats, url: "postgres://app:x@stats:5433", databases: [dwh, reports], pool_mode: session, connpool_global_capacity: 5}
databases:
  reports: {pool_mode: statement}
users:
  batch: {pool_mode: session}
`)})
	for _, tt := range []struct {
		database, user, target string
		mode                   PoolMode
	}{
		{"app", "app", "main", PoolTransaction},
		{"dwh", "app", "stats", PoolSession},
		{"reports", "app", "stats", PoolStatement},
		{"reports", "batch", "stats", PoolSession},
		{"app", "batch", "main", PoolSession},
	} {
		to, _ := c.Route(tt.database)
		if got := c.PoolModeFor(to, tt.database, tt.user); to.Name != tt.target || got != tt.mode {
			t.Errorf("%s as %s: got %s, %s", tt.database, tt.user, to.Name, got)
		}
	}
	if got := c.Targets[1].Capacity; got != 5 {
		t.Errorf("capacity of stats: got %d", got)
	}
	if got := c.Source("targets.main.connpool_global_capacity"); got.Kind != FromDefault {
		t.Errorf("capacity of main: from %v", got)
	}
}
