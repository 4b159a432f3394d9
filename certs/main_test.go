package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority is a CA that lives for one test.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  crypto.Signer
	next int64
}

type issued struct {
	cert    *x509.Certificate
	certPEM []byte
	keyPEM  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key}
	a.cert = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}, key.Public())
	return a
}

func (a *authority) sign(tmpl *x509.Certificate, pub crypto.PublicKey) *x509.Certificate {
	a.t.Helper()
	a.next++
	tmpl.SerialNumber = big.NewInt(a.next)
	tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := a.cert
	if parent == nil {
		parent = tmpl
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a *authority) issue(subject pkix.Name, hosts ...string) issued {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	cert := a.sign(&x509.Certificate{
		Subject: subject, DNSNames: hosts,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, key.Public())
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return issued{
		cert,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}
}

// selfSigned is a certificate with the given kind of signature.
func selfSigned(t testing.TB, algorithm x509.SignatureAlgorithm) *x509.Certificate {
	t.Helper()
	var key crypto.Signer
	var err error
	switch algorithm {
	case x509.PureEd25519:
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case x509.ECDSAWithSHA256, x509.ECDSAWithSHA384, x509.ECDSAWithSHA512:
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	default:
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key}
	return a.sign(&x509.Certificate{SignatureAlgorithm: algorithm, Subject: pkix.Name{CommonName: "self"}}, key.Public())
}

// files is a folder for one test.
type files struct {
	t   testing.TB
	dir string
}

func newFiles(t testing.TB) files { return files{t, t.TempDir()} }

func (f files) write(name string, data []byte) string {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// handshake runs both sides over loopback (net.Pipe has no buffer, and both sides
// may be writing when one fails) and returns both states and errors. The byte that
// the server sends makes a TLS 1.3 client learn of its refusal.
func handshake(t testing.TB, server, client *tls.Config) (ss, cs tls.ConnectionState, serr, cerr error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	b, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a, err := ln.Accept()
		if err != nil {
			serr = err
			return
		}
		defer a.Close()
		s := tls.Server(a, server)
		if serr = s.Handshake(); serr == nil {
			ss = s.ConnectionState()
			_, serr = s.Write([]byte("S"))
		}
	}()
	c := tls.Client(b, client)
	if cerr = c.Handshake(); cerr == nil {
		cs = c.ConnectionState()
		_, cerr = c.Read(make([]byte, 1))
	}
	b.Close()
	<-done
	return ss, cs, serr, cerr
}
