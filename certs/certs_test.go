package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/xdg-go/scram"
)

func name(cn string) pkix.Name { return pkix.Name{CommonName: cn} }

func TestModesParseAsTheyPrint(t *testing.T) {
	for m := Disable; m <= VerifyFull; m++ {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Fatal(m, got, err)
		}
	}
	if _, err := ParseMode("verify_full"); err == nil || !strings.Contains(err.Error(), "verify-full") {
		t.Fatal(err)
	}
}

func TestClientsCertificatesAreCheckedAsTheModeSays(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	fs := newFiles(t)
	server := ours.issue(name("server"), "db.example")
	certFile, keyFile, caFile := fs.write("crt", server.certPEM), fs.write("key", server.keyPEM), fs.write("ca", ours.pem())
	good, bad := ours.issue(name("alice")), theirs.issue(name("alice"))
	for _, tc := range []struct {
		mode     Mode
		ca       bool
		client   *issued
		ok       bool
		verified bool
	}{
		{Allow, false, nil, true, false},
		{Prefer, true, nil, true, false},
		{Prefer, true, &good, true, true},
		{Require, false, &bad, true, false},
		{Require, true, nil, true, false},
		{Require, true, &good, true, true},
		{Require, true, &bad, false, false},
		{VerifyCA, true, nil, false, false},
		{VerifyCA, true, &good, true, true},
		{VerifyCA, true, &bad, false, false},
		{VerifyFull, true, &good, true, true},
		{VerifyFull, true, &bad, false, false},
	} {
		cfg := FrontendConfig{Mode: tc.mode, CertFile: certFile, KeyFile: keyFile}
		if tc.ca {
			cfg.CAFile = caFile
		}
		f, err := NewFrontend(cfg)
		if err != nil {
			t.Fatal(err)
		}
		client := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{ALPN}}
		if tc.client != nil {
			pair, err := tls.X509KeyPair(tc.client.certPEM, tc.client.keyPEM)
			if err != nil {
				t.Fatal(err)
			}
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		current, _ := f.Current()
		for which, config := range map[string]*tls.Config{"current": current, "following": f.Config()} {
			state, _, serr, cerr := handshake(t, config, client)
			if (serr == nil && cerr == nil) != tc.ok {
				t.Fatalf("%+v (%s): server %v, client %v", tc, which, serr, cerr)
			}
			if !tc.ok {
				continue
			}
			if state.NegotiatedProtocol != ALPN {
				t.Fatalf("negotiated %q", state.NegotiatedProtocol)
			}
			cn, verified := CommonName(state)
			if verified != tc.verified || verified && cn != "alice" {
				t.Fatalf("%+v (%s): name %q, verified %v", tc, which, cn, verified)
			}
		}
	}
}

func TestFrontendsRefuseOldVersionsAndOtherProtocols(t *testing.T) {
	f := newFrontend(t)
	config, _ := f.Current()
	for what, client := range map[string]*tls.Config{
		"TLS 1.1":      {InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
		"another ALPN": {InsecureSkipVerify: true, NextProtos: []string{"h2"}},
	} {
		if _, _, serr, cerr := handshake(t, config, client); serr == nil || cerr == nil {
			t.Fatalf("%s: accepted", what)
		}
	}
	for what, client := range map[string]*tls.Config{
		"TLS 1.2": {InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12},
		"no ALPN": {InsecureSkipVerify: true},
	} {
		if _, _, serr, cerr := handshake(t, config, client); serr != nil || cerr != nil {
			t.Fatalf("%s: %v %v", what, serr, cerr)
		}
	}
}

func newFrontend(t *testing.T) *Frontend {
	fs := newFiles(t)
	server := newAuthority(t).issue(name("server"), "db.example")
	f, err := NewFrontend(FrontendConfig{Mode: Require, CertFile: fs.write("crt", server.certPEM), KeyFile: fs.write("key", server.keyPEM)})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestServersAreVerifiedAsTheModeSays(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	fs := newFiles(t)
	ca := fs.write("ca", ours.pem())
	good, foreign := ours.issue(name("db"), "db.example"), theirs.issue(name("db"), "db.example")
	for _, tc := range []struct {
		mode   Mode
		ca     string
		server issued
		host   string
		ok     bool
	}{
		{Allow, "", foreign, "db.example", true},
		{Prefer, ca, foreign, "db.example", true},
		{Require, "", foreign, "other.example", true},
		{Require, ca, good, "other.example", true},
		{Require, ca, foreign, "db.example", false},
		{VerifyCA, ca, good, "other.example", true},
		{VerifyCA, ca, good, "127.0.0.1", true},
		{VerifyCA, ca, foreign, "db.example", false},
		{VerifyFull, ca, good, "db.example", true},
		{VerifyFull, ca, good, "other.example", false},
		{VerifyFull, ca, foreign, "db.example", false},
		{VerifyFull, "", good, "db.example", false}, // the system does not know our CA
	} {
		b, err := NewBackend(BackendConfig{Mode: tc.mode, CAFile: tc.ca})
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(tc.server.certPEM, tc.server.keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		var sni string
		server := &tls.Config{NextProtos: []string{ALPN}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			sni = h.ServerName
			return &pair, nil
		}}
		_, state, _, cerr := handshake(t, server, b.Config(tc.host))
		if (cerr == nil) != tc.ok {
			t.Fatalf("%v ca=%v %s: %v", tc.mode, tc.ca != "", tc.host, cerr)
		}
		want := tc.host
		if want == "127.0.0.1" {
			want = ""
		}
		if sni != want {
			t.Fatalf("SNI %q, want %q", sni, want)
		}
		if tc.ok && (state.NegotiatedProtocol != ALPN || !bytes.Equal(EndPoint(state.PeerCertificates[0]), EndPoint(tc.server.cert))) {
			t.Fatalf("%+v", state)
		}
	}
}

func TestBackendsShowTheirCertificate(t *testing.T) {
	a := newAuthority(t)
	fs := newFiles(t)
	server, client := a.issue(name("server"), "db.example"), a.issue(name("pooler"))
	f, err := NewFrontend(FrontendConfig{Mode: VerifyCA, CertFile: fs.write("crt", server.certPEM), KeyFile: fs.write("key", server.keyPEM), CAFile: fs.write("ca", a.pem())})
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBackend(BackendConfig{Mode: VerifyFull, CAFile: fs.write("ca", a.pem()), CertFile: fs.write("ccrt", client.certPEM), KeyFile: fs.write("ckey", client.keyPEM)})
	if err != nil {
		t.Fatal(err)
	}
	config, endPoint := f.Current()
	ss, cs, serr, cerr := handshake(t, config, b.Config("db.example"))
	if serr != nil || cerr != nil {
		t.Fatal(serr, cerr)
	}
	if cn, ok := CommonName(ss); !ok || cn != "pooler" {
		t.Fatal(cn, ok)
	}
	if !bytes.Equal(endPoint, EndPoint(cs.PeerCertificates[0])) || endPoint == nil {
		t.Fatal("the two sides would bind to different hashes")
	}
}

func TestConfigurationsThatMakeNoSense(t *testing.T) {
	for want, make := range map[string]func() error{
		"needs a certificate and a key": func() error { _, err := NewFrontend(FrontendConfig{Mode: Allow}); return err },
		"a certificate needs its key":   func() error { _, err := NewFrontend(FrontendConfig{Mode: Allow, CertFile: "x"}); return err },
		"needs a file of CA certificates": func() error {
			_, err := NewFrontend(FrontendConfig{Mode: VerifyCA, CertFile: "x", KeyFile: "y"})
			return err
		},
		"with the system's roots":            func() error { _, err := NewBackend(BackendConfig{Mode: VerifyCA}); return err },
		"needs its key and the other way":    func() error { _, err := NewBackend(BackendConfig{Mode: Require, KeyFile: "x"}); return err },
		"no-such-file: no such file or dire": func() error { _, err := NewBackend(BackendConfig{Mode: Require, CAFile: "/no-such-file"}); return err },
	} {
		if err := make(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestDisableReadsNothing(t *testing.T) {
	f, err := NewFrontend(FrontendConfig{CertFile: "/no-such-file", KeyFile: "/no-such-file"})
	if err != nil {
		t.Fatal(err)
	}
	if config, endPoint := f.Current(); config != nil || endPoint != nil || f.Config() != nil || f.Leaf() != nil {
		t.Fatal("a configuration with mode disable")
	}
	b, err := NewBackend(BackendConfig{CAFile: "/no-such-file"})
	if err != nil || b.Config("x") != nil {
		t.Fatal(err)
	}
	for _, refresh := range []func() (bool, error){f.Poll, f.Reload, b.Poll, b.Reload} {
		if changed, err := refresh(); changed || err != nil {
			t.Fatal(changed, err)
		}
	}
}

func TestChangedFilesAreTakenOver(t *testing.T) {
	a := newAuthority(t)
	fs := newFiles(t)
	first, second := a.issue(name("first")), a.issue(name("second"))
	crt, key := fs.write("crt", first.certPEM), fs.write("key", first.keyPEM)
	f, err := NewFrontend(FrontendConfig{Mode: Require, CertFile: crt, KeyFile: key})
	if err != nil {
		t.Fatal(err)
	}
	following := f.Config()
	expect := func(changed bool, failure string, poll func() (bool, error), cn string) {
		t.Helper()
		got, err := poll()
		if got != changed || (err == nil) != (failure == "") || err != nil && !strings.Contains(err.Error(), failure) {
			t.Fatalf("got %v %v, want %v %q", got, err, changed, failure)
		}
		if f.Leaf().Subject.CommonName != cn {
			t.Fatalf("shows %s, want %s", f.Leaf().Subject.CommonName, cn)
		}
		_, cs, _, cerr := handshake(t, following, &tls.Config{InsecureSkipVerify: true})
		if cerr != nil || cs.PeerCertificates[0].Subject.CommonName != cn {
			t.Fatalf("handshake: %v", cerr)
		}
		_, endPoint := f.Current()
		if !bytes.Equal(endPoint, EndPoint(cs.PeerCertificates[0])) {
			t.Fatal("stale end point")
		}
	}
	expect(false, "", f.Poll, "first")
	fs.write("crt", second.certPEM) // the key has not followed yet
	expect(false, crt, f.Poll, "first")
	expect(false, "", f.Poll, "first") // told once
	expect(false, crt, f.Reload, "first")
	fs.write("key", second.keyPEM)
	expect(true, "", f.Poll, "second")
	expect(false, "", f.Reload, "second")
	fs.write("crt", []byte("garbage"))
	expect(false, crt, f.Poll, "second")
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	expect(false, key, f.Poll, "second") // another failure is told
	fs.write("crt", second.certPEM)
	fs.write("key", second.keyPEM)
	expect(false, "", f.Poll, "second") // back to what is in use
	fs.write("crt", []byte("garbage"))
	expect(false, crt, f.Poll, "second") // and so it is news again
}

func TestSymlinkSwapsAreNoticed(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	for version, ca := range map[string][]byte{"v1": a.pem(), "v2": b.pem()} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, version, "ca"), ca, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "..data")
	if err := os.Symlink("v1", link); err != nil {
		t.Fatal(err)
	}
	back, err := NewBackend(BackendConfig{Mode: VerifyCA, CAFile: filepath.Join(link, "ca")})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("v2", link+"_tmp"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+"_tmp", link); err != nil {
		t.Fatal(err)
	}
	if changed, err := back.Poll(); !changed || err != nil {
		t.Fatal(changed, err)
	}
	server := b.issue(name("db"), "db.example")
	pair, _ := tls.X509KeyPair(server.certPEM, server.keyPEM)
	if _, _, _, cerr := handshake(t, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{ALPN}}, back.Config("db.example")); cerr != nil {
		t.Fatal(cerr)
	}
}

func TestEndPointIsTheHashThatTheSignatureUses(t *testing.T) {
	for algorithm, size := range map[x509.SignatureAlgorithm]int{
		x509.SHA256WithRSA: 32, x509.SHA384WithRSA: 48, x509.SHA512WithRSA: 64, x509.SHA384WithRSAPSS: 48,
		x509.ECDSAWithSHA256: 32, x509.ECDSAWithSHA384: 48, x509.ECDSAWithSHA512: 64,
	} {
		cert := selfSigned(t, algorithm)
		want, err := scram.NewTLSServerEndpointBinding(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}})
		if err != nil {
			t.Fatal(err)
		}
		if got := EndPoint(cert); len(got) != size || !bytes.Equal(got, want.Data) {
			t.Errorf("%v: got %x, want %x", algorithm, got, want.Data)
		}
	}
	cert := selfSigned(t, x509.ECDSAWithSHA256)
	sha256 := EndPoint(cert)
	for _, algorithm := range []x509.SignatureAlgorithm{x509.MD5WithRSA, x509.SHA1WithRSA, x509.ECDSAWithSHA1} {
		cert.SignatureAlgorithm = algorithm // cannot be signed any more
		if !bytes.Equal(EndPoint(cert), sha256) {
			t.Errorf("%v is not replaced by SHA-256", algorithm)
		}
	}
	if EndPoint(selfSigned(t, x509.PureEd25519)) != nil || EndPoint(nil) != nil {
		t.Error("a hash where none is defined")
	}
}

func TestOnlyOneCommonNameCounts(t *testing.T) {
	a := newAuthority(t)
	cn := func(names ...string) pkix.Name {
		var n pkix.Name
		for _, v := range names {
			n.ExtraNames = append(n.ExtraNames, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: v})
		}
		return n
	}
	for _, tc := range []struct {
		subject pkix.Name
		want    string
	}{{cn("alice"), "alice"}, {cn("alice", "bob"), ""}, {cn("alice", "alice"), ""}, {pkix.Name{Organization: []string{"x"}}, ""}} {
		got, verified := CommonName(tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{a.issue(tc.subject).cert}}})
		if !verified || got != tc.want {
			t.Errorf("%v: got %q, want %q", tc.subject, got, tc.want)
		}
	}
	if _, verified := CommonName(tls.ConnectionState{PeerCertificates: []*x509.Certificate{a.issue(name("alice")).cert}}); verified {
		t.Error("a certificate that nobody verified")
	}
}
