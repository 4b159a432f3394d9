package auth

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestUserlistsReadAsPgBouncerReadsThem(t *testing.T) {
	verifier := verifierText(t, "secret", testSalt, 4096)
	u := mustList(t, "\xef\xbb\xbf; comment\n# comment\n\n  \t\n"+
		`"plain" "secret"`+"\r\n"+
		`	"quo""ted" "pass""word"""`+"\n"+
		`"spaces" "a b ;#c"   ; comment`+"\n"+
		`"old" "x" "2030-01-01" ""`+"\n"+
		`"tight""" "y"#comment`+"\n"+
		`"none" ""`+"\n"+
		`"hashed" "md5`+strings.Repeat("0a", 16)+`"`+"\n"+
		`"nothash" "md5`+strings.Repeat("0A", 16)+`"`+"\n"+
		`"scram" "`+verifier+`"`)
	want := map[string]struct {
		kind Kind
		text string
	}{
		"plain": {KindPlain, "secret"}, `quo"ted`: {KindPlain, `pass"word"`}, "spaces": {KindPlain, "a b ;#c"},
		"old": {KindPlain, "x"}, `tight"`: {KindPlain, "y"}, "none": {KindNone, ""},
		"hashed": {KindMD5, "md5" + strings.Repeat("0a", 16)}, "nothash": {KindPlain, "md5" + strings.Repeat("0A", 16)},
		"scram": {KindSCRAM, ""},
	}
	if u.Len() != len(want) || len(u.Names()) != len(want) || !slices.IsSorted(u.Names()) {
		t.Fatal(u.Names())
	}
	for user, w := range want {
		s, ok := u.Lookup(user)
		if !ok || s.Kind() != w.kind || w.kind != KindNone && s.e.text != w.text {
			t.Errorf("%s: %v %v", user, ok, s.Kind())
		}
	}
	if _, ok := u.Lookup("nobody"); ok {
		t.Error("found nobody")
	}
}

func TestUserlistErrorsNameTheLineAndNotTheSecret(t *testing.T) {
	const secret = "hunter2"
	salt, key := b64(testSalt), b64(strings.Repeat("k", 32))
	for _, tc := range []struct{ line, want string }{
		{`user hunter2`, "user name does not begin with a double quote"},
		{`"user`, "user name has no closing"},
		{`"user"`, "password missing"},
		{`"user" hunter2`, "password does not begin"},
		{`"user" "hunter2`, "password has no closing"},
		{`"user" "hunter2" hunter2`, "text after the password"},
		{`"user" "hunt"er2"`, "text after the password"},
		{`"" "hunter2"`, "empty user name"},
		{`"` + strings.Repeat("u", 256) + `" "hunter2"`, "256 bytes, more than 255"},
		{`"user" "` + strings.Repeat(secret, 600) + `"`, "4200 bytes, more than 4096"},
		{"\"user\" \"hunter2\x00\"", "NUL byte"},
		{`"first" "hunter2"`, `user "first" is already in line 1`},
		{`"user" "SCRAM-SHA-256$hunter2"`, "malformed SCRAM-SHA-256 secret"},
		{`"user" "SCRAM-SHA-256$0:` + salt + `$` + key + `:` + key + `"`, "iteration count"},
		{`"user" "SCRAM-SHA-256$-1:` + salt + `$` + key + `:` + key + `"`, "iteration count"},
		{`"user" "SCRAM-SHA-256$4294967296:` + salt + `$` + key + `:` + key + `"`, "iteration count"},
		{`"user" "SCRAM-SHA-256$4096:$` + key + `:` + key + `"`, "the salt is not"},
		{`"user" "SCRAM-SHA-256$4096:` + strings.Repeat("QUJD", 100) + `$` + key + `:` + key + `"`, "the salt is longer"},
		{`"user" "SCRAM-SHA-256$4096:` + salt + `$hunter2:` + key + `"`, "StoredKey is not"},
		{`"user" "SCRAM-SHA-256$4096:` + salt + `$` + key + `:hunter2"`, "ServerKey is not"},
		{`"user" "SCRAM-SHA-256$4096:` + salt + `$` + key + `"`, "want SCRAM-SHA-256$"},
	} {
		_, err := ParseUserlist("/etc/users.txt", []byte("\"first\" \"hunter2\"\n\n"+tc.line+"\n"), nil)
		if err == nil || !strings.HasPrefix(err.Error(), "/etc/users.txt:3: ") || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%.60s: got %v, want %q", tc.line, err, tc.want)
		}
		if err != nil && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), key)) {
			t.Errorf("the error tells the secret: %v", err)
		}
	}
	if _, err := ParseUserlist("f", make([]byte, maxUserlist+1), nil); err == nil || !strings.Contains(err.Error(), "more than 16777216 bytes") {
		t.Error(err)
	}
}

func TestUserlistFilesAreLoaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.txt")
	if _, err := LoadUserlist(path, nil); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("\"a\" \"b\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if u, err := LoadUserlist(path, nil); err != nil || u.Len() != 1 {
		t.Fatal(err)
	}
}

func TestASingleUsersPasswordIsAlwaysAPassword(t *testing.T) {
	for _, password := range []string{"secret", md5Secret("a", "b"), verifierText(t, "a", testSalt, 4096)} {
		u, err := Single("alice", password)
		if err != nil {
			t.Fatal(err)
		}
		l, err := scramLogin(t, NewClientAuth(MethodSCRAM, "alice", u, ClientAuthOptions{}), password, nil)
		if err != nil || l.step != Done {
			t.Fatalf("%.10s: %v %v", password, err, l.c.Err())
		}
	}
	for _, tc := range [][2]string{{"", "x"}, {"u", "a\x00b"}, {"u", strings.Repeat("x", 5000)}} {
		if _, err := Single(tc[0], tc[1]); err == nil {
			t.Errorf("%.10q accepted", tc)
		}
	}
}

func TestMocksLookLikeMostUsers(t *testing.T) {
	v := func(salt string, n int) string { return verifierText(t, "secret", salt, n) }
	for _, tc := range []struct {
		secrets []string
		want    Mock
	}{
		{nil, Mock{}},
		{[]string{"x"}, Mock{4096, 16, false}},
		{[]string{"x", v(testSalt, 10000), v(testSalt, 10000)}, Mock{10000, 16, true}},
		{[]string{"x", v(testSalt, 10000)}, Mock{4096, 16, false}},
		{[]string{v(testSalt+testSalt, 4096)}, Mock{4096, 32, true}},
		{[]string{md5Secret("a", "b")}, Mock{}},
	} {
		var b strings.Builder
		for i, s := range tc.secrets {
			fmt.Fprintf(&b, "\"u%d\" \"%s\"\n", i, s)
		}
		if got := mustList(t, b.String()).Mock(); got != tc.want {
			t.Errorf("%d secrets: got %+v, want %+v", len(tc.secrets), got, tc.want)
		}
	}
}

func TestSecretsNeverPrint(t *testing.T) {
	users := everyKind(t)
	key, err := NewProcessKey(strings.NewReader(strings.Repeat("hunter2!", 4)))
	if err != nil {
		t.Fatal(err)
	}
	plain, _ := users.Lookup("plain")
	c := NewClientAuth(MethodSCRAM, "scram", users, ClientAuthOptions{Key: key})
	if _, err := scramLogin(t, c, "secret", nil); err != nil {
		t.Fatal(err)
	}
	clientKey, _ := c.ClientKey()
	login := NewServerLogin("plain", plain, ServerLoginOptions{})
	if done, serr, err := talk(t, login, NewClientAuth(MethodSCRAM, "plain", users, ClientAuthOptions{Key: key})); err != nil || serr != nil || !done {
		t.Fatal(err, serr)
	}
	type holder struct {
		Secret  Secret
		private Secret
	}
	things := []any{plain, &plain, holder{plain, plain}, &holder{plain, plain}, users, key, c, login, []Secret{plain}, map[string]Secret{"x": plain}}
	bad := []string{"secret\"", ":secret", "{secret", "hunter2", fmt.Sprintf("%x", "secret"), fmt.Sprintf("%x", clientKey), strings.Trim(fmt.Sprintf("%d", clientKey[:4]), "[]"), fmt.Sprintf("%x", "hunter2")}
	for _, thing := range things {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
			check(t, bad, fmt.Sprintf(verb, thing))
		}
		if data, err := json.Marshal(thing); err == nil {
			check(t, bad, string(data))
		}
	}
	enc := zapcore.NewJSONEncoder(zapcore.EncoderConfig{})
	buf, err := enc.EncodeEntry(zapcore.Entry{}, []zap.Field{zap.Object("o", plain), zap.Any("a", plain), zap.Reflect("r", holder{plain, plain}), zap.Stringer("s", plain)})
	if err != nil {
		t.Fatal(err)
	}
	check(t, bad, buf.String())
	if !strings.Contains(buf.String(), `"o":{"kind":"plain"}`) {
		t.Error(buf.String())
	}
	if plain.String() != masked || plain.GoString() != masked {
		t.Error(plain.String())
	}
}

func check(t *testing.T, bad []string, text string) {
	t.Helper()
	for _, b := range bad {
		if strings.Contains(text, b) {
			t.Errorf("%q tells %q", text, b)
		}
	}
}

func TestSASLprepIsPostgreSQLs(t *testing.T) {
	for in, want := range map[string]string{
		"user": "user", "a\x01b": "a\x01b", "": "",
		"I\u00adX":           "IX",            // mapped to nothing
		"\u00aa":             "a",             // NFKC
		"\u2168":             "IX",            // NFKC
		"a\u00a0b":           "a b",           // non-ASCII space
		"a\u200bb":           "a b",           // in both tables: the space wins
		"\u00ad":             "\u00ad",        // nothing left: as it is
		"a\u0007é":           "a\u0007é",      // control character: as it is
		"\u0627\u0031":       "\u0627\u0031",  // right-to-left must end so: as it is
		"\u0627a\u0628":      "\u0627a\u0628", // mixed directions: as it is
		"\u0627\u0031\u0628": "\u0627\u0031\u0628",
		"\U0001F600e\u0301":  "\U0001F600e\u0301", // unassigned in Unicode 3.2: as it is
		"e\u0301":            "\u00e9",
		"\xff\xfee":          "\xff\xfee", // not UTF-8
	} {
		if got := saslprep(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func FuzzUserlist(f *testing.F) {
	f.Add([]byte("\"a\" \"b\"\n;\n\"c\" \"\"\"\"\n"))
	f.Add([]byte("\"a\" \"SCRAM-SHA-256$4096:QUJD$x:y\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		u, err := ParseUserlist("f", data, nil)
		if err != nil {
			return
		}
		// What was read can be written and read again.
		var b strings.Builder
		quote := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
		for _, name := range u.Names() {
			s, _ := u.Lookup(name)
			if s.Kind() == KindSCRAM {
				return
			}
			text := ""
			if s.e != nil {
				text = s.e.text
			}
			fmt.Fprintf(&b, "%s %s\n", quote(name), quote(text))
		}
		again, err := ParseUserlist("f", []byte(b.String()), u)
		if err != nil || !slices.Equal(again.Names(), u.Names()) {
			t.Fatal(err)
		}
		for _, name := range u.Names() {
			a, _ := u.Lookup(name)
			b, _ := again.Lookup(name)
			if a.e != b.e {
				t.Fatalf("%q is not the same", name)
			}
		}
	})
}
