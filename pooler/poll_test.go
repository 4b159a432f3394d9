package pooler

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/multipooler/multipooler/test/pgtest"
	"github.com/multipooler/multipooler/test/pgtest/testcert"
)

// Nobody sends a signal or says reload: cert-manager and its kind only replace
// files.
func TestChangedCertificatesAreNoticedOnBothSidesWithoutASignal(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the files to be looked at, every 10 seconds")
	}
	t.Parallel()
	pg := pgtest.Start(t, pgtest.Options{TLS: true})
	ca, err := testcert.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Server("localhost")
	if err != nil {
		t.Fatal(err)
	}
	serverCA := filepath.Join(t.TempDir(), "ca.crt") // of a stranger at first
	replace := func(from string) {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(serverCA, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	replace(ca.CAFile)
	r := run(t, pg.URL("app", "app", "sslmode=verify-full", "sslrootcert="+serverCA), "--tls-cert", pair.CertFile, "--tls-key", pair.KeyFile)
	serial := func() string {
		conn, err := tls.Dial("tcp", r.addr.String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"postgresql"}}) //nolint:gosec // whose it is does not matter
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	works := func() bool {
		c, err := pgconn.Connect(t.Context(), r.addressOf("app", pg.Password("app"), "app")+"?sslmode=require")
		if err == nil {
			c.Close(t.Context())
		}
		return err == nil
	}
	old := serial()
	if works() {
		t.Fatal("a server of another authority was trusted")
	}
	if _, err := ca.Server("localhost"); err != nil { // replaces both files
		t.Fatal(err)
	}
	replace(pg.Certs.CAFile)
	began := time.Now()
	for serial() == old || !works() {
		if time.Since(began) > 40*time.Second {
			t.Fatalf("after %v: new certificate shown %v, new authority trusted %v", time.Since(began), serial() != old, works())
		}
		time.Sleep(100 * time.Millisecond) // sleep: the files are looked at every 10 s
	}
	t.Logf("noticed after %v", time.Since(began).Round(time.Second))
}
