package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/xdg-go/scram"

	"github.com/multipooler/multipooler/certs"
)

func plainSecret(t testing.TB, password string) Secret {
	t.Helper()
	s, err := PlainSecret(password)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func parseSecret(t testing.TB, text string) Secret {
	t.Helper()
	s, err := ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testCert(t testing.TB) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// talk lets a ServerLogin log in at a ClientAuth until one of them ends.
func talk(t testing.TB, l *ServerLogin, c *ClientAuth) (done bool, serverErr *Error, clientErr error) {
	t.Helper()
	server, replies := newLogin(t, c)
	for {
		if server.step == Failed {
			return false, c.Err(), nil
		}
		var answer []byte
		for _, r := range replies {
			var err error
			if answer, done, err = l.Step(r.code, r.payload); err != nil {
				return false, nil, err
			}
		}
		if done {
			if server.step != Done {
				t.Fatalf("done at one side only: %v", server.step)
			}
			return true, nil, nil
		}
		if n := int(binary.BigEndian.Uint32(answer[1:])); answer[0] != 'p' || n+1 != len(answer) {
			t.Fatalf("not one message: %q", answer)
		}
		replies = server.took(c.Message(nil, answer[5:]))
	}
}

func TestBothSidesAgree(t *testing.T) {
	users := mustList(t, fmt.Sprintf("\"u\" \"secret\"\n\"v\" \"%s\"\n\"m\" \"%s\"\n", verifierText(t, "secret", testSalt, 4096), md5Secret("secret", "m")))
	hash := certs.EndPoint(testCert(t))
	for _, tc := range []struct {
		name         string
		user         string
		method       Method
		secret       Secret
		client, serv []byte
		binding      ChannelBinding
		want         string // "" is success; else part of one side's error
		used         string
	}{
		{"trust", "u", MethodTrust, Secret{}, nil, nil, 0, "", "trust"},
		{"scram", "u", MethodSCRAM, plainSecret(t, "secret"), nil, nil, 0, "", "scram-sha-256"},
		{"scram, verifier", "v", MethodSCRAM, plainSecret(t, "secret"), nil, nil, 0, "", "scram-sha-256"},
		{"scram, wrong", "v", MethodSCRAM, plainSecret(t, "Secret"), nil, nil, 0, "password authentication failed", ""},
		{"md5", "m", MethodMD5, plainSecret(t, "secret"), nil, nil, 0, "", "md5"},
		{"md5 by hash", "m", MethodMD5, parseSecret(t, md5Secret("secret", "m")), nil, nil, 0, "", "md5"},
		{"md5, wrong", "m", MethodMD5, plainSecret(t, "x"), nil, nil, 0, "password authentication failed", ""},
		{"plus", "v", MethodSCRAM, plainSecret(t, "secret"), hash, hash, 0, "", "scram-sha-256-plus"},
		{"plus required", "v", MethodSCRAM, plainSecret(t, "secret"), hash, hash, BindingRequire, "", "scram-sha-256-plus"},
		{"plus disabled", "v", MethodSCRAM, plainSecret(t, "secret"), hash, hash, BindingDisable, "", "scram-sha-256"},
		{"server has no plus", "v", MethodSCRAM, plainSecret(t, "secret"), hash, nil, 0, "", "scram-sha-256"},
		{"client has no plus", "v", MethodSCRAM, plainSecret(t, "secret"), nil, hash, 0, "", "scram-sha-256"},
		{"another certificate", "v", MethodSCRAM, plainSecret(t, "secret"), hash, make([]byte, 32), 0, "SCRAM channel binding check failed", ""},
		{"required, server has none", "v", MethodSCRAM, plainSecret(t, "secret"), hash, nil, BindingRequire, "does not offer SCRAM-SHA-256-PLUS", ""},
		{"required, no TLS", "v", MethodSCRAM, plainSecret(t, "secret"), nil, hash, BindingRequire, "has none to offer", ""},
		{"required, trust", "v", MethodTrust, plainSecret(t, "secret"), hash, hash, BindingRequire, "authenticates without it", ""},
		{"required, md5", "m", MethodMD5, plainSecret(t, "secret"), hash, hash, BindingRequire, "authenticates without it", ""},
		{"md5 hash for scram", "v", MethodSCRAM, parseSecret(t, md5Secret("secret", "v")), nil, nil, 0, "Only an md5 secret is known", ""},
		{"verifier for scram", "v", MethodSCRAM, parseSecret(t, verifierText(t, "secret", testSalt, 4096)), nil, nil, 0, "Only a SCRAM verifier is known", ""},
		{"verifier for md5", "m", MethodMD5, parseSecret(t, verifierText(t, "secret", testSalt, 4096)), nil, nil, 0, "Only SCRAM keys are known", ""},
		{"nothing for scram", "v", MethodSCRAM, Secret{}, nil, nil, 0, "none is known", ""},
		{"nothing for md5", "m", MethodMD5, Secret{}, nil, nil, 0, "none is known", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := NewServerLogin(tc.user, tc.secret, ServerLoginOptions{EndPoint: tc.client, Binding: tc.binding})
			c := NewClientAuth(tc.method, tc.user, users, ClientAuthOptions{EndPoint: tc.serv})
			done, serverErr, clientErr := talk(t, l, c)
			if tc.want == "" {
				if !done || l.Method() != tc.used || c.ChannelBound() != strings.HasSuffix(tc.used, "-plus") {
					t.Fatalf("got %v %v by %s", clientErr, serverErr, l.Method())
				}
				return
			}
			if text := fmt.Sprint(clientErr, serverErr); done || !strings.Contains(text, tc.want) || strings.Contains(text, "secret\"") {
				t.Fatalf("got %q, want %q", text, tc.want)
			}
		})
	}
}

func TestKeysOfAClientsLoginLogInWhereTheVerifierIsTheSame(t *testing.T) {
	text := verifierText(t, "secret", testSalt, 4096)
	users := mustList(t, "\"v\" \""+text+"\"\n")
	c := NewClientAuth(MethodSCRAM, "v", users, ClientAuthOptions{})
	if l, err := scramLogin(t, c, "secret", nil); err != nil || l.step != Done {
		t.Fatal(err, c.Err())
	}
	keys, ok := c.PassThrough()
	if !ok || keys.Kind() != KindKeys {
		t.Fatal("no keys")
	}
	if done, serr, err := talk(t, NewServerLogin("v", keys, ServerLoginOptions{}), NewClientAuth(MethodSCRAM, "v", users, ClientAuthOptions{})); !done {
		t.Fatal(err, serr)
	}
	other := mustList(t, "\"v\" \""+verifierText(t, "secret", "fedcba9876543210", 4096)+"\"\n")
	done, _, err := talk(t, NewServerLogin("v", keys, ServerLoginOptions{}), NewClientAuth(MethodSCRAM, "v", other, ClientAuthOptions{}))
	if done || err == nil || !strings.Contains(err.Error(), "same salt and iteration count") {
		t.Fatal(err)
	}
}

func TestAnotherImplementationsServerAcceptsOurLogin(t *testing.T) {
	cl, _ := scram.SHA256.NewClient("", "sec\u00adret", "")
	creds, err := cl.GetStoredCredentialsWithError(scram.KeyFactors{Salt: testSalt, Iters: 4096})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := scram.SHA256.NewServer(func(string) (scram.StoredCredentials, error) { return creds, nil })
	if err != nil {
		t.Fatal(err)
	}
	binding := tlsBinding(t, testCert(t))
	for _, plus := range []bool{false, true} {
		conv, list, o := srv.NewConversation(), mechSCRAM+"\x00\x00", ServerLoginOptions{}
		if plus {
			conv, list, o.EndPoint = srv.NewConversationWithChannelBinding(*binding), mechSCRAMPlus+"\x00"+list, binding.Data
		}
		l := NewServerLogin("u", plainSecret(t, "sec\u00adret"), o)
		msg, _, err := l.Step(authSASL, []byte(list))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := bytes.Cut(msg[5:], []byte{0})
		first, err := conv.Step(string(rest[4:]))
		if err != nil {
			t.Fatal(err)
		}
		if msg, _, err = l.Step(authSASLContinue, []byte(first)); err != nil {
			t.Fatal(err)
		}
		final, err := conv.Step(string(msg[5:]))
		if err != nil || !conv.Valid() {
			t.Fatal(err)
		}
		if _, done, err := l.Step(authSASLFinal, []byte(final)); err != nil || done {
			t.Fatal(err, done)
		}
		if _, done, err := l.Step(authOK, nil); err != nil || !done {
			t.Fatal(err, done)
		}
	}
}

func TestOurServerBindsToAnotherImplementationsClient(t *testing.T) {
	cert := testCert(t)
	binding := tlsBinding(t, cert)
	c := NewClientAuth(MethodSCRAM, "scram", everyKind(t), ClientAuthOptions{EndPoint: certs.EndPoint(cert)})
	if l, err := scramLogin(t, c, "secret", binding); err != nil || l.step != Done || !c.ChannelBound() {
		t.Fatal(err, c.Err())
	}
}

// rfcNonce gives the nonces of RFC 7677 in raw form: base64 turns them back.
func rfcNonce(t testing.TB, text string) *bytes.Reader {
	raw, ok := decodeBase64([]byte(text))
	if !ok {
		t.Fatal("not base64")
	}
	return bytes.NewReader(raw)
}

func TestKeysAreThoseOfRFC7677(t *testing.T) {
	// Section 3. Its nonces are not ours in form and the user is not empty, so that
	// the exchange itself is recomputed from its parts.
	salt, _ := decodeBase64([]byte("W22ZaJ0SNY7soEsUEjb6gQ=="))
	client, server := deriveKeys("pencil", salt, 4096)
	message := "n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
	s := scramServer{buf: append(make([]byte, hmacBlock), message...)}
	if !decodeKey(&s.proof, []byte("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")) {
		t.Fatal("proof")
	}
	k := &serverKeys{server: server}
	k.stored = sum256(client)
	out, ok := s.verify(nil, k)
	if !ok || string(out) != "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=" || s.clientKey != client {
		t.Fatalf("%v %s", ok, out)
	}
}

func TestHostileServersAreRefused(t *testing.T) {
	const nonce = "AAECAwQFBgcICQoLDA0ODxAR"
	start := func() *ServerLogin {
		return NewServerLogin("u", plainSecret(t, "secret"), ServerLoginOptions{Random: rfcNonce(t, nonce)})
	}
	type message struct {
		code uint32
		body string
	}
	list := message{authSASL, mechSCRAM + "\x00\x00"}
	first := func(s string) []message { return []message{list, {authSASLContinue, s}} }
	good := "r=" + nonce + "x,s=QUJD,i=1"
	for _, tc := range []struct {
		name     string
		messages []message
		want     string
	}{
		{"ok after mechanisms", []message{list, {authOK, ""}}, "before proving"},
		{"ok after server-first", append(first(good), message{authOK, ""}), "before proving"},
		{"final before first", []message{list, {authSASLFinal, "v="}}, "not at its end"},
		{"final out of nothing", []message{{authSASLFinal, "v="}}, "not at its end"},
		{"first out of nothing", []message{{authSASLContinue, good}}, "not under way"},
		{"first twice", append(first(good), message{authSASLContinue, good}), "not under way"},
		{"mechanisms twice", []message{list, list}, "second time"},
		{"password after scram", append(first(good), message{authCleartext, ""}), "second time"},
		{"no mechanisms", []message{{authSASL, "\x00"}}, "list is empty"},
		{"endless mechanisms", []message{{authSASL, mechSCRAM}}, "does not end"},
		{"text behind mechanisms", []message{{authSASL, mechSCRAM + "\x00\x00x"}}, "behind the list"},
		{"many mechanisms", []message{{authSASL, strings.Repeat("x\x00", 100) + "\x00"}}, "more than 32"},
		{"unknown mechanisms", []message{{authSASL, "OAUTHBEARER\x00\x00"}}, "none of the server's SASL"},
		{"plus only, no TLS", []message{{authSASL, mechSCRAMPlus + "\x00\x00"}}, "none of the server's SASL"},
		{"oversized", []message{{authSASL, strings.Repeat("x", 2001)}}, "oversized"},
		{"empty first", first(""), "message is empty"},
		{"long first", first("r=" + strings.Repeat("x", 1100)), "more than 1024"},
		{"NUL", first(good + "\x00"), "length does not match"},
		{"extension", first("m=x," + good), "extension"},
		{"no nonce", first("s=QUJD,i=1"), "attribute \"r\""},
		{"foreign nonce", first("r=other,s=QUJD,i=1"), "does not extend"},
		{"only our nonce", first("r=" + nonce + ",s=QUJD,i=1"), "does not extend"},
		{"long nonce", first("r=" + nonce + strings.Repeat("x", 600) + ",s=QUJD,i=1"), "more than 512"},
		{"unprintable nonce", first("r=" + nonce + "\x01,s=QUJD,i=1"), "non-printable"},
		{"no salt", first("r=" + nonce + "x,i=1"), "attribute \"s\""},
		{"empty salt", first("r=" + nonce + "x,s=,i=1"), "salt is not"},
		{"bad salt", first("r=" + nonce + "x,s=!!!!,i=1"), "salt is not"},
		{"huge salt", first("r=" + nonce + "x,s=" + strings.Repeat("QUJD", 90) + ",i=1"), "salt is not"},
		{"no count", first("r=" + nonce + "x,s=QUJD"), "attribute \"i\""},
		{"zero count", first("r=" + nonce + "x,s=QUJD,i=0"), "not a positive"},
		{"negative count", first("r=" + nonce + "x,s=QUJD,i=-1"), "not a positive"},
		{"empty count", first("r=" + nonce + "x,s=QUJD,i="), "not a positive"},
		{"text count", first("r=" + nonce + "x,s=QUJD,i=4096x"), "not a positive"},
		{"huge count", first("r=" + nonce + "x,s=QUJD,i=2000001"), "more than 2000000"},
		{"overflowing count", first("r=" + nonce + "x,s=QUJD,i=99999999999999999999"), "not a positive"},
		{"text behind", first(good + ",x=y"), "behind the iteration count"},
		{"comma behind", first(good + ","), "behind the iteration count"},
		{"refusal", append(first(good), message{authSASLFinal, "e=invalid\nproof"}), "refused the SCRAM login: invalid?proof"},
		{"no signature", append(first(good), message{authSASLFinal, "x=y"}), "attribute \"v\""},
		{"short signature", append(first(good), message{authSASLFinal, "v=QUJD"}), "not base64 of 32"},
		{"wrong signature", append(first(good), message{authSASLFinal, "v=" + b64(strings.Repeat("x", 32))}), "incorrect server signature"},
		{"text behind signature", append(first(good), message{authSASLFinal, "v=" + b64(strings.Repeat("x", 32)) + ","}), "behind the server's signature"},
		{"md5 salt", []message{{authMD5, "abc"}}, "salt has 3 bytes"},
		{"md5 twice", []message{{authMD5, "abcd"}, {authMD5, "abcd"}}, "second time"},
		{"kerberos", []message{{authKerberosV5, ""}}, "Kerberos V5 authentication"},
		{"gss", []message{{authGSS, ""}}, "GSSAPI authentication"},
		{"gss continue", []message{{authGSSContinue, "x"}}, "GSSAPI authentication"},
		{"sspi", []message{{authSSPI, ""}}, "SSPI authentication"},
		{"scm", []message{{authSCM, ""}}, "SCM credential authentication"},
		{"unknown", []message{{77, ""}}, "type 77 authentication"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := start()
			for i, m := range tc.messages {
				reply, done, err := l.Step(m.code, []byte(m.body))
				last := i == len(tc.messages)-1
				if (err != nil) != last || done {
					t.Fatalf("message %d: %q %v %v", i, reply, done, err)
				}
				if last && (!strings.Contains(err.Error(), tc.want) || reply != nil) {
					t.Fatalf("got %v, want %q", err, tc.want)
				}
			}
		})
	}
}

func TestCleartextIsSentUnlessRefused(t *testing.T) {
	l := NewServerLogin("u", plainSecret(t, "secret"), ServerLoginOptions{})
	reply, _, err := l.Step(authCleartext, nil)
	if err != nil || string(reply) != "p\x00\x00\x00\x0bsecret\x00" {
		t.Fatalf("%q %v", reply, err)
	}
	if _, done, err := l.Step(authOK, nil); !done || err != nil {
		t.Fatal(done, err)
	}
	for secret, want := range map[Secret]string{
		plainSecret(t, "secret"):                                  "not encrypted",
		parseSecret(t, md5Secret("secret", "u")):                  "only a md5 secret",
		parseSecret(t, verifierText(t, "secret", testSalt, 4096)): "only a scram-sha-256 secret",
		{}: "none is known",
	} {
		_, _, err := NewServerLogin("u", secret, ServerLoginOptions{RefuseCleartext: true}).Step(authCleartext, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want %q", err, want)
		}
	}
}

func TestServerLoginsDeriveKeysOncePerSalt(t *testing.T) {
	users := mustList(t, "\"v\" \""+verifierText(t, "secret", testSalt, 4096)+"\"\n")
	s := plainSecret(t, "secret")
	var first *clientKeys
	for range 3 {
		if done, serr, err := talk(t, NewServerLogin("v", s, ServerLoginOptions{}), NewClientAuth(MethodSCRAM, "v", users, ClientAuthOptions{})); !done {
			t.Fatal(err, serr)
		}
		if first == nil {
			first = s.e.login.Load()
		}
		if s.e.login.Load() != first {
			t.Fatal("derived again")
		}
	}
}
