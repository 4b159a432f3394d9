package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTargetURLsAreReadAsLibpqReadsThem(t *testing.T) {
	for _, tt := range []struct {
		url  string
		want Target
	}{
		{"postgres://", Target{}},
		{"postgresql://h", Target{Host: "h"}},
		{"postgres://h:1/", Target{Host: "h", Port: 1}},
		{"postgres://h:/db", Target{Host: "h", Database: "db"}},
		{"postgres://u@h/db", Target{User: "u", Host: "h", Database: "db"}},
		{"postgres://u:@h", Target{User: "u", Host: "h"}},
		{"postgres://u:p@:7", Target{User: "u", Password: "p", Port: 7}},
		{"postgres://u%40x:p%3A%2F%40%25@h:5433/d%20b", Target{User: "u@x", Password: "p:/@%", Host: "h", Port: 5433, Database: "d b"}},
		{"postgres://u:a:b@h", Target{User: "u", Password: "a:b", Host: "h"}},
		{"postgres://u:a?b+c@h", Target{User: "u", Password: "a?b+c", Host: "h"}},
		{"postgres://[::1]:6/db", Target{Host: "::1", Port: 6, Database: "db"}},
		{"postgres://[fe80::1%25eth0]/db", Target{Host: "fe80::1%eth0", Database: "db"}},
		{"postgres://%2Frun%2Fpg/db", Target{Host: "/run/pg", Database: "db"}},
		{"postgres:///db?host=/run/pg&port=7", Target{Host: "/run/pg", Port: 7, Database: "db"}},
		{"postgres://x/db?user=u%40t&password=p%26q&dbname=e", Target{Host: "x", User: "u@t", Password: "p&q", Database: "e"}},
		{"postgres://h?sslmode=verify-ca&sslrootcert=/ca&sslcert=/c&sslkey=/k&sslnegotiation=direct&channel_binding=require", Target{
			Host: "h", ChannelBinding: "require",
			TLS: ServerTLS{Mode: TLSVerifyCA, Negotiation: NegotiateDirect, CA: "/ca", Cert: "/c", Key: "/k"},
		}},
		{"postgres://h?ssl=true&connect_timeout=3&application_name=a&options=-c%20a%3Db", Target{
			Host: "h", TLS: ServerTLS{Mode: TLSRequire}, ConnectTimeout: 3 * time.Second, AppName: "a", Options: "-c a=b",
		}},
		{"postgres://h?application_name=a&fallback_application_name=b&target_session_attrs=any&gssencmode=disable", Target{Host: "h", AppName: "a"}},
	} {
		t.Run(tt.url, func(t *testing.T) {
			got, err := ParseURL(tt.url)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Fatal("-want +got\n" + d)
			}
		})
	}
}

func TestAURLThatMakesNoSenseIsExplained(t *testing.T) {
	for _, tt := range []struct{ url, want string }{
		{"", "not a URL"},
		{"mysql://h", "not a URL"},
		{"host=h password=x", "not a URL"},
		{"postgres://u:p/w@h", "%2F"},
		{"postgres://u:p@w@h", "%40"},
		{"postgres://u:12/34@h/db", "%2F"},
		{"postgres://h/a/b", "%2F"},
		{"postgres://a,b/db", "several hosts"},
		{"postgres://a:1,b:2/db", "several hosts"},
		{"postgres:///db?host=a,b", "several hosts"},
		{"postgres://h:0", "from 1 to 65535"},
		{"postgres://h:x", "from 1 to 65535"},
		{"postgres://h:65536", "from 1 to 65535"},
		{"postgres://[::1", "']'"},
		{"postgres://[h]", "not an IPv6"},
		{"postgres://[::1]x", "cannot be"},
		{"postgres://h%", "hex"},
		{"postgres://h/%zz", "hex"},
		{"postgres://h/%00", "%00"},
		{"postgres://h/\x00", "zero byte"},
		{"postgres://h h/", "no host name"},
		{"postgres://h?sslmode=on", "sslmode must be one of disable, allow, prefer, require, verify-ca, verify-full"},
		{"postgres://h?sslmode", "name=value"},
		{"postgres://h?a=b=c", "name=value"},
		{"postgres://h?user=u&colour=blue", "parameter 2 has an unknown name"},
		{"postgres://h?passfile=/x", "password_file"},
		{"postgres://h?hostaddr=1.2.3.4", "hostaddr is not supported"},
		{"postgres://h?target_session_attrs=primary", "must be one of any"},
		{"postgres://h?connect_timeout=soon", "seconds"},
	} {
		t.Run(tt.url, func(t *testing.T) {
			_, err := ParseURL(tt.url)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want it to contain %q", err, tt.want)
			}
		})
	}
}

func TestOneURLWithSeveralMistakesNamesThemAll(t *testing.T) {
	_, err := ParseURL("postgres://h:x/%zz?sslmode=on&connect_timeout=-1")
	if got := Mistakes(err); len(got) != 4 {
		t.Fatalf("got %d: %v", len(got), err)
	}
}

func TestAMaskedURLKeepsAllButThePassword(t *testing.T) {
	for _, tt := range []struct{ url, want string }{
		{"", ""},
		{"postgres://u:p@h:1/d?sslmode=require", "postgres://u:****@h:1/d?sslmode=require"},
		{"postgresql://u@h/d", "postgresql://u@h/d"},
		{"postgres://h/d?user=u&password=p&port=7", "postgres://h/d?user=u&password=****&port=7"},
		{"postgres://h/d?p%61ssword=p", "postgres://h/d?p%61ssword=****"},
		{"postgres://u:a?password=b@h", "postgres://u:****@h"},
		{"postgres://u:p/w@h", "postgres://****"},
		{"host=h password=p", "****"},
		{"env:MAIN", "env:MAIN"},
		{"env:not a name", "****"},
	} {
		if got := MaskURL(tt.url); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.url, got, tt.want)
		}
		if tt.url == "" {
			continue
		}
		if got := fmt.Sprintf("%v %+v %#v %s %q %x", URL(tt.url), []URL{URL(tt.url)}, struct{ U URL }{URL(tt.url)}, URL(tt.url), URL(tt.url), URL(tt.url)); strings.Count(got, tt.want) != 6 {
			t.Errorf("%s: printed as %s", tt.url, got)
		}
	}
}

func TestTheAddressOfATargetIsWhatADialerWants(t *testing.T) {
	for _, tt := range []struct {
		target        Target
		network, addr string
	}{
		{Target{Host: "h", Port: 1}, "tcp", "h:1"},
		{Target{Host: "::1", Port: 1}, "tcp", "[::1]:1"},
		{Target{Host: "/run/pg", Port: 5432}, "unix", "/run/pg/.s.PGSQL.5432"},
	} {
		if n, a := tt.target.Network(), tt.target.Address(); n != tt.network || a != tt.addr {
			t.Errorf("got %s %s, want %s %s", n, a, tt.network, tt.addr)
		}
	}
}

func TestListenAddressesAreReadAndRefused(t *testing.T) {
	for _, tt := range []struct{ text, network, addr, problem string }{
		{text: "127.0.0.1:6432", network: "tcp", addr: "127.0.0.1:6432"},
		{text: "[::1]:6432", network: "tcp", addr: "[::1]:6432"},
		{text: "*:1", network: "tcp", addr: ":1"},
		{text: ":0", network: "tcp", addr: ":0"},
		{text: "/run/mp", network: "unix", addr: "/run/mp/.s.PGSQL.6432"},
		{text: "/run/mp/:5", network: "unix", addr: "/run/mp/.s.PGSQL.5"},
		{text: "6432", problem: "host:port"},
		{text: "::1:6432", problem: "host:port"},
		{text: "h:pg", problem: "number"},
		{text: "/run/mp:0", problem: "from 1"},
		{text: "postgres://u:p@h:5", problem: "host:port"},
		{text: "u@h:5", problem: "no host name"},
		{text: "/" + strings.Repeat("x", 100), problem: "107"},
	} {
		l, err := ParseListener(tt.text)
		if tt.problem != "" {
			if err == nil || !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("%s: got %v", tt.text, err)
			}
			continue
		}
		if err != nil || l.Network() != tt.network || l.Address() != tt.addr {
			t.Errorf("%s: got %s %s %v", tt.text, l.Network(), l.Address(), err)
		}
	}
}

// FuzzParseURL: whatever is written, nothing panics, and neither an error nor a
// print shows the password.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"hunter2x", "a/b?c#d@e", "x&sslmode=qq", "1/2", "%41%", "a@b:c", "p,q", "]["} {
		f.Add("postgres://u:", s, "@h/db?sslmode=disable")
		f.Add("postgres://h/db?password=", s, "")
		f.Add("postgres://h/db?sslmode=zz&passwd=", s, "&port=99999")
	}
	f.Fuzz(func(t *testing.T, before, secret, after string) {
		raw := before + secret + after
		got, err := ParseURL(raw)
		masked := MaskURL(raw)
		if err != nil {
			// No error quotes input: it must come from a fixed set of phrases.
			if len(secret) >= 5 && strings.Contains(err.Error(), secret) && !strings.Contains(fixedPhrases, secret) {
				t.Fatalf("the error shows the secret: %v", err)
			}
			if rest, ok := cutScheme(masked); ok && rest != mask {
				t.Fatalf("a URL that cannot be read is shown: %s", masked)
			}
			return
		}
		again, err := ParseURL(masked)
		if err != nil {
			t.Fatalf("%s masks to %s, which does not parse: %v", raw, masked, err)
		}
		if (got.Password == "") != (again.Password == "") || got.Password != "" && again.Password.Reveal() != mask {
			t.Fatalf("%s masks to %s", raw, masked)
		}
		got.Password, again.Password = "", ""
		if d := cmp.Diff(got, again); d != "" {
			t.Fatalf("masking changed more than the password: %s", d)
		}
	})
}

// fixedPhrases is every text that an error of ParseURL is made of.
var fixedPhrases = func() string {
	var b strings.Builder
	for _, u := range []string{
		"x", "postgres://a/b@c", "postgres://a,b", "postgres://h:x", "postgres://[", "postgres://[x]", "postgres://h h",
		"postgres://%/%00", "postgres://h?a", "postgres://h?a=b", "postgres://h?connect_timeout=x&ssl=x&sslmode=x&sslnegotiation=x&channel_binding=x",
		"postgres://\x00", "postgres://h?user=%",
	} {
		_, err := ParseURL(u)
		b.WriteString(err.Error())
	}
	for name, why := range refusedParams {
		b.WriteString("the parameter " + name + " is not supported: " + why)
	}
	for name, words := range ignoredParams {
		b.WriteString(name + " must be one of " + strings.Join(words, ", "))
	}
	return b.String()
}()
