package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificate writes a self-signed certificate and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, about, about, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	for path, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der},
		key:  {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestFilesThatAStartWouldNeedAreTriedByTheCheck expects one mistake with the
// wanted text, or none.
func TestFilesThatAStartWouldNeedAreTriedByTheCheck(t *testing.T) {
	cert, key := certificate(t)
	_, otherKey := certificate(t)
	junk := writeFile(t, "hunter2 is no certificate")
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"a pair", []string{"--tls-cert=" + cert, "--tls-key=" + key, "--tls-mode=verify-full", "--tls-ca=" + cert}, ""},
		{"another's key", []string{"--tls-cert=" + cert, "--tls-key=" + otherKey}, "flag --tls-cert: tls_cert: tls: private key does not match"},
		{"junk as authority", []string{"--tls-ca=" + junk}, "flag --tls-ca: tls_ca: " + junk + " holds no certificate"},
		{"to servers, a pair", []string{"--server-tls-cert=" + cert, "--server-tls-key=" + key, "--server-tls-ca=" + cert, "--server-tls-mode=verify-ca"}, ""},
		{"to servers, another's key", []string{"--server-tls-cert=" + cert, "--server-tls-key=" + otherKey}, "flag --server-tls-cert: server_tls_cert: tls: private key"},
		{"to servers, junk as authority", []string{"--server-tls-ca=" + junk}, "flag --server-tls-ca: server_tls_ca: " + junk},
		{"users", []string{"--auth-file=/nonexistent"}, "flag --auth-file: auth_file: open /nonexistent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(Input{Args: append(tt.args, sole)})
			list := Mistakes(err)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(list) != 1 || !strings.HasPrefix(list[0].Error(), tt.want) || strings.Contains(list[0].Error(), "hunter2") {
				t.Fatalf("got %v, want %s", list, tt.want)
			}
		})
	}
}

func TestAFileSharedByAllTargetsIsReportedOnce(t *testing.T) {
	_, err := Load(Input{Args: []string{"--config", writeFile(t, `server_tls_ca: /nonexistent
targets:
  - {name: a, url: "postgres://u:p@a", databases: [a]}
  - {name: b, url: "postgres://u:p@b", databases: [b]}
`)}})
	if list := Mistakes(err); len(list) != 1 {
		t.Fatalf("got %v", list)
	}
}

func TestAPasswordFileHoldsOnePassword(t *testing.T) {
	for _, tt := range []struct{ text, want, problem string }{
		{text: "hunter2", want: "hunter2"},
		{text: "hunter2\n", want: "hunter2"},
		{text: "hunter2\r\n", want: "hunter2"},
		{text: " hunter 2 \n", want: " hunter 2 "},
		{text: "", problem: "is empty"},
		{text: "\n", problem: "is empty"},
		{text: "hunter2\nhunter3\n", problem: "more than one line"},
		{text: "hunter2\n\n", problem: "more than one line"},
		{text: "hunter2\x00", problem: "more than one line"},
		{text: strings.Repeat("h", maxPassword), want: strings.Repeat("h", maxPassword)},
		{text: strings.Repeat("h", maxPassword+1), problem: "longer than 4096"},
	} {
		c, err := Load(Input{Args: []string{"postgres://u@h", "--target-password-file", writeFile(t, tt.text)}})
		if tt.problem == "" {
			if err != nil || c.Targets[0].Password.Reveal() != tt.want {
				t.Errorf("%.20q: got %v", tt.text, err)
			}
			continue
		}
		if list := Mistakes(err); len(list) != 1 || !strings.Contains(list[0].Error(), tt.problem) || strings.Contains(list[0].Error(), "hunter2") {
			t.Errorf("%.20q: got %v", tt.text, list)
		}
	}
}

func TestAHugeFileIsNotRead(t *testing.T) {
	path := writeFile(t, "# "+strings.Repeat("x", maxFile)+"\ntarget: "+sole)
	_, err := Load(Input{Args: []string{"--config", path}})
	if list := Mistakes(err); len(list) != 1 || !strings.Contains(list[0].Error(), "the limit is 1048576") {
		t.Fatalf("got %v", list)
	}
	// A device has no end, and is not waited for.
	if _, err := Load(Input{Args: []string{"--config", "/dev/zero"}}); err == nil {
		t.Fatal("a device is taken for a configuration")
	}
}
