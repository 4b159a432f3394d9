// Package testcert makes certificates for tests: a CA, and server and client
// certificates signed by it, as files and as values. It keeps no state outside
// the folder it is given and runs no goroutine.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity is long enough for any test and short enough to be worthless.
const validity = 24 * time.Hour

// Authority is a certificate authority that lives in a folder.
type Authority struct {
	Dir    string
	CAFile string // PEM, what clients verify against

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate with its key.
type Pair struct {
	CertFile string
	KeyFile  string // mode 0600, as PostgreSQL and libpq demand
	tls.Certificate
}

// New makes an authority and writes dir/ca.crt.
func New(dir string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := newTemplate("multipooler test CA")
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &Authority{Dir: dir, CAFile: filepath.Join(dir, "ca.crt"), cert: cert, key: key}
	return a, writePEM(a.CAFile, "CERTIFICATE", der, 0o644)
}

// Pool holds the CA's certificate alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Server makes server.crt and server.key for DNS names and addresses. Calling
// it again replaces both files, as a renewal does.
func (a *Authority) Server(names ...string) (Pair, error) {
	template, err := newTemplate(names[0])
	if err != nil {
		return Pair{}, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return a.issue("server", template)
}

// Client makes client-NAME.crt and .key with user as the common name, which
// PostgreSQL's cert method compares with the role.
func (a *Authority) Client(user string) (Pair, error) {
	template, err := newTemplate(user)
	if err != nil {
		return Pair{}, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(fmt.Sprintf("client-%x", user), template)
}

func (a *Authority) issue(file string, template *x509.Certificate) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return Pair{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	p := Pair{CertFile: filepath.Join(a.Dir, file+".crt"), KeyFile: filepath.Join(a.Dir, file+".key")}
	if err := writePEM(p.CertFile, "CERTIFICATE", der, 0o644); err != nil {
		return Pair{}, err
	}
	if err := writePEM(p.KeyFile, "PRIVATE KEY", keyDER, 0o600); err != nil {
		return Pair{}, err
	}
	p.Certificate, err = tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	return p, err
}

func newTemplate(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}, nil
}

// writePEM renames into place, so that a reader never sees half a file.
func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
