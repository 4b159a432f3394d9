package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"
)

func sum256(key [keyLen]byte) [keyLen]byte { return sha256.Sum256(key[:]) }

// exchange sends a SASLInitialResponse and a final message made from the
// server-first-message.
func exchange(t testing.TB, opts ClientAuthOptions, initial []byte, final func(serverFirst string) string) *ClientAuth {
	t.Helper()
	c := NewClientAuth(MethodSCRAM, "scram", everyKind(t), opts)
	newLogin(t, c)
	out, step := c.Message(nil, initial)
	if step == NeedMessage && final != nil {
		out, step = c.Message(nil, []byte(final(string(decodeReplies(t, out)[0].payload))))
	}
	if step == Failed && len(out) != 0 {
		t.Fatalf("output %q with a failure", out)
	}
	if step == NeedMessage {
		t.Fatal("not ended")
	}
	return c
}

// honest computes the final message for the entry "scram", password "secret".
func honest(bare, binding, serverFirst string) (withoutProof, proof string) {
	client, _ := deriveKeys("secret", []byte(testSalt), 4096)
	stored := sum256(client)
	nonce, _, _ := strings.Cut(strings.TrimPrefix(serverFirst, "r="), ",")
	withoutProof = "c=" + binding + ",r=" + nonce
	m := hmac.New(sha256.New, stored[:])
	m.Write([]byte(bare + "," + serverFirst + "," + withoutProof))
	sig := m.Sum(nil)
	for i := range sig {
		sig[i] ^= client[i]
	}
	return withoutProof, b64(string(sig))
}

func TestEveryTamperedClientMessageIsRefused(t *testing.T) {
	hash := []byte(strings.Repeat("h", 32))
	plusBinding := b64("p=tls-server-end-point,," + string(hash))
	long := strings.Repeat("x", 2000)
	const bare = "n=,r=abc"
	initial := func(mechanism, msg string) []byte { return saslInitial(t, mechanism, msg) }
	withFinal := func(binding string, change func(withoutProof, proof string) string) func(string) string {
		return func(first string) string { return change(honest(bare, binding, first)) }
	}
	join := func(w, p string) string { return w + ",p=" + p }
	for _, tc := range []struct {
		name          string
		plus          bool // TLS with an end point
		initial       []byte
		final         func(string) string
		code, message string // code "" is success
	}{
		{"honest", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", join), "", ""},
		{"honest y", false, initial(mechSCRAM, "y,,"+bare), withFinal("eSws", join), "", ""},
		{"honest n over TLS", true, initial(mechSCRAM, "n,,"+bare), withFinal("biws", join), "", ""},
		{"honest plus", true, initial(mechSCRAMPlus, "p=tls-server-end-point,,"+bare), withFinal(plusBinding, join), "", ""},

		{"no mechanism", false, []byte("SCRAM-SHA-256"), nil, "08P01", "invalid string"},
		{"empty", false, nil, nil, "08P01", "invalid string"},
		{"unknown mechanism", false, initial("PLAIN", "x"), nil, "08P01", "invalid SASL authentication mechanism"},
		{"plus not offered", false, initial(mechSCRAMPlus, "p=tls-server-end-point,,"+bare), nil, "08P01", "invalid SASL authentication mechanism"},
		{"no length", false, []byte(mechSCRAM + "\x00\x00\x00"), nil, "08P01", "insufficient data"},
		{"length beyond", false, append([]byte(mechSCRAM+"\x00\x00\x00\x00\x09"), "n,,"...), nil, "08P01", "insufficient data"},
		{"length below", false, append([]byte(mechSCRAM+"\x00\x00\x00\x00\x02"), "n,,"...), nil, "08P01", "invalid message format"},
		{"negative length", false, append([]byte(mechSCRAM+"\x00\xff\xff\xff\xfe"), "n,,"...), nil, "08P01", "insufficient data"},
		{"no response with data", false, append([]byte(mechSCRAM+"\x00\xff\xff\xff\xff"), "n,,"...), nil, "08P01", "insufficient data"},
		{"empty response", false, initial(mechSCRAM, ""), nil, "08P01", "The message is empty."},
		{"too long", false, initial(mechSCRAM, "n,,n=,r="+long), nil, "08P01", "invalid message length"},
		{"NUL", false, initial(mechSCRAM, "n,,n=,r=a\x00b"), nil, "08P01", "does not match input length"},

		{"p without plus", false, initial(mechSCRAM, "p=tls-server-end-point,,"+bare), nil, "08P01", "includes channel binding data"},
		{"p without plus over TLS", true, initial(mechSCRAM, "p=tls-server-end-point,,"+bare), nil, "08P01", "includes channel binding data"},
		{"y though plus was offered", true, initial(mechSCRAM, "y,,"+bare), nil, "28000", "SCRAM channel binding negotiation error"},
		{"plus with n", true, initial(mechSCRAMPlus, "n,,"+bare), nil, "08P01", "does not include channel binding data"},
		{"plus with y", true, initial(mechSCRAMPlus, "y,,"+bare), nil, "08P01", "does not include channel binding data"},
		{"plus with another type", true, initial(mechSCRAMPlus, "p=tls-unique,,"+bare), nil, "08P01", `unsupported SCRAM channel-binding type "tls-unique"`},
		{"plus with a hostile type", true, initial(mechSCRAMPlus, "p=\r\x1b[,,"+bare), nil, "08P01", `channel-binding type "??["`},
		{"plus without =", true, initial(mechSCRAMPlus, "p,,"+bare), nil, "08P01", `Expected character "="`},
		{"unknown flag", false, initial(mechSCRAM, "z,,"+bare), nil, "08P01", "Unexpected channel-binding flag"},
		{"flag only", false, initial(mechSCRAM, "n"), nil, "08P01", "Comma expected"},
		{"flag without comma", false, initial(mechSCRAM, "nn,"+bare), nil, "08P01", "Comma expected"},
		{"authzid", false, initial(mechSCRAM, "n,a=root,"+bare), nil, "0A000", "authorization identity"},
		{"not an authzid", false, initial(mechSCRAM, "n,x,"+bare), nil, "08P01", "Unexpected attribute"},
		{"header only", false, initial(mechSCRAM, "n,,"), nil, "08P01", `attribute "n"`},
		{"extension", false, initial(mechSCRAM, "n,,m=x,"+bare), nil, "0A000", "unsupported SCRAM extension"},
		{"no user", false, initial(mechSCRAM, "n,,r=abc"), nil, "08P01", `attribute "n"`},
		{"no nonce", false, initial(mechSCRAM, "n,,n="), nil, "08P01", `attribute "r"`},
		{"empty nonce", false, initial(mechSCRAM, "n,,n=,r="), nil, "08P01", "nonce is empty"},
		{"unprintable nonce", false, initial(mechSCRAM, "n,,n=,r=a\x7fb"), nil, "08P01", "non-printable characters"},
		{"bad extension", false, initial(mechSCRAM, "n,,n=,r=a,1=x"), nil, "08P01", "Attribute expected"},

		{"final: empty", false, initial(mechSCRAM, "n,,"+bare), func(string) string { return "" }, "08P01", "message is empty"},
		{"final: too long", false, initial(mechSCRAM, "n,,"+bare), func(string) string { return long }, "08P01", "invalid message length"},
		{"final: NUL", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, p string) string { return w + ",p=" + p + "\x00" }), "08P01", "input length"},
		{"final: no binding", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, p string) string { return w[len("c=biws,"):] + ",p=" + p }), "08P01", `attribute "c"`},
		{"final: other flag", false, initial(mechSCRAM, "n,,"+bare), withFinal("eSws", join), "08P01", "unexpected SCRAM channel-binding attribute"},
		{"final: y as n", false, initial(mechSCRAM, "y,,"+bare), withFinal("biws", join), "08P01", "unexpected SCRAM channel-binding attribute"},
		{"final: plus as n", true, initial(mechSCRAMPlus, "p=tls-server-end-point,,"+bare), withFinal("biws", join), "28000", "SCRAM channel binding check failed"},
		{"final: other certificate", true, initial(mechSCRAMPlus, "p=tls-server-end-point,,"+bare), withFinal(b64("p=tls-server-end-point,,"+strings.Repeat("i", 32)), join), "28000", "SCRAM channel binding check failed"},
		{"final: no nonce", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(_, p string) string { return "c=biws,p=" + p }), "08P01", `attribute "r"`},
		{"final: other nonce", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, p string) string { return w + "x,p=" + p }), "08P01", "Nonce does not match"},
		{"final: shorter nonce", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, p string) string { return w[:len(w)-1] + ",p=" + p }), "08P01", "Nonce does not match"},
		{"final: no proof", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, _ string) string { return w }), "08P01", "Attribute expected"},
		{"final: short proof", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, _ string) string { return w + ",p=QUJD" }), "08P01", "Malformed proof"},
		{"final: long proof", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, p string) string { return w + ",p=" + p + p }), "08P01", "Malformed proof"},
		{"final: proof with a line break", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, p string) string { return w + ",p=" + p[:43] + "\n" }), "08P01", "Malformed proof"},
		{"final: something behind", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, p string) string { return w + ",p=" + p + ",x=y" }), "08P01", "Garbage found"},
		{"final: comma behind", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, p string) string { return w + ",p=" + p + "," }), "08P01", "Garbage found"},
		{"final: added extension", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, p string) string { return w + ",x=y,p=" + p }), "28P01", "password authentication failed"},
		{"final: wrong proof", false, initial(mechSCRAM, "n,,"+bare), withFinal("biws", func(w, _ string) string { return w + ",p=" + b64(strings.Repeat("\x00", 32)) }), "28P01", "password authentication failed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var opts ClientAuthOptions
			if tc.plus {
				opts.EndPoint = hash
			}
			c := exchange(t, opts, tc.initial, tc.final)
			if tc.code == "" {
				if c.Err() != nil {
					t.Fatal(c.Err())
				}
				return
			}
			wantError(t, c.Err(), tc.code, tc.message)
		})
	}
}

func TestExtensionsOfTheClientAreCarriedIntoTheProof(t *testing.T) {
	const bare = "n=ignored,r=abc,x=1,Y=2"
	c := exchange(t, ClientAuthOptions{}, saslInitial(t, mechSCRAM, "n,,"+bare), func(first string) string {
		w, p := honest(bare, "biws", first)
		return w + ",p=" + p
	})
	if c.Err() != nil {
		t.Fatal(c.Err())
	}
}

func TestHMACMatchesTheStandardLibrary(t *testing.T) {
	for n := range 200 {
		key, msg := make([]byte, n%65), make([]byte, n)
		for i := range key {
			key[i] = byte(rand.Uint32())
		}
		for i := range msg {
			msg[i] = byte(rand.Uint32())
		}
		m := hmac.New(sha256.New, key)
		m.Write(msg)
		if got := hmacInto(key, append(make([]byte, hmacBlock), msg...)); string(got[:]) != string(m.Sum(nil)) {
			t.Fatalf("differs for a key of %d and a message of %d", len(key), n)
		}
	}
}

func FuzzClientMessages(f *testing.F) {
	f.Add([]byte("n,,n=,r=abc"), []byte("c=biws,r=abc,p=QUJD"), false)
	f.Add([]byte("p=tls-server-end-point,,n=,r=abc"), []byte("c=biws,r=abc,x=y,p=QUJD"), true)
	f.Add([]byte("y,a=x,n=,r=abc,x=1"), []byte(","), false)
	users := everyKind(f)
	f.Fuzz(func(t *testing.T, first, final []byte, plus bool) {
		for _, user := range []string{"scram", "nobody"} {
			opts, mechanism := ClientAuthOptions{}, mechSCRAM
			if plus {
				opts.EndPoint, mechanism = make([]byte, 32), mechSCRAMPlus
			}
			c := NewClientAuth(MethodSCRAM, user, users, opts)
			c.Start(nil)
			body := append([]byte(mechanism), 0)
			body = binary.BigEndian.AppendUint32(body, uint32(len(first)))
			out, step := c.Message(nil, append(body, first...))
			if step == NeedMessage {
				// Let the final message get past the nonce.
				nonce, _, _ := strings.Cut(string(decodeReplies(t, out)[0].payload[2:]), ",")
				out, step = c.Message(nil, []byte(strings.Replace(string(final), "r=abc", "r="+nonce, 1)))
			}
			if step == NeedWork {
				c.Work()
				out, step = c.Resume(nil)
			}
			if step != Failed || len(out) != 0 || c.Err() == nil {
				t.Fatalf("%v %q for %q, %q", step, out, first, final)
			}
		}
	})
}

func FuzzInitialResponse(f *testing.F) {
	f.Add(saslInitial(f, mechSCRAM, "n,,n=,r=abc"))
	f.Add([]byte("SCRAM-SHA-256-PLUS\x00\xff\xff\xff\xff"))
	users := everyKind(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		c := NewClientAuth(MethodSCRAM, "scram", users, ClientAuthOptions{})
		c.Start(nil)
		if out, step := c.Message(nil, body); step == Done || step == NeedWork || step == Failed && len(out) != 0 {
			t.Fatalf("%v %q", step, out)
		}
		c = NewClientAuth(MethodMD5, "plain", users, ClientAuthOptions{})
		c.Start(nil)
		if _, step := c.Message(nil, body); step != Failed {
			t.Fatal(step)
		}
	})
}

func FuzzServerMessages(f *testing.F) {
	f.Add([]byte("SCRAM-SHA-256\x00\x00"), []byte("r=abcx,s=QUJD,i=1"), []byte("v=QUJD"))
	f.Add([]byte("SCRAM-SHA-256-PLUS\x00SCRAM-SHA-256\x00\x00"), []byte("r=abcx,s=QUJD,i=1,x=y"), []byte("e=x"))
	secret := plainSecret(f, "secret")
	f.Fuzz(func(t *testing.T, list, first, final []byte) {
		if _, count, _ := strings.Cut(string(first), ",i="); len(count) > len("9999") {
			return // a count that takes a while to work off
		}
		l := NewServerLogin("u", secret, ServerLoginOptions{EndPoint: make([]byte, 32)})
		if _, _, err := l.Step(authSASL, list); err != nil {
			return
		}
		first = []byte(strings.Replace(string(first), "r=abc", "r="+string(l.scram.nonce), 1))
		if _, _, err := l.Step(authSASLContinue, first); err != nil {
			return
		}
		if _, done, err := l.Step(authSASLFinal, final); err == nil || done {
			t.Fatalf("accepted %q", final)
		}
	})
}

func BenchmarkSCRAMLoginWithVerifier(b *testing.B) {
	users := everyKind(b)
	initial := saslInitial(b, mechSCRAM, "n,,n=,r=abcdefghijklmnopqrstuvwx")
	out := make([]byte, 0, 512)
	final := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		c := NewClientAuth(MethodSCRAM, "scram", users, ClientAuthOptions{})
		out, _ = c.Start(out[:0])
		out, _ = c.Message(out[:0], initial)
		// The client's part, without a proof: its cost is not ours.
		final = append(append(final[:0], "c=biws,"...), out[9:9+2+24+24]...)
		final = append(final, ",p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="...)
		var step Step
		if out, step = c.Message(out[:0], final); step != Failed || c.Err().Code != "28P01" {
			b.Fatal(step, c.Err())
		}
	}
}

func BenchmarkPBKDF2(b *testing.B) {
	for b.Loop() {
		deriveKeys("secret", []byte(testSalt), 4096)
	}
}
