//go:build linux

package eventloop

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"io"
	"strings"
	"testing"
)

// halfKeys is one direction of the TLS 1.3 record layer (RFC 8446, section 5)
// for TLS_AES_128_GCM_SHA256: crypto/tls cannot be made to ask for new keys.
type halfKeys struct {
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

func expandLabel(secret []byte, label string, n int) []byte {
	label = "tls13 " + label
	info := string(binary.BigEndian.AppendUint16(nil, uint16(n))) + string(rune(len(label))) + label + "\x00"
	out, err := hkdf.Expand(sha256.New, secret, info, n)
	if err != nil {
		panic(err)
	}
	return out
}

func newHalfKeys(secret []byte) *halfKeys {
	block, err := aes.NewCipher(expandLabel(secret, "key", 16))
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return &halfKeys{secret: secret, aead: aead, iv: expandLabel(secret, "iv", 12)}
}

func (k *halfKeys) next() *halfKeys { return newHalfKeys(expandLabel(k.secret, "traffic upd", 32)) }

func (k *halfKeys) nonce() []byte {
	nonce := bytes.Clone(k.iv)
	for i := range 8 {
		nonce[4+i] ^= byte(k.seq >> (56 - 8*i))
	}
	k.seq++
	return nonce
}

func (k *halfKeys) seal(typ byte, data ...byte) []byte {
	inner := append(bytes.Clone(data), typ)
	header := []byte{23, 3, 3, 0, byte(len(inner) + 16)}
	return k.aead.Seal(header, k.nonce(), inner, header)
}

func (k *halfKeys) open(r io.Reader) (typ byte, data []byte, err error) {
	header := make([]byte, 5)
	if _, err := io.ReadFull(r, header); err != nil {
		return 0, nil, err
	}
	body := make([]byte, binary.BigEndian.Uint16(header[3:]))
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, err
	}
	inner, err := k.aead.Open(nil, k.nonce(), body, header)
	if err != nil {
		return 0, nil, err
	}
	return inner[len(inner)-1], inner[:len(inner)-1], nil
}

func TestAKeyUpdateInTheLoopChangesBothDirections(t *testing.T) {
	const applicationData, handshakeMessage, keyUpdate = 23, 22, 24
	l := startLoop(t, 0, Config{})
	serverCfg, clientCfg := tlsConfigs(tls.VersionTLS13)
	serverCfg.SessionTicketsDisabled = true // the server's first record is our echo
	keyLog := new(bytes.Buffer)
	clientCfg.KeyLogWriter = keyLog
	fd, peer := tcpPair(t)
	errs := make(chan error, 1)
	client := tls.Client(peer, clientCfg)
	go func() { errs <- client.Handshake() }()
	mine, err := HandshakeServer(t.Context(), fd, nil, serverCfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	if suite := client.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		t.Skipf("this processor makes crypto/tls choose %s, and the test speaks AES-128-GCM only", tls.CipherSuiteName(suite))
	}
	secrets := map[string]*halfKeys{}
	for line := range strings.Lines(keyLog.String()) {
		f := strings.Fields(line)
		secret, err := hex.DecodeString(f[2])
		if err != nil {
			t.Fatal(err)
		}
		secrets[f[0]] = newHalfKeys(secret)
	}
	out, in := secrets["CLIENT_TRAFFIC_SECRET_0"], secrets["SERVER_TRAFFIC_SECRET_0"]
	attachTLSConn(t, l, fd, &funcs{received: echo}, mine)

	for round := range 3 {
		for _, step := range []struct {
			record []byte
			typ    byte
			want   string
		}{
			{out.seal(applicationData, 'a', 'b'), applicationData, "ab"},
			// The request for new keys, cut in the middle of the message.
			{out.seal(handshakeMessage, keyUpdate, 0, 0), 0, ""},
			{out.seal(handshakeMessage, 1, 1), handshakeMessage, "\x18\x00\x00\x01\x00"},
		} {
			if _, err := peer.Write(step.record); err != nil {
				t.Fatal(err)
			}
			if step.typ == 0 {
				do(t, l, func() {})
				continue
			}
			typ, data, err := in.open(peer)
			if err != nil || typ != step.typ || string(data) != step.want {
				t.Fatalf("round %d: got type %d, %q, %v; want type %d, %q", round, typ, data, err, step.typ, step.want)
			}
		}
		out, in = out.next(), in.next()
	}
	_, _ = peer.Write(out.seal(applicationData, 'c'))
	if _, data, err := in.open(peer); err != nil || string(data) != "c" {
		t.Errorf("after three updates: %q, %v", data, err)
	}
}
