package pooler

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

func TestStartupParametersAreAlignedUnlessOnlyAStartupPacketCanSayThem(t *testing.T) {
	type settings = []session.Setting
	params := func(pairs ...string) (all []protocol.Param) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, protocol.Param{Name: pairs[i], Value: pairs[i+1]})
		}
		return all
	}
	for _, tt := range []struct {
		name   string
		packet protocol.Startup
		mode   session.Mode
		want   wishes
	}{
		{"nothing", protocol.Startup{}, session.ModeTransaction, wishes{}},
		{
			"application_name is nobody's business",
			protocol.Startup{Params: params("application_name", "psql", "DateStyle", "ISO")},
			session.ModeTransaction,
			wishes{appName: "psql", settings: settings{{Name: "DateStyle", Value: "ISO"}}},
		},
		{
			"in any case of letters",
			protocol.Startup{Params: params("Application_Name", "psql")},
			session.ModeTransaction,
			wishes{appName: "psql"},
		},
		{
			"parameters come behind options and so win",
			protocol.Startup{Options: "-c search_path=a", Params: params("search_path", "b")},
			session.ModeTransaction,
			wishes{settings: settings{{Name: "search_path", Value: "a"}, {Name: "search_path", Value: "b"}}},
		},
		{
			"role takes all with it into the startup packet",
			protocol.Startup{Params: params("DateStyle", "ISO", "Role", "boss", "application_name", "x")},
			session.ModeTransaction,
			wishes{appName: "x", startup: settings{{Name: "DateStyle", Value: "ISO"}, {Name: "Role", Value: "boss"}}},
		},
		{
			"so does pool mode session",
			protocol.Startup{Params: params("DateStyle", "ISO")},
			session.ModeSession,
			wishes{startup: settings{{Name: "DateStyle", Value: "ISO"}}},
		},
		{
			"options that cannot be split go to the server as they are",
			protocol.Startup{Options: "-B 100", Params: params("DateStyle", "ISO")},
			session.ModeTransaction,
			wishes{startup: settings{{Name: "options", Value: "-B 100"}, {Name: "DateStyle", Value: "ISO"}}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, readWishes(&tt.packet, tt.mode), cmp.AllowUnexported(wishes{})); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestAPoolKeyTellsTheStartupSettingsAgain(t *testing.T) {
	text := rapid.StringMatching(`[^\x00]{0,20}`)
	rapid.Check(t, func(t *rapid.T) {
		var in []session.Setting
		var want []protocol.Param
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			s := session.Setting{Name: text.Draw(t, "name"), Value: text.Draw(t, "value")}
			in, want = append(in, s), append(want, protocol.Param{Name: s.Name, Value: s.Value})
		}
		if d := cmp.Diff(want, decode(encode(in))); d != "" {
			t.Fatal(d)
		}
	})
}

func TestWhatAClientIsToldOfAFailedDialHasNoAddress(t *testing.T) {
	const addr = "10.11.12.13"
	for _, e := range []*DialError{
		{Cause: errors.New("dial tcp " + addr + ":5432: connection refused")},
		{Said: &protocol.Error{Code: "28000", Message: `no pg_hba.conf entry for host "` + addr + `", user "u", database "d", no encryption`}},
	} {
		if told := e.Error() + e.Detail() + e.Hint(); strings.Contains(told, addr) {
			t.Errorf("told %q", told)
		}
	}
	e := &DialError{Said: &protocol.Error{Code: "28000", Message: `role "u" does not exist`}}
	if got := e.Error(); got != e.Said.Message || e.SQLState() != "28000" {
		t.Errorf("got %q %s, want the server's own words", got, e.SQLState())
	}
}
