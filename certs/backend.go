package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// BackendConfig names the files for connections to servers.
type BackendConfig struct {
	Mode       Mode
	CAFile     string // "": the system's roots, which only verify-full can use
	CertFile   string // our certificate, with KeyFile; optional
	KeyFile    string
	MinVersion uint16 // 0: TLS 1.2, as libpq
}

// Backend makes the TLS configuration for connections to servers.
type Backend struct {
	cfg    BackendConfig
	verify Mode // Require (nothing), VerifyCA or VerifyFull
	src    source[backGeneration]
}

type backGeneration struct {
	cert *tls.Certificate // nil without one
	pool *x509.CertPool   // nil: the system's
}

// NewBackend loads the files. A Backend with mode disable needs none.
func NewBackend(cfg BackendConfig) (*Backend, error) {
	b := &Backend{cfg: cfg, verify: Require}
	if cfg.Mode == Disable {
		return b, nil
	}
	b.src.paths = paths{cfg.CertFile, cfg.KeyFile, cfg.CAFile}
	b.src.build = b.build
	if err := b.src.paths.check(); err != nil {
		return nil, err
	}
	switch {
	case cfg.Mode == VerifyCA && cfg.CAFile == "":
		// libpq: "weak sslmode may not be used with sslrootcert=system".
		return nil, errors.New("TLS mode verify-ca for servers needs a file of CA certificates: with the system's roots anybody's certificate would do; use verify-full")
	case cfg.Mode >= VerifyCA:
		b.verify = cfg.Mode
	case cfg.Mode == Require && cfg.CAFile != "":
		b.verify = VerifyCA // as libpq does when a root certificate is there
	}
	_, err := b.src.refresh(false)
	return b, err
}

func (b *Backend) build(c *content) (*backGeneration, error) {
	cert, err := b.src.paths.keyPair(c)
	if err != nil {
		return nil, err
	}
	pool, err := b.src.paths.pool(c)
	if err != nil {
		return nil, err
	}
	return &backGeneration{cert, pool}, nil
}

// Mode is the configured mode.
func (b *Backend) Mode() Mode { return b.cfg.Mode }

// Config is the configuration for one connection to host, which may be a name or
// an IP address; nil with mode disable. It holds on to the files as they are now.
// SNI carries the host unless it is an address (as in libpq). The server's
// hash for channel binding is EndPoint of the first of its PeerCertificates.
func (b *Backend) Config(host string) *tls.Config {
	g := b.src.current.Load()
	if g == nil {
		return nil
	}
	c := &tls.Config{
		ServerName:                  host,
		NextProtos:                  []string{ALPN},
		MinVersion:                  minVersion(b.cfg.MinVersion),
		RootCAs:                     g.pool,
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
	}
	if g.cert != nil {
		// Unlike Certificates this sends the certificate whatever CAs the server
		// hints at, as libpq does.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return g.cert, nil }
	}
	if b.verify != VerifyFull {
		// crypto/tls verifies chain and host together or not at all.
		c.InsecureSkipVerify = true
	}
	if b.verify == VerifyCA {
		c.VerifyConnection = func(state tls.ConnectionState) error { return verifyChain(state, g.pool) }
	}
	return c
}

// verifyChain is verify-ca: the chain without the host.
func verifyChain(state tls.ConnectionState, pool *x509.CertPool) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("server sent no certificate")
	}
	between := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		between.AddCert(cert)
	}
	if _, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: between}); err != nil {
		return fmt.Errorf("verify server certificate: %w", err)
	}
	return nil
}

// Poll and Reload are as those of Frontend. Connections that exist keep the files
// that they were made with.
func (b *Backend) Poll() (changed bool, err error) { return b.refresh(true) }

// Reload is Poll for a person who asked: it always reports a failure.
func (b *Backend) Reload() (changed bool, err error) { return b.refresh(false) }

func (b *Backend) refresh(quiet bool) (bool, error) {
	if b.cfg.Mode == Disable {
		return false, nil
	}
	return b.src.refresh(quiet)
}
