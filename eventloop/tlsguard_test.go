//go:build linux

package eventloop

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"
)

// memory is one end of a connection in memory: Read never blocks.
type memory struct {
	in, out *bytes.Buffer
}

func (m memory) Read(p []byte) (int, error) {
	if m.in.Len() == 0 {
		return 0, errAgain
	}
	return m.in.Read(p)
}
func (m memory) Write(p []byte) (int, error)    { return m.out.Write(p) }
func (memory) Close() error                     { return nil }
func (memory) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (memory) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (memory) SetDeadline(time.Time) error      { return nil }
func (memory) SetReadDeadline(time.Time) error  { return nil }
func (memory) SetWriteDeadline(time.Time) error { return nil }

// switchable is a net.Conn that can be exchanged after the handshake.
type switchable struct{ net.Conn }

// guardPair makes a finished handshake and then puts memory below both sides.
func guardPair(t *testing.T, version uint16) (server, client *tls.Conn, toServer, toClient *bytes.Buffer) {
	t.Helper()
	serverCfg, clientCfg := tlsConfigs(version)
	a, b := net.Pipe()
	sa, sb := &switchable{a}, &switchable{b}
	server, client = tls.Server(sa, PrepareTLS(serverCfg)), tls.Client(sb, PrepareTLS(clientCfg))
	errs := make(chan error, 1)
	go func() {
		err := server.Handshake()
		if err == nil {
			_, err = server.Write([]byte("x")) // after it, tickets have passed the pipe
		}
		errs <- err
	}()
	p := make([]byte, 1)
	if _, err := client.Read(p); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	toServer, toClient = new(bytes.Buffer), new(bytes.Buffer)
	sa.Conn, sb.Conn = memory{toServer, toClient}, memory{toClient, toServer}
	return server, client, toServer, toClient
}

// The next tests check what the loop relies on in crypto/tls. If one fails
// after a change of the Go version, read the comment in tls.go and the new
// source before anything else.

func TestCryptoTLSRetriesAReadAfterATemporaryError(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		server, client, toServer, _ := guardPair(t, version)
		want := pattern(40_000)
		if _, err := client.Write(want); err != nil {
			t.Fatal(err)
		}
		wire := bytes.Clone(toServer.Bytes())
		toServer.Reset()
		var got []byte
		p := make([]byte, 1<<17)
		for i := range wire { // each prefix of a record is met by a read that finds nothing more
			toServer.WriteByte(wire[i])
			for {
				n, err := server.Read(p)
				got = append(got, p[:n]...)
				if err == errAgain {
					break
				}
				if err != nil {
					t.Fatalf("version %x, byte %d: %v", version, i, err)
				}
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("version %x: %d bytes, or others", version, len(got))
		}
		if _, err := server.Write([]byte("y")); err != nil {
			t.Errorf("version %x: a temporary error of Read broke Write: %v", version, err)
		}
	}
}

func TestCryptoTLSKeepsNoPlaintextAfterAgain(t *testing.T) {
	server, client, _, _ := guardPair(t, tls.VersionTLS13)
	for range 5 {
		if _, err := client.Write(pattern(30_000)); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	p := make([]byte, 1<<17)
	for {
		n, err := server.Read(p)
		total += n
		if err == errAgain {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if total != 150_000 {
		t.Errorf("%d bytes before again, want all 150000", total)
	}
}

func TestCryptoTLSWritesWholeRecordsAtOnce(t *testing.T) {
	server, _, _, toClient := guardPair(t, tls.VersionTLS13)
	if _, err := server.Write(pattern(2 * maxRecord)); err != nil {
		t.Fatal(err)
	}
	records := 0
	for p := toClient.Bytes(); len(p) > 0; records++ {
		p = p[5+int(p[3])<<8+int(p[4]):]
	}
	if records != 2 {
		t.Errorf("32 KiB went out in %d records, want 2 of full size", records)
	}
}

func TestCryptoTLSReportsCloseNotifyAfterTheData(t *testing.T) {
	server, client, _, _ := guardPair(t, tls.VersionTLS13)
	_, _ = client.Write([]byte("abc"))
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 10)
	n, err := server.Read(p)
	for err == nil {
		var m int
		m, err = server.Read(p[n:])
		n += m
	}
	if n != 3 || err != io.EOF {
		t.Errorf("got %d bytes, %v", n, err)
	}
	if _, again := server.Read(p); again != io.EOF {
		t.Errorf("the end is reported once only: %v", again)
	}
	if _, err := server.Write([]byte("z")); err != nil {
		t.Errorf("the other direction ended too: %v", err)
	}
}
