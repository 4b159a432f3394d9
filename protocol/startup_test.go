package protocol

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// packet frames a body that starts with a code.
func packet(code uint32, body string) []byte {
	p := appendInt32(nil, uint32(8+len(body)))
	return append(appendInt32(p, code), body...)
}

func session(body string) []byte { return packet(uint32(Protocol30), body) }

func TestStartupPacketsAreReadAsPostgresReadsThem(t *testing.T) {
	long := strings.Repeat("x", 70)
	tests := []struct {
		name string
		p    []byte
		want Startup
	}{
		{
			"user only", session("user\x00bob\x00\x00"),
			Startup{Version: Protocol30, User: "bob", Database: "bob"},
		},
		{
			"everything", packet(uint32(Protocol32), "user\x00bob\x00database\x00app\x00application_name\x00a b\x00options\x00-c x=1\x00_pq_.a\x00b\x00DateStyle\x00ISO\x00\x00"),
			Startup{
				Version: Protocol32, User: "bob", Database: "app", Options: "-c x=1",
				Params:       []Param{{"application_name", "a b"}, {"DateStyle", "ISO"}},
				Unrecognized: []string{"_pq_.a"},
			},
		},
		{
			"duplicates", session("user\x00a\x00user\x00b\x00x\x001\x00X\x002\x00\x00"),
			Startup{Version: Protocol30, User: "b", Database: "b", Params: []Param{{"x", "1"}, {"X", "2"}}},
		},
		{
			"names are cut", session("user\x00" + long + "\x00database\x00" + long + "\x00\x00"),
			Startup{Version: Protocol30, User: long[:63], Database: long[:63]},
		},
		{
			"empty database", session("user\x00a\x00database\x00\x00\x00"),
			Startup{Version: Protocol30, User: "a", Database: "a"},
		},
		{
			"logical replication", session("user\x00a\x00replication\x00database\x00\x00"),
			Startup{Version: Protocol30, User: "a", Database: "a", Replication: ReplicationLogical},
		},
		{
			"physical replication", session("user\x00a\x00replication\x00Tr\x00\x00"),
			Startup{Version: Protocol30, User: "a", Database: "a", Replication: ReplicationPhysical},
		},
		{
			"no replication", session("user\x00a\x00replication\x00off\x00\x00"),
			Startup{Version: Protocol30, User: "a", Database: "a"},
		},
		{"SSLRequest", AppendSSLRequest(nil), Startup{Kind: StartupSSL}},
		{"SSLRequest with a tail", packet(sslRequestCode, "zz"), Startup{Kind: StartupSSL}},
		{"GSSENCRequest", AppendGSSENCRequest(nil), Startup{Kind: StartupGSSENC}},
		{"CancelRequest", AppendCancelRequest(nil, 5, []byte("abcd")), Startup{Kind: StartupCancel, CancelPID: 5, CancelKey: []byte("abcd")}},
		{"CancelRequest 3.2", AppendCancelRequest(nil, 5, make([]byte, 256)), Startup{Kind: StartupCancel, CancelPID: 5, CancelKey: make([]byte, 256)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseStartup(tt.p)
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

func TestBadStartupPacketsAreRefusedInPostgresWords(t *testing.T) {
	const layout = "invalid startup packet layout: expected terminator as last byte"
	tests := []struct {
		name          string
		p             []byte
		code, message string
		quiet         bool
	}{
		{"shorter than a code", []byte{0, 0, 0, 7, 0, 3, 0}, "08P01", "invalid length of startup packet", true},
		{"longer than the limit", append([]byte{0, 0, 0x27, 0x15}, make([]byte, 10_001)...), "08P01", "invalid length of startup packet", true},
		{"cut", session("user\x00a\x00\x00")[:12], "08P01", "incomplete startup packet", true},
		{"no terminator", session("user\x00a\x00"), "08P01", layout, false},
		{"no bytes at all", session(""), "08P01", layout, false},
		{"value without NUL", session("user\x00a"), "08P01", layout, false},
		{"name without value", session("user\x00"), "08P01", layout, false},
		{"bytes behind the terminator", session("user\x00a\x00\x00x"), "08P01", layout, false},
		{"no user", session("database\x00a\x00\x00"), "28000", "no PostgreSQL user name specified in startup packet", false},
		{"no parameters", session("\x00"), "28000", "no PostgreSQL user name specified in startup packet", false},
		{"empty user", session("user\x00\x00\x00"), "28000", "no PostgreSQL user name specified in startup packet", false},
		{"replication", session("user\x00a\x00replication\x00o\x00\x00"), "22023", `invalid value for parameter "replication": "o"`, false},
		{"version 2", packet(2<<16, ""), "0A000", "unsupported frontend protocol 2.0: server supports 3.0 to 3.2", false},
		{"version 4", packet(4<<16|1, ""), "0A000", "unsupported frontend protocol 4.1: server supports 3.0 to 3.2", false},
		{"cancel without pid", packet(cancelRequestCode, "abc"), "08P01", "invalid length of cancel request packet", true},
		{"cancel without key", packet(cancelRequestCode, "abcd"), "08P01", "invalid length of cancel key in cancel request packet", true},
		{"cancel with a long key", AppendCancelRequest(nil, 5, make([]byte, 257)), "08P01", "invalid length of cancel key in cancel request packet", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseStartup(tt.p)
			e := problem(t, err)
			if e.Message != tt.message || e.Code != tt.code || e.Quiet != tt.quiet || !e.Fatal() {
				t.Errorf("got %+v (%+v)", e, got)
			}
		})
	}
}

func TestNewerMinorVersionsAndUnknownOptionsAreNegotiated(t *testing.T) {
	for _, tt := range []struct {
		s    Startup
		use  ProtocolVersion
		tell bool
	}{
		{Startup{Version: Protocol30}, Protocol30, false},
		{Startup{Version: 3<<16 | 1}, 3<<16 | 1, false},
		{Startup{Version: Protocol32}, Protocol32, false},
		{Startup{Version: 3<<16 | 9999}, Protocol32, true},
		{Startup{Version: Protocol30, Unrecognized: []string{"_pq_.x"}}, Protocol30, true},
	} {
		if use, tell := tt.s.Negotiate(); use != tt.use || tell != tt.tell {
			t.Errorf("%+v: got %v, %v", tt.s, use, tell)
		}
	}
}

func TestTheLastDuplicateOfASettingWins(t *testing.T) {
	s := Startup{Params: []Param{{"TimeZone", "UTC"}, {"timezone", "CET"}, {"x", ""}}}
	if v, ok := s.Param("TIMEZONE"); v != "CET" || !ok {
		t.Errorf("got %q, %v", v, ok)
	}
	if _, ok := s.Param("y"); ok {
		t.Error("a setting that is not there was found")
	}
}

func TestOptionsAreSplitAsPostgresSplitsThem(t *testing.T) {
	tests := []struct {
		in     string
		want   []Param
		opaque bool
	}{
		{"", nil, false},
		{" \t\n ", nil, false},
		{"-c a=b", []Param{{"a", "b"}}, false},
		{"-ca=b --search-path=x,y", []Param{{"a", "b"}, {"search_path", "x,y"}}, false},
		{`-c a=b\ c\\d  -c my-app.x=`, []Param{{"a", `b c\d`}, {"my_app.x", ""}}, false},
		{`-c a=b\`, []Param{{"a", "b"}}, false},
		{"-c a=b=c", []Param{{"a", "b=c"}}, false},
		{"-c a=b -e", []Param{{"a", "b"}}, true},
		{"-c", nil, true},
		{"-c a", nil, true},
		{"--", nil, true},
		{"--a", nil, true},
		{"word", nil, true},
		{"-B 12 -c a=b", nil, true},
	}
	for _, tt := range tests {
		got, opaque := SplitOptions(tt.in)
		if !cmp.Equal(got, tt.want) || opaque != tt.opaque {
			t.Errorf("%q: got %q, %v", tt.in, got, opaque)
		}
	}
}

func TestJoinedOptionsSplitIntoTheSameSettings(t *testing.T) {
	name := rapid.StringMatching(`[a-z_.]{1,8}`)
	rapid.Check(t, func(t *rapid.T) {
		var want []Param
		for range rapid.IntRange(0, 4).Draw(t, "settings") {
			want = append(want, Param{name.Draw(t, "name"), rapid.StringOf(rapid.RuneFrom([]rune("a \\\t\n=-'\u00e9"))).Draw(t, "value")})
		}
		got, opaque := SplitOptions(JoinOptions(want))
		if opaque || !cmp.Equal(got, want) {
			t.Fatalf("%q became %q, opaque %v", want, got, opaque)
		}
	})
}

func FuzzStartup(f *testing.F) {
	f.Add(session("user\x00bob\x00database\x00app\x00options\x00-c a=b\x00replication\x00t\x00_pq_.x\x00\x00\x00"))
	f.Add(AppendCancelRequest(nil, 1, []byte("abcd")))
	f.Add(AppendSSLRequest(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := ParseStartup(p)
		if err != nil {
			if e := problem(t, err); !e.Fatal() || len(AppendErrorResponse(nil, e)) == 0 {
				t.Fatalf("%+v", e)
			}
			return
		}
		switch s.Kind {
		case StartupCancel:
			if again := AppendCancelRequest(nil, s.CancelPID, s.CancelKey); !bytes.Equal(again, p) {
				t.Fatalf("rebuilt %q, was %q", again, p)
			}
		case StartupSession:
			if s.User == "" || s.Database == "" {
				t.Fatalf("%+v", s)
			}
			SplitOptions(s.Options)
			again, err := ParseStartup(AppendStartup(nil, s.Version, append([]Param{
				{"user", s.User}, {"database", s.Database}, {"options", s.Options},
			}, s.Params...)))
			again.Unrecognized, again.Replication = s.Unrecognized, s.Replication
			if err != nil || !cmp.Equal(s, again) {
				t.Fatalf("%v: %s", err, cmp.Diff(s, again))
			}
		}
	})
}
