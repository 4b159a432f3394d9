package auth

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/xdg-go/scram"
)

func itoa(n int) string   { return strconv.Itoa(n) }
func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

const testSalt = "0123456789abcdef"

func md5Secret(password, user string) string {
	sum := md5.Sum([]byte(password + user))
	return "md5" + hex.EncodeToString(sum[:])
}

// everyKind has one user for each kind of entry, all with the password "secret".
func everyKind(t testing.TB) *Userlist {
	return mustList(t, fmt.Sprintf("\"plain\" \"secret\"\n\"hashed\" \"%s\"\n\"scram\" \"%s\"\n\"none\" \"\"\n",
		md5Secret("secret", "hashed"), verifierText(t, "secret", testSalt, 4096)))
}

func TestEveryKindOfEntryLogsInWithTheMethodsThatItAllows(t *testing.T) {
	users := everyKind(t)
	for _, tc := range []struct {
		method   Method
		user     string
		password string
		ok       bool
		reason   string
	}{
		{MethodSCRAM, "plain", "secret", true, ""},
		{MethodSCRAM, "plain", "wrong", false, "password does not match"},
		{MethodSCRAM, "scram", "secret", true, ""},
		{MethodSCRAM, "scram", "wrong", false, "password does not match"},
		{MethodSCRAM, "hashed", "secret", false, "md5 secret"},
		{MethodSCRAM, "none", "", false, "no password assigned"},
		{MethodSCRAM, "nobody", "secret", false, "does not exist"},
		{MethodMD5, "plain", "secret", true, ""},
		{MethodMD5, "plain", "wrong", false, "password does not match"},
		{MethodMD5, "hashed", "secret", true, ""},
		{MethodMD5, "hashed", "wrong", false, "password does not match"},
		{MethodMD5, "scram", "secret", true, ""},
		{MethodMD5, "scram", "wrong", false, "password does not match"},
		{MethodMD5, "none", "x", false, "no password assigned"},
		{MethodMD5, "nobody", "secret", false, "does not exist"},
	} {
		t.Run(fmt.Sprintf("%s/%s/%s", tc.method, tc.user, tc.password), func(t *testing.T) {
			c := NewClientAuth(tc.method, tc.user, users, ClientAuthOptions{Mock: users.Mock()})
			var l *login
			if tc.method == MethodSCRAM || tc.user == "scram" {
				var err error
				if l, err = scramLogin(t, c, tc.password, nil); err != nil {
					t.Fatal(err)
				}
			} else {
				l = md5Login(t, c, tc.user, tc.password)
			}
			if (l.step == Done) != tc.ok {
				t.Fatalf("got %v (%v), want success %v", l.step, c.Err(), tc.ok)
			}
			if tc.ok {
				if c.Err() != nil {
					t.Fatal(c.Err())
				}
				return
			}
			wantError(t, c.Err(), "28P01", fmt.Sprintf("password authentication failed for user \"%s\"", tc.user))
			if !strings.Contains(c.Err().Reason, tc.reason) {
				t.Fatalf("reason %q, want %q", c.Err().Reason, tc.reason)
			}
		})
	}
}

func md5Login(t testing.TB, c *ClientAuth, user, password string) *login {
	t.Helper()
	l, replies := newLogin(t, c)
	if l.step != NeedMessage || replies[0].code != authMD5 || len(replies[0].payload) != 4 {
		t.Fatalf("start: %v %v", l.step, replies)
	}
	inner := md5Secret(password, user)[3:]
	l.took(c.Message(nil, append([]byte(md5Secret(inner, string(replies[0].payload))), 0)))
	return l
}

func TestUnknownUsersLookLikeWrongPasswords(t *testing.T) {
	for name, list := range map[string]string{
		"verifiers":           "\"alice\" \"" + verifierText(t, "secret", testSalt, 4096) + "\"\n",
		"odd verifiers":       "\"alice\" \"" + verifierText(t, "secret", testSalt+testSalt, 12000) + "\"\n",
		"passwords, cold":     "\"alice\" \"secret\"\n\"bob\" \"secret\"\n",
		"md5 under md5":       "\"alice\" \"" + md5Secret("secret", "alice") + "\"\n",
		"passwords under md5": "\"alice\" \"secret\"\n",
		"verifiers under md5": "\"alice\" \"" + verifierText(t, "secret", testSalt, 4096) + "\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			method := MethodSCRAM
			if strings.HasSuffix(name, "under md5") {
				method = MethodMD5
			}
			shapes := make(map[string][]string)
			for _, user := range []string{"alice", "ecila"} {
				users := mustList(t, list) // fresh, so that both are the first login
				c := NewClientAuth(method, user, users, ClientAuthOptions{Mock: users.Mock()})
				var l *login
				if method == MethodMD5 && name != "verifiers under md5" {
					l = md5Login(t, c, user, "wrong")
				} else {
					l, _ = scramLogin(t, c, "wrong", nil)
				}
				e := c.Err()
				shapes[user] = append(l.shape, "worked "+itoa(l.worked), e.Code, strings.ReplaceAll(e.Message, user, "?"), e.Detail)
			}
			if !slices.Equal(shapes["alice"], shapes["ecila"]) {
				t.Fatalf("known:   %q\nunknown: %q", shapes["alice"], shapes["ecila"])
			}
		})
	}
}

func TestSaltsAreStablePerUserAndDifferBetweenUsers(t *testing.T) {
	users := everyKind(t)
	seen := make(map[string]string)
	for _, user := range []string{"plain", "nobody", "noone", "plain", "nobody", "noone"} {
		c := NewClientAuth(MethodSCRAM, user, users, ClientAuthOptions{})
		newLogin(t, c)
		out, _ := c.Message(nil, saslInitial(t, mechSCRAM, "n,,n=,r=abc"))
		first := string(decodeReplies(t, out)[0].payload)
		salt := strings.Split(first, ",")[1]
		if old, ok := seen[user]; ok && old != salt {
			t.Fatalf("%s: salt %s, then %s", user, old, salt)
		}
		for other, s := range seen {
			if other != user && s == salt {
				t.Fatalf("%s and %s share a salt", user, other)
			}
		}
		seen[user] = salt
		if !strings.HasSuffix(first, ",i=4096") || len(salt) != len("s=")+24 {
			t.Fatalf("server-first-message %q", first)
		}
	}
	other, err := NewProcessKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := NewClientAuth(MethodSCRAM, "plain", users, ClientAuthOptions{Key: other})
	newLogin(t, c)
	out, _ := c.Message(nil, saslInitial(t, mechSCRAM, "n,,n=,r=abc"))
	if strings.Contains(string(out), seen["plain"]) {
		t.Fatal("another process key gives the same salt")
	}
}

func TestPBKDF2RunsOncePerPlainTextUser(t *testing.T) {
	text := "\"alice\" \"secret\"\n\"bob\" \"secret\"\n\"carol\" \"" + verifierText(t, "secret", testSalt, 4096) + "\"\n"
	users := mustList(t, text)
	for i, tc := range []struct {
		user   string
		worked int
	}{{"alice", 1}, {"alice", 0}, {"nobody", 1}, {"nobody", 0}, {"bob", 0}, {"carol", 0}} {
		c := NewClientAuth(MethodSCRAM, tc.user, users, ClientAuthOptions{})
		l, err := scramLogin(t, c, "secret", nil)
		if err != nil || l.worked != tc.worked {
			t.Fatalf("%d: %s worked %d times, want %d (%v)", i, tc.user, l.worked, tc.worked, err)
		}
		if (l.step == Done) != (tc.user != "nobody") {
			t.Fatalf("%s: %v %v", tc.user, l.step, c.Err())
		}
	}
	reloaded, err := ParseUserlist("userlist.txt", []byte(strings.Replace(text, "\"bob\" \"secret\"", "\"bob\" \"changed\"", 1)), users)
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]int{"alice": 0, "bob": 1} {
		password := map[string]string{"alice": "secret", "bob": "changed"}[user]
		l, err := scramLogin(t, NewClientAuth(MethodSCRAM, user, reloaded, ClientAuthOptions{}), password, nil)
		if err != nil || l.step != Done || l.worked != want {
			t.Fatalf("after the reload %s worked %d times, want %d (%v)", user, l.worked, want, err)
		}
	}
}

func TestAWarmListNeedsNoWork(t *testing.T) {
	users := mustList(t, "\"alice\" \"secret\"\n\"bob\" \"secret\"\n")
	if err := users.Warm(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"alice", "bob", "nobody"} {
		l, err := scramLogin(t, NewClientAuth(MethodSCRAM, user, users, ClientAuthOptions{}), "secret", nil)
		if err != nil || l.worked != 0 {
			t.Fatalf("%s worked %d times (%v)", user, l.worked, err)
		}
	}
}

func TestTrustAsksNothing(t *testing.T) {
	l, replies := newLogin(t, NewClientAuth(MethodTrust, "anybody", nil, ClientAuthOptions{}))
	if l.step != Done || len(replies) != 1 || replies[0].code != authOK {
		t.Fatalf("%v %v", l.step, replies)
	}
}

func TestCertificateNamesMustBeTheUser(t *testing.T) {
	for _, tc := range []struct {
		name    string
		method  Method
		opts    ClientAuthOptions
		step    Step
		message string
		reason  string
	}{
		{"same", MethodCert, ClientAuthOptions{CertName: "alice", CertVerified: true}, Done, "", ""},
		{"other", MethodCert, ClientAuthOptions{CertName: "bob", CertVerified: true}, Failed, `certificate authentication failed for user "alice"`, "provided user name (alice) and authenticated user name (bob) do not match"},
		{"other case", MethodCert, ClientAuthOptions{CertName: "Alice", CertVerified: true}, Failed, `certificate authentication failed for user "alice"`, "do not match"},
		{"nameless", MethodCert, ClientAuthOptions{CertVerified: true}, Failed, `certificate authentication failed for user "alice"`, "contains no user name"},
		{"absent", MethodCert, ClientAuthOptions{}, Failed, "connection requires a valid client certificate", ""},
		{"verify-full", MethodTrust, ClientAuthOptions{CertName: "alice", CertVerified: true, RequireCertName: true}, Done, "", ""},
		{"verify-full, other", MethodTrust, ClientAuthOptions{CertName: "bob", CertVerified: true, RequireCertName: true}, Failed, `"trust" authentication failed for user "alice"`, "do not match"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := NewClientAuth(tc.method, "alice", nil, tc.opts)
			l, replies := newLogin(t, c)
			if l.step != tc.step {
				t.Fatalf("got %v %v", l.step, c.Err())
			}
			if tc.step == Failed {
				wantError(t, c.Err(), "28000", tc.message)
				if !strings.Contains(c.Err().Reason, tc.reason) || len(replies) != 0 {
					t.Fatalf("%+v %v", c.Err(), replies)
				}
			}
		})
	}
}

func TestACorrectPasswordIsNotEnoughWhenTheCertificateNamesAnother(t *testing.T) {
	users := everyKind(t)
	c := NewClientAuth(MethodSCRAM, "scram", users, ClientAuthOptions{CertName: "other", CertVerified: true, RequireCertName: true})
	if l, _ := scramLogin(t, c, "secret", nil); l.step != Failed {
		t.Fatal("logged in")
	}
	wantError(t, c.Err(), "28P01", "password authentication failed")
	if _, ok := c.ClientKey(); ok {
		t.Fatal("a failed login gives its key away")
	}
}

func TestClientKeyIsTheOneThatThePasswordGives(t *testing.T) {
	for _, user := range []string{"plain", "scram"} {
		c := NewClientAuth(MethodSCRAM, user, everyKind(t), ClientAuthOptions{})
		if _, ok := c.ClientKey(); ok {
			t.Fatal("a key before the login")
		}
		if l, err := scramLogin(t, c, "secret", nil); err != nil || l.step != Done {
			t.Fatal(err, c.Err())
		}
		salt := c.shown.salt
		client, _ := deriveKeys("secret", salt, 4096)
		if got, ok := c.ClientKey(); !ok || got != client {
			t.Fatalf("%s: got %x, want %x", user, got, client)
		}
	}
}

func TestAnEmptyInitialResponseIsAskedForAgain(t *testing.T) {
	users := everyKind(t)
	c := NewClientAuth(MethodSCRAM, "scram", users, ClientAuthOptions{})
	l, _ := newLogin(t, c)
	replies := l.took(c.Message(nil, append([]byte(mechSCRAM+"\x00"), 0xff, 0xff, 0xff, 0xff)))
	if l.step != NeedMessage || len(replies) != 1 || replies[0].code != authSASLContinue || len(replies[0].payload) != 0 {
		t.Fatalf("%v %v", l.step, replies)
	}
	client, _ := scram.SHA256.NewClient("", "secret", "")
	conv := client.NewConversation()
	first, _ := conv.Step("")
	replies = l.took(c.Message(nil, []byte(first)))
	final, err := conv.Step(string(replies[0].payload))
	if err != nil {
		t.Fatal(err)
	}
	if l.took(c.Message(nil, []byte(final))); l.step != Done {
		t.Fatal(c.Err())
	}
}

func TestAMessageOfAnotherTypeIsAProtocolViolation(t *testing.T) {
	c := NewClientAuth(MethodSCRAM, "scram", everyKind(t), ClientAuthOptions{})
	newLogin(t, c)
	wantError(t, c.Unexpected('Q'), "08P01", "expected SASL response, got message type 81")
	c = NewClientAuth(MethodMD5, "plain", everyKind(t), ClientAuthOptions{})
	newLogin(t, c)
	wantError(t, c.Unexpected('X'), "08P01", "expected password response, got message type 88")
}

func TestMalformedMD5Responses(t *testing.T) {
	for body, want := range map[string][2]string{
		"":                           {"08P01", "invalid password packet size"},
		"md5":                        {"08P01", "invalid password packet size"},
		"md5\x00\x00":                {"08P01", "invalid password packet size"},
		"\x00":                       {"28P01", "empty password returned by client"},
		"secret\x00":                 {"28P01", "password authentication failed"},
		strings.Repeat("x", 2000):    {"08P01", "invalid message length"},
		md5Secret("a", "b") + "\x00": {"28P01", "password authentication failed"},
	} {
		c := NewClientAuth(MethodMD5, "plain", everyKind(t), ClientAuthOptions{})
		newLogin(t, c)
		if out, step := c.Message(nil, []byte(body)); step != Failed || len(out) != 0 {
			t.Fatalf("%q: %v %q", body, step, out)
		}
		wantError(t, c.Err(), want[0], want[1])
	}
}

func TestKeysDerivedForAnotherSaltAreNotUsed(t *testing.T) {
	users := everyKind(t)
	for range 3 {
		key, err := NewProcessKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		c := NewClientAuth(MethodSCRAM, "plain", users, ClientAuthOptions{Key: key})
		if l, err := scramLogin(t, c, "secret", nil); err != nil || l.step != Done || l.worked != 1 {
			t.Fatalf("%v %v, worked %d times", err, c.Err(), l.worked)
		}
	}
}

func TestConcurrentFirstLoginsShareOneDerivation(t *testing.T) {
	const logins = 8
	users := mustList(t, "\"alice\" \"secret\"\n")
	var wg sync.WaitGroup
	keys := make([]*serverKeys, logins)
	for i := range logins {
		wg.Go(func() {
			c := NewClientAuth(MethodSCRAM, "alice", users, ClientAuthOptions{})
			if l, err := scramLogin(t, c, "secret", nil); err != nil || l.step != Done {
				t.Error(err, c.Err())
			}
			keys[i] = c.keys
		})
	}
	wg.Wait()
	for _, k := range keys {
		if k != keys[0] {
			t.Fatal("derived twice")
		}
	}
}
