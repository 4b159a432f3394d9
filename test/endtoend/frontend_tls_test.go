package endtoend

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
	"github.com/multipooler/multipooler/test/pgtest/testcert"
)

var sslRequest = []byte{0, 0, 0, 8, 4, 210, 22, 47}

// secured starts a multipooler with a certificate for localhost.
func secured(tb testing.TB, s *pgtest.Server, args ...string) (*mp.Instance, *testcert.Authority) {
	tb.Helper()
	ca, err := testcert.New(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	pair, err := ca.Server("localhost", "127.0.0.1")
	if err != nil {
		tb.Fatal(err)
	}
	args = append([]string{"--tls-cert=" + pair.CertFile, "--tls-key=" + pair.KeyFile, "--tls-ca=" + ca.CAFile}, args...)
	return before(tb, s, args...), ca
}

func TestTLSIsSpokenInEveryWayAClientAsks(t *testing.T) {
	s := pgtest.Shared(t)
	in, ca := secured(t, s, slots(2))
	root := "sslrootcert=" + ca.CAFile
	for _, params := range [][]string{
		{"sslmode=disable"},
		{"sslmode=prefer"},
		{"sslmode=require"},
		{"sslmode=verify-ca", root},
		{"sslmode=verify-full", root},
		{"sslmode=verify-full", root, "sslnegotiation=direct"},
	} {
		c := connect(t, in.URL("app", "app", params...))
		_, encrypted := c.PgConn().Conn().(*tls.Conn)
		if encrypted == (params[0] == "sslmode=disable") {
			t.Errorf("%q: encrypted %v", params, encrypted)
		}
		for i := range 3 {
			big := strings.Repeat("x", 100_000*i+1)
			if got := one(t, c, "SELECT $1::text", big); got != big {
				t.Errorf("%q: %d bytes came back of %d", params, len(got), len(big))
			}
		}
	}
	// libpq says what it got.
	if out := psql(t, s, in.URL("app", "app", "sslmode=require"), "-c", `\conninfo`); !strings.Contains(out.stdout, "SSL connection (protocol: TLSv1.3") {
		t.Errorf("%+v", out)
	}
	// A cancel over TLS.
	c := connect(t, in.URL("app", "app", "sslmode=require"))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, "SELECT pg_sleep(60), 'over TLS'")
		done <- err
	}()
	untilRunning(t, s, "over TLS", 1)
	if err := c.PgConn().CancelRequest(limited(t, rawLimit)); err != nil {
		t.Error(err)
	}
	if err := <-done; sqlState(err) != "57014" {
		t.Error(err)
	}
}

func TestDirectTLSNeedsALPN(t *testing.T) {
	in, ca := secured(t, pgtest.Shared(t), trusting)
	cfg := &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"}
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: rawLimit}, "tcp", in.Addr(), cfg)
	if err == nil {
		// TLS 1.3 lets the client finish first.
		_, err = conn.Read(make([]byte, 1))
		conn.Close()
	}
	if err == nil {
		t.Error("direct TLS without ALPN was accepted")
	}
	cfg.NextProtos = []string{"postgresql"}
	conn, err = tls.DialWithDialer(&net.Dialer{Timeout: rawLimit}, "tcp", in.Addr(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := newRaw(t, conn)
	if got := r.login(0x30000); got != "R K Z(I)" {
		t.Error(got)
	}
	if got := r.value("SELECT 'direct'"); got != "direct" {
		t.Error(got)
	}
}

func TestEncryptionRequestsAreAnsweredAndPlaintextBehindThemRefused(t *testing.T) {
	in, _ := secured(t, pgtest.Shared(t), trusting)
	plain, _ := front(t, trusting)
	answer := func(addr string, p []byte) (*raw, string) {
		r := dialRaw(t, addr)
		r.sendBytes(p)
		var b [1]byte
		if _, err := io.ReadFull(r.conn, b[:]); err != nil {
			return r, err.Error()
		}
		return r, string(b[:])
	}
	gss := []byte{0, 0, 0, 8, 4, 210, 22, 48}
	r, got := answer(plain.Addr(), sslRequest)
	if got != "N" {
		t.Errorf("SSLRequest without a certificate: %q", got)
	}
	if got := r.login(0x30000); got != "R K Z(I)" {
		t.Error(got)
	}
	for _, addr := range []string{in.Addr(), plain.Addr()} {
		r, got = answer(addr, gss)
		if got != "N" {
			t.Errorf("GSSENCRequest: %q", got)
		}
		if got := r.login(0x30000); got != "R K Z(I)" {
			t.Error(got)
		}
	}
	// GSSENCRequest, N, SSLRequest, S, TLS: what libpq does with Kerberos.
	r, _ = answer(in.Addr(), gss)
	r.sendBytes(sslRequest)
	var b [1]byte
	if _, err := io.ReadFull(r.conn, b[:]); err != nil || b[0] != 'S' {
		t.Fatalf("%q %v", b, err)
	}
	enc := tls.Client(r.conn, &tls.Config{InsecureSkipVerify: true})
	if got := newRaw(t, enc).login(0x30000); got != "R K Z(I)" {
		t.Error(got)
	}

	// Bytes behind the request could be an attacker's (CVE-2021-23214).
	startup, err := (&pgproto3.StartupMessage{ProtocolVersion: 0x30000, Parameters: map[string]string{"user": "app"}}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, first := range map[string][]byte{"SSLRequest": sslRequest, "GSSENCRequest": gss} {
		r := dialRaw(t, in.Addr())
		r.sendBytes(append(bytes.Clone(first), startup...))
		if got := r.reply(); got != "E(FATAL 08P01) EOF" {
			t.Errorf("%s with plaintext behind it: %s", name, got)
		}
	}
	mp.Eventually(t, limitOfRest, "nobody is logging in", func() bool { return in.Metric(t, "multipooler_clients_logging_in") == 0 })
}

func TestTLSModesDecideWhoGetsIn(t *testing.T) {
	s := pgtest.Start(t, pgtest.Options{Users: []pgtest.User{{Name: "app"}, {Name: "eve"}}})
	in, ca := secured(t, s, "--tls-mode=require")
	if e := refused(t, in.URL("app", "app")); e.Code != "28000" || !strings.Contains(e.Message, "TLS") {
		t.Errorf("%+v", e)
	}
	connect(t, in.URL("app", "app", "sslmode=require"))

	app, err := ca.Client("app")
	if err != nil {
		t.Fatal(err)
	}
	list := userlist(t, `"app" "`+s.Password("app")+`"`, `"eve" "`+s.Password("eve")+`"`)
	stranger, err := testcert.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	forged, err := stranger.Client("app")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		mode, auth string
		user       string
		cert       *testcert.Pair
		ok         bool
	}{
		{"verify-ca", "scram-sha-256", "app", nil, false},
		{"verify-ca", "scram-sha-256", "app", &app, true},
		{"verify-ca", "scram-sha-256", "app", &forged, false},
		{"verify-ca", "trust", "eve", &app, true},
		{"verify-full", "trust", "eve", &app, false},
		{"verify-full", "trust", "app", &app, true},
		{"verify-full", "cert", "app", &app, true},
		{"verify-full", "cert", "eve", &app, false},
		{"verify-full", "cert", "app", &forged, false},
	} {
		name := tt.mode + " " + tt.auth + " " + tt.user
		in := before(t, s, "--tls-cert="+ca.Dir+"/server.crt", "--tls-key="+ca.Dir+"/server.key", "--tls-ca="+ca.CAFile,
			"--tls-mode="+tt.mode, "--auth-type="+tt.auth, "--auth-file="+list)
		params := []string{"sslmode=require"}
		if tt.cert != nil {
			params = append(params, "sslcert="+tt.cert.CertFile, "sslkey="+tt.cert.KeyFile)
		}
		c, err := pgx.Connect(limited(t, rawLimit), mp.URL(in.Addr(), tt.user, s.Password(tt.user), "app", params...))
		if (err == nil) != tt.ok {
			t.Errorf("%s with certificate %v: %v", name, tt.cert != nil, err)
		}
		if err == nil {
			if got := one(t, c, "SELECT session_user::text"); got != tt.user {
				t.Errorf("%s: %s", name, got)
			}
			c.Close(t.Context())
		}
	}
}

func TestANewCertificateIsShownAfterAReload(t *testing.T) {
	s := pgtest.Shared(t)
	in, ca := secured(t, s)
	serial := func() string {
		conn, err := tls.Dial("tcp", in.Addr(), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", NextProtos: []string{"postgresql"}})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	old, session := serial(), connect(t, in.URL("app", "app", "sslmode=require"))
	if _, err := ca.Server("localhost", "127.0.0.1"); err != nil { // replaces both files
		t.Fatal(err)
	}
	in.Signal(syscall.SIGHUP)
	mp.Eventually(t, limitOfRest, "the new certificate is shown", func() bool { return serial() != old })
	if got := one(t, session, "SELECT 'goes on'"); got != "goes on" {
		t.Error(got)
	}
	// A broken file changes nothing.
	newer := serial()
	if err := os.WriteFile(ca.Dir+"/server.crt", []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	from := in.LogPosition()
	in.Signal(syscall.SIGHUP)
	in.WaitLog(t, from, "what was in force stays", limitOfRest)
	if serial() != newer {
		t.Error("the certificate has changed")
	}
}

func TestAStrangersCertificateIsNotTakenForMultipoolers(t *testing.T) {
	in, _ := secured(t, pgtest.Shared(t))
	stranger, err := testcert.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, err = pgx.Connect(limited(t, rawLimit), in.URL("app", "app", "sslmode=verify-full", "sslrootcert="+stranger.CAFile))
	if _, unknown := errors.AsType[x509.UnknownAuthorityError](err); !unknown {
		t.Error(err)
	}
}
