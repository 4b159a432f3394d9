package certs

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
)

// maxFile bounds a certificate, key or CA file; Debian's bundle of all public
// CAs has about 220 KiB.
const maxFile = 4 << 20

// content is what the files of one side said at one moment; files that are not
// configured stay empty.
type content struct{ cert, key, ca []byte }

func (c *content) sum() [sha256.Size]byte {
	h := sha256.New()
	for _, p := range [...][]byte{c.cert, c.key, c.ca} {
		fmt.Fprintf(h, "%d\n", len(p))
		h.Write(p)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// paths are the files of one side; "" is not configured.
type paths struct{ cert, key, ca string }

func (p paths) read() (*content, error) {
	c := new(content)
	for _, f := range [...]struct {
		path, what string
		to         *[]byte
	}{{p.cert, "certificate", &c.cert}, {p.key, "key", &c.key}, {p.ca, "CA certificates", &c.ca}} {
		if f.path == "" {
			continue
		}
		data, err := readFile(f.path)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.what, err)
		}
		*f.to = data
	}
	return c, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxFile)
	}
	return data, nil
}

// keyPair builds the certificate with its leaf parsed, or nil without files.
func (p paths) keyPair(c *content) (*tls.Certificate, error) {
	if p.cert == "" {
		return nil, nil
	}
	pair, err := tls.X509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s with key %s: %w", p.cert, p.key, err)
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("load certificate %s: %w", p.cert, err)
		}
	}
	return &pair, nil
}

// pool builds the CA pool, or nil without a file.
func (p paths) pool(c *content) (*x509.CertPool, error) {
	if p.ca == "" {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(c.ca) {
		return nil, fmt.Errorf("load CA certificates %s: no certificate in it", p.ca)
	}
	return pool, nil
}

func (p paths) check() error {
	if (p.cert == "") != (p.key == "") {
		return errors.New("a certificate needs its key and the other way round")
	}
	return nil
}

// source is one side's files and the generation last built from them.
//
//	current   written by refresh, under mu    read by anybody
type source[G any] struct {
	paths   paths
	build   func(*content) (*G, error)
	current atomic.Pointer[G]

	mu struct {
		sync.Mutex // held while files are read: by Poll and Reload only
		sum        [sha256.Size]byte
		failed     string // the last failure told by Poll, "" after a success
	}
}

// refresh reads the files and builds a new generation when they differ from the
// current one. A failure leaves the current one; a quiet refresh reports the same
// failure only once.
func (s *source[G]) refresh(quiet bool) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed, err = s.refreshLocked()
	if err == nil {
		s.mu.failed = ""
		return changed, nil
	}
	if quiet && err.Error() == s.mu.failed {
		return false, nil
	}
	s.mu.failed = err.Error()
	return false, err
}

func (s *source[G]) refreshLocked() (changed bool, err error) {
	c, err := s.paths.read()
	if err != nil {
		return false, err
	}
	sum := c.sum()
	if s.current.Load() != nil && sum == s.mu.sum {
		return false, nil
	}
	g, err := s.build(c)
	if err != nil {
		return false, err
	}
	s.current.Store(g)
	s.mu.sum = sum
	return true, nil
}
