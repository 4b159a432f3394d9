package certs

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
)

// EndPoint is the tls-server-end-point channel binding of a server certificate
// (RFC 5929 section 4.1): its hash by the hash function of its signature, SHA-256
// in place of MD5 and SHA-1. nil for signatures without a single hash function
// (Ed25519), where the binding is undefined.
func EndPoint(cert *x509.Certificate) []byte {
	if cert == nil {
		return nil
	}
	switch cert.SignatureAlgorithm {
	case x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.ECDSAWithSHA1,
		x509.SHA256WithRSA, x509.SHA256WithRSAPSS, x509.DSAWithSHA256, x509.ECDSAWithSHA256:
		sum := sha256.Sum256(cert.Raw)
		return sum[:]
	case x509.SHA384WithRSA, x509.SHA384WithRSAPSS, x509.ECDSAWithSHA384:
		sum := sha512.Sum384(cert.Raw)
		return sum[:]
	case x509.SHA512WithRSA, x509.SHA512WithRSAPSS, x509.ECDSAWithSHA512:
		sum := sha512.Sum512(cert.Raw)
		return sum[:]
	}
	return nil
}

var oidCommonName = asn1.ObjectIdentifier{2, 5, 4, 3}

// CommonName is the common name of the client's certificate, and whether there is
// a verified certificate at all. The name is "" where the certificate has none or
// more than one: implementations differ in which of them counts, and a CA's user
// must not choose.
func CommonName(state tls.ConnectionState) (name string, verified bool) {
	if len(state.VerifiedChains) == 0 {
		return "", false
	}
	subject := state.VerifiedChains[0][0].Subject
	n := 0
	for _, attribute := range subject.Names {
		if attribute.Type.Equal(oidCommonName) {
			n++
		}
	}
	if n != 1 {
		return "", true
	}
	return subject.CommonName, true
}
