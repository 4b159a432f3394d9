package auth

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/xdg-go/scram"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustList(t testing.TB, text string) *Userlist {
	t.Helper()
	u, err := ParseUserlist("userlist.txt", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// verifierText is the text that PostgreSQL would store, made by another
// implementation than ours.
func verifierText(t testing.TB, password, salt string, iterations int) string {
	t.Helper()
	cl, err := scram.SHA256.NewClient("", password, "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cl.WithMinIterations(1).GetStoredCredentialsWithError(scram.KeyFactors{Salt: salt, Iters: iterations})
	if err != nil {
		t.Fatal(err)
	}
	return "SCRAM-SHA-256$" + itoa(iterations) + ":" + b64(salt) + "$" + b64(string(c.StoredKey)) + ":" + b64(string(c.ServerKey))
}

// reply is one decoded message of the server's side.
type reply struct {
	code    uint32
	payload []byte
}

func decodeReplies(t testing.TB, p []byte) []reply {
	t.Helper()
	var out []reply
	for len(p) > 0 {
		if len(p) < 9 || p[0] != 'R' {
			t.Fatalf("not an Authentication message: %q", p)
		}
		n := int(binary.BigEndian.Uint32(p[1:]))
		if n < 8 || n+1 > len(p) {
			t.Fatalf("length %d of %d bytes", n, len(p))
		}
		out = append(out, reply{binary.BigEndian.Uint32(p[5:]), p[9 : n+1]})
		p = p[n+1:]
	}
	return out
}

// saslInitial is the body of a SASLInitialResponse, as pgx writes it.
func saslInitial(t testing.TB, mechanism, msg string) []byte {
	t.Helper()
	out, err := (&pgproto3.SASLInitialResponse{AuthMechanism: mechanism, Data: []byte(msg)}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	return out[5:]
}

// login is one conversation, driven as the pooler would drive it.
type login struct {
	t      testing.TB
	c      *ClientAuth
	step   Step
	shape  []string // what was sent and asked, without the random parts
	worked int
}

func (l *login) took(out []byte, step Step) []reply {
	l.step = step
	for step == NeedWork {
		l.worked++
		l.c.Work()
		out, step = l.c.Resume(out)
		l.step = step
	}
	replies := decodeReplies(l.t, out)
	for _, r := range replies {
		l.shape = append(l.shape, "R"+itoa(int(r.code))+":"+itoa(len(r.payload)))
	}
	l.shape = append(l.shape, step.String())
	return replies
}

func newLogin(t testing.TB, c *ClientAuth) (*login, []reply) {
	l := &login{t: t, c: c}
	out, step := c.Start(nil)
	return l, l.took(out, step)
}

// scramLogin runs a SCRAM login with xdg-go's client. It returns the login and the
// client's own verdict on us.
func scramLogin(t testing.TB, c *ClientAuth, password string, binding *scram.ChannelBinding) (*login, error) {
	t.Helper()
	l, replies := newLogin(t, c)
	if l.step != NeedMessage || len(replies) != 1 || replies[0].code != authSASL {
		t.Fatalf("start: %v %v", l.step, replies)
	}
	client, err := scram.SHA256.NewClientUnprepped("", saslprep(password), "")
	if err != nil {
		t.Fatal(err)
	}
	client.WithMinIterations(1)
	conv, mechanism := client.NewConversation(), mechSCRAM
	if binding != nil {
		conv, mechanism = client.NewConversationWithChannelBinding(*binding), mechSCRAMPlus
	}
	if !bytes.Contains(replies[0].payload, []byte(mechanism+"\x00")) {
		t.Fatalf("%s is not offered in %q", mechanism, replies[0].payload)
	}
	first, err := conv.Step("")
	if err != nil {
		t.Fatal(err)
	}
	replies = l.took(c.Message(nil, saslInitial(t, mechanism, first)))
	if l.step != NeedMessage {
		return l, errors.New("refused at the first message")
	}
	final, err := conv.Step(string(replies[0].payload))
	if err != nil {
		t.Fatal(err)
	}
	replies = l.took(c.Message(nil, []byte(final)))
	if l.step == Failed {
		if len(replies) != 0 {
			t.Fatalf("a failed step has output %v", replies)
		}
		return l, nil
	}
	if len(replies) != 2 || replies[0].code != authSASLFinal || replies[1].code != authOK {
		t.Fatalf("end: %v", replies)
	}
	_, err = conv.Step(string(replies[0].payload))
	return l, err
}

func tlsBinding(t testing.TB, cert *x509.Certificate) *scram.ChannelBinding {
	t.Helper()
	b, err := scram.NewTLSServerEndpointBinding(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}})
	if err != nil {
		t.Fatal(err)
	}
	return &b
}

func wantError(t testing.TB, err *Error, code, message string) {
	t.Helper()
	if err == nil || err.Code != code || !strings.Contains(err.Message+": "+err.Detail, message) {
		t.Fatalf("got %+v, want %s %q", err, code, message)
	}
}
