package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
)

// ALPN is PostgreSQL's protocol name (RFC 7301, registered with IANA). A
// connection that starts with TLS at once (direct TLS) must negotiate it; after
// an SSLRequest it is optional.
const ALPN = "postgresql"

// FrontendConfig names the files for connections from clients.
type FrontendConfig struct {
	Mode       Mode
	CertFile   string // with KeyFile, needed by every mode but disable
	KeyFile    string
	CAFile     string // signs clients' certificates; needed by verify-ca and verify-full
	MinVersion uint16 // 0: TLS 1.2, as PostgreSQL
}

// Frontend makes the TLS configuration for connections from clients.
//
// With a CA and a mode below verify-ca a client may show a certificate, and if so
// it must be a good one: what PostgreSQL does, and what the method cert needs.
type Frontend struct {
	cfg FrontendConfig
	src source[frontGeneration]
}

type frontGeneration struct {
	config   *tls.Config
	cert     *tls.Certificate
	endPoint []byte
}

// NewFrontend loads the files. A Frontend with mode disable needs none.
func NewFrontend(cfg FrontendConfig) (*Frontend, error) {
	f := &Frontend{cfg: cfg}
	f.src.paths = paths{cfg.CertFile, cfg.KeyFile, cfg.CAFile}
	f.src.build = f.build
	if cfg.Mode == Disable {
		f.src.paths = paths{}
		return f, nil
	}
	if err := f.src.paths.check(); err != nil {
		return nil, err
	}
	if cfg.CertFile == "" {
		return nil, errors.New("TLS mode " + cfg.Mode.String() + " for clients needs a certificate and a key")
	}
	if cfg.Mode >= VerifyCA && cfg.CAFile == "" {
		return nil, errors.New("TLS mode " + cfg.Mode.String() + " for clients needs a file of CA certificates")
	}
	_, err := f.src.refresh(false)
	return f, err
}

func (f *Frontend) build(c *content) (*frontGeneration, error) {
	cert, err := f.src.paths.keyPair(c)
	if err != nil {
		return nil, err
	}
	pool, err := f.src.paths.pool(c)
	if err != nil {
		return nil, err
	}
	g := &frontGeneration{cert: cert, endPoint: EndPoint(cert.Leaf)}
	g.config = f.base()
	g.config.Certificates = []tls.Certificate{*cert}
	g.config.ClientCAs = pool
	switch {
	case pool == nil:
		g.config.ClientAuth = tls.NoClientCert
	case f.cfg.Mode >= VerifyCA:
		g.config.ClientAuth = tls.RequireAndVerifyClientCert
	default:
		g.config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return g, nil
}

func (f *Frontend) base() *tls.Config {
	return &tls.Config{
		NextProtos: []string{ALPN},
		MinVersion: minVersion(f.cfg.MinVersion),
		// PostgreSQL gives no tickets: its clients never resume, and a resumed
		// session would outlive a change of the CA.
		SessionTicketsDisabled: true,
		// Small first records help browsers, not a protocol of whole messages.
		DynamicRecordSizingDisabled: true,
	}
}

func minVersion(v uint16) uint16 {
	if v == 0 {
		return tls.VersionTLS12
	}
	return v
}

// Mode is the configured mode.
func (f *Frontend) Mode() Mode { return f.cfg.Mode }

// Current is the configuration for one handshake and the tls-server-end-point
// hash of the certificate in it, which belong together even when the files
// change during the handshake. Both are nil with mode disable; endPoint alone is
// nil where the hash is undefined. The config is shared: do not change it.
func (f *Frontend) Current() (config *tls.Config, endPoint []byte) {
	g := f.src.current.Load()
	if g == nil {
		return nil, nil
	}
	return g.config, g.endPoint
}

// Config is a configuration that follows the files by itself, for servers that
// take one once (net/http); nil with mode disable.
func (f *Frontend) Config() *tls.Config {
	if f.src.current.Load() == nil {
		return nil
	}
	c := f.base()
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.src.current.Load().cert, nil }
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.src.current.Load().config, nil }
	return c
}

// Leaf is the certificate in use, for expiry metrics; nil with mode disable.
func (f *Frontend) Leaf() *x509.Certificate {
	if g := f.src.current.Load(); g != nil {
		return g.cert.Leaf
	}
	return nil
}

// Poll reads the files and takes over what changed. A failure names the file,
// keeps the generation in use and is reported once, until it changes.
func (f *Frontend) Poll() (changed bool, err error) { return f.refresh(true) }

// Reload is Poll for a person who asked: it always reports a failure.
func (f *Frontend) Reload() (changed bool, err error) { return f.refresh(false) }

func (f *Frontend) refresh(quiet bool) (bool, error) {
	if f.cfg.Mode == Disable {
		return false, nil
	}
	return f.src.refresh(quiet)
}
