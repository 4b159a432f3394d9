package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// oddVerbs is a variable, so that vet does not object to verbs that do not fit.
var oddVerbs = "%s|%q|%x|%d"

// rich is a file with a secret in every place that can hold one.
const rich = `
listen: ["127.0.0.1:6432", /run/mp]
service_name: pooler-1
unix_socket_mode: 0770
acquire_timeout: 90s
event_loop_high_water: 1MiB
admin_users: [root, "o'brien"]
target: postgres://app:hunter2@main:5433/app?sslmode=require&options=-c%20a%3Db
targets:
  - {name: stats, url: "postgres://app@stats?password=hunter2&application_name=mp", databases: [dwh, "ünï: x"]}
  - {name: local, host: /run/postgresql, user: app, password: hunter2, databases: [local], pool_mode: session}
databases:
  "odd: name": {pool_mode: session}
users:
  batch: {pool_mode: session}
`

func effective(t *testing.T, c *Config) string {
	t.Helper()
	var b strings.Builder
	if err := c.WriteEffective(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTheEffectiveConfigurationIsShownWithItsSources(t *testing.T) {
	path := writeFile(t, rich)
	c := load(t, []string{"--config", path, "--max-clients=77"}, "MULTIPOOLER_LOG_LEVEL=debug", "DB_MAX_OPEN_CONNS=9")
	golden(t, "effective.golden", strings.ReplaceAll(effective(t, c), path, "mp.yaml"))
}

func TestWhatIsPrintedIsAFileThatMeansTheSame(t *testing.T) {
	first := load(t, []string{"--config", writeFile(t, rich)})
	second := load(t, []string{"--config", writeFile(t, effective(t, first))})
	for _, c := range Diff(first, second) {
		secret := strings.HasSuffix(c.Key, "password") || strings.HasSuffix(c.Key, "url") || c.Key == "target"
		if !secret && c.Key != "config" {
			t.Errorf("%+v", c)
		}
	}
}

// TestNoPrintShowsASecret prints a configuration in every way that a program
// may think of.
func TestNoPrintShowsASecret(t *testing.T) {
	c := load(t, []string{"--config", writeFile(t, rich)}, "PGPASSWORD=hunter2")
	other := load(t, []string{"--config", writeFile(t, strings.ReplaceAll(rich, "hunter2", "hunter2x"))})
	js, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	enc := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	zap.New(zapcore.NewCore(enc, zapcore.AddSync(&log), zap.DebugLevel)).Info("x",
		zap.Any("config", c), zap.Any("targets", c.Targets), zap.Reflect("r", c.Targets[0]), zap.Stringer("s", c.Targets[0].Password))
	prints := []string{
		effective(t, c), string(js), log.String(),
		fmt.Sprintf("%v|%+v|%#v", *c, *c, *c), fmt.Sprintf(oddVerbs, *c, *c, *c, *c),
		fmt.Sprintf("%v %+v %#v %s %x", c.Targets, c.Targets[0].Password, c.Targets[1], c.Targets[2].Password, []byte(c.Targets[0].URL.String())),
		fmt.Sprintf("%+v %+v", c.Notes, Diff(c, other)),
	}
	for _, e := range c.Entries() {
		prints = append(prints, e.Value, fmt.Sprintf("%s=%s", e.Key, e.Value))
	}
	for _, p := range prints {
		for _, form := range []string{"hunter2", fmt.Sprintf("%x", "hunter2"), "68, 75, 6e"} {
			if strings.Contains(p, form) {
				t.Errorf("shown: %s", p)
			}
		}
	}
	if len(Diff(c, other)) == 0 {
		t.Error("a change of a password is not seen")
	}
}

func TestAnEntrysExactValueStaysInside(t *testing.T) {
	c := load(t, []string{sole})
	for _, e := range c.Entries() {
		if got := fmt.Sprintf("%+v %#v %v", e, e, e); strings.Contains(got, "hunter2") {
			t.Fatal(got)
		}
	}
}

func TestValuesAreWrittenAsTheyAreRead(t *testing.T) {
	for _, text := range []string{"0", "30s", "5m", "1h", "1h30m", "1h0m5s", "250ms", "1.5s", "48h"} {
		d, err := ParseDuration(text)
		if got := formatDuration(d); err != nil || got != text {
			t.Errorf("%s: got %s, %v", text, got, err)
		}
	}
	for _, tt := range []struct{ text, want string }{
		{"0", "0"}, {"1", "1"}, {"4096", "4KiB"}, {"64KiB", "64KiB"}, {"64kB", "64KiB"}, {"1024 MB", "1GiB"}, {"7B", "7"},
	} {
		s, err := ParseSize(tt.text)
		if got := s.String(); err != nil || got != tt.want {
			t.Errorf("%s: got %s, %v", tt.text, got, err)
		}
	}
	for _, text := range []string{"", "B", "-1", "1.5MB", "9999999999GiB", "1 parsec"} {
		if s, err := ParseSize(text); err == nil {
			t.Errorf("%q is read as %s", text, s)
		}
	}
}
