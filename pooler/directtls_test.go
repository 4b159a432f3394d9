package pooler

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/multipooler/multipooler/test/pgtest/testcert"
)

// PostgreSQL speaks direct TLS from 17 on; this server does so with any.
func TestDirectTLSToTheServerHasALPNAndSNI(t *testing.T) {
	ca, err := testcert.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Server("localhost")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	welcome := append(message('R', "\x00\x00\x00\x00"), message('S', "server_version\x0017.0\x00")...)
	welcome = append(append(welcome, message('K', "\x00\x00\x00\x01\x00\x00\x00\x02")...), message('Z', "I")...)
	for _, tt := range []struct {
		name, negotiation string
		protocols         []string // that the server knows
		first             byte     // that the server gets
		ok                bool
	}{
		{"direct", "direct", []string{"postgresql"}, 0x16, true},
		{"direct to a server without ALPN", "direct", nil, 0x16, false},
		{"asked for first", "postgres", []string{"postgresql"}, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var mu sync.Mutex
			var first byte
			var name, alpn string
			addr := hostile(t, func(conn net.Conn) {
				var b [1]byte
				if _, err := io.ReadFull(conn, b[:]); err != nil {
					return
				}
				mu.Lock()
				first = b[0]
				mu.Unlock()
				in := io.MultiReader(bytes.NewReader(b[:]), conn)
				if b[0] == 0 { // SSLRequest
					_, _ = io.ReadFull(conn, make([]byte, 7))
					_, _ = conn.Write([]byte{'S'})
					in = conn
				}
				server := tls.Server(replayed{conn, in}, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: tt.protocols})
				if server.Handshake() != nil {
					return
				}
				mu.Lock()
				name, alpn = server.ConnectionState().ServerName, server.ConnectionState().NegotiatedProtocol
				mu.Unlock()
				say(welcome)(server)
			})
			_, port, _ := net.SplitHostPort(addr)
			params := url.Values{"sslmode": {"verify-full"}, "sslrootcert": {ca.CAFile}, "sslnegotiation": {tt.negotiation}}
			r := run(t, "postgres://app:secret@localhost:"+port+"/app?"+params.Encode(), "--auth-type", "trust")
			c, err := pgconn.Connect(t.Context(), r.addressOf("app", "x", "app"))
			if (err == nil) != tt.ok {
				t.Fatal(err)
			}
			if err == nil {
				c.Close(t.Context())
			}
			mu.Lock()
			defer mu.Unlock()
			if first != tt.first {
				t.Errorf("the first byte is %#x, want %#x", first, tt.first)
			}
			if tt.ok && (name != "localhost" || alpn != "postgresql") {
				t.Errorf("SNI %q and ALPN %q", name, alpn)
			}
		})
	}
}

// replayed is a connection of which some bytes have been read already.
type replayed struct {
	net.Conn
	in io.Reader
}

func (r replayed) Read(p []byte) (int, error) { return r.in.Read(p) }
