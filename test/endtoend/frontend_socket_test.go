package endtoend

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/mp"
	"github.com/multipooler/multipooler/test/pgtest"
)

func TestClientsComeOverIPv4IPv6AndUnixSockets(t *testing.T) {
	s := pgtest.Shared(t)
	dir := t.TempDir()
	listen := []string{"127.0.0.1:0", dir + ":5433"}
	if ln, err := net.Listen("tcp", "[::1]:0"); err == nil {
		ln.Close()
		listen = append(listen, "[::1]:0")
	} else {
		t.Log("this machine has no IPv6")
	}
	in := mp.Start(t, mp.Options{Target: s.URL("app", "app"), Listen: listen})
	for i, addr := range in.Listeners {
		if i == 1 {
			if addr != dir+"/.s.PGSQL.5433" {
				t.Errorf("the socket is %s", addr)
			}
			addr = dir + ":5433"
		}
		url := mp.URL(addr, "app", s.Password("app"), "app")
		if out := psql(t, s, url, "-c", "SELECT 'in'"); out.stdout != "in\n" {
			t.Errorf("%s: %+v", addr, out)
		}
		if got := one(t, connect(t, url), "SELECT 'in'"); got != "in" {
			t.Errorf("%s: %s", addr, got)
		}
		if e := refused(t, mp.URL(addr, "app", "wrong", "app")); e.Code != "28P01" {
			t.Errorf("%s: %v", addr, e)
		}
	}
}

func TestStartupPacketsThatMakeNoSenseAreRefusedAndHarmNobody(t *testing.T) {
	in, _ := front(t, slots(1), trusting)
	bystander := loginRaw(t, in.Addr())
	big := make([]byte, 10_001)
	copy(big, []byte{0, 0, 0x27, 0x11, 0, 3, 0, 0})
	for _, tt := range []struct {
		name string
		send []byte
		want string
	}{
		{"nothing", nil, ""},
		{"half a length", []byte{0, 0}, ""},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "EOF"},
		{"length 0", []byte{0, 0, 0, 0}, "EOF"},
		{"length 7", []byte{0, 0, 0, 7, 0, 3, 0, 0}, "EOF"},
		{"more than 10000 bytes", big, "E(FATAL 08P01) EOF"},
		{"protocol 2", []byte{0, 0, 0, 9, 0, 2, 0, 0, 0}, "E(FATAL 0A000) EOF"},
		{"protocol 4", []byte{0, 0, 0, 9, 0, 4, 0, 0, 0}, "E(FATAL 0A000) EOF"},
		{"no user", []byte{0, 0, 0, 9, 0, 3, 0, 0, 0}, "E(FATAL 28000) EOF"},
		{"no end of the parameters", []byte("\x00\x00\x00\x10\x00\x03\x00\x00user\x00app"), "E(FATAL 08P01) EOF"},
		{"SSLRequest twice", []byte{0, 0, 0, 8, 4, 210, 22, 47}, ""},
		{"a message before the login", []byte("Q\x00\x00\x00\x0dSELECT 1\x00"), "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := dialRaw(t, in.Addr())
			if len(tt.send) > 0 {
				r.sendBytes(tt.send)
			}
			if tt.want == "" {
				r.hangUp()
			} else if got := r.reply(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if got := bystander.value("SELECT 'unharmed'"); got != "unharmed" {
				t.Error(got)
			}
		})
	}
	mp.Eventually(t, limitOfRest, "nobody is logging in", func() bool { return in.Metric(t, "multipooler_clients_logging_in") == 0 })
}

func TestMessagesThatMakeNoSenseEndOnlyTheirSession(t *testing.T) {
	in, _ := front(t, slots(1), trusting)
	bystander := loginRaw(t, in.Addr())
	for _, tt := range []struct{ name, send, want string }{
		{"unknown type", "\x01\x00\x00\x00\x04", "E(FATAL 08P01) EOF"},
		{"length 3", "Q\x00\x00\x00\x03", "EOF"}, // PostgreSQL is silent as well: the peer speaks something else,
		{"length of 2 GiB", "Q\x7f\xff\xff\xff", "EOF"},
		{"password after the login", "p\x00\x00\x00\x05\x00", "E(FATAL 08P01) EOF"},
	} {
		r := loginRaw(t, in.Addr())
		r.query("SELECT 1")
		r.sendBytes([]byte(tt.send))
		if got := r.reply(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
		if got := bystander.value("SELECT 'unharmed'"); got != "unharmed" {
			t.Error(got)
		}
	}
	// A Bind that lies is the server's to refuse, and does not cost the session.
	r := loginRaw(t, in.Addr())
	r.send(parse("", "SELECT 1"), syncNow)
	r.reply()
	r.sendBytes([]byte("B\x00\x00\x00\x08\x00\x00\x00\x09S\x00\x00\x00\x04"))
	if got := r.reply(); got != "E(ERROR 08P01) Z(I)" {
		t.Error(got)
	}
	if got := r.value("SELECT 'alive'"); got != "alive" {
		t.Error(got)
	}
}

func TestProtocol32HasLongKeysAndUnknownVersionsAreNegotiated(t *testing.T) {
	in, s := front(t, slots(1), trusting)
	for _, tt := range []struct {
		name    string
		version uint32
		params  []string
		reply   string
		key     int
		told    pgproto3.NegotiateProtocolVersion
	}{
		{"3.0", 0x30000, nil, "R K Z(I)", 4, pgproto3.NegotiateProtocolVersion{}},
		{"3.2", 0x30002, nil, "R K Z(I)", 32, pgproto3.NegotiateProtocolVersion{}},
		{"3.9", 0x30009, nil, "v R K Z(I)", 32, pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: 0x30002}},
		{"an option", 0x30000, []string{"_pq_.colour=red", "_pq_.taste=sour"}, "v R K Z(I)", 4, pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: 0x30000}},
		{"an option and 3.2", 0x30002, []string{"_pq_.colour=red"}, "v R K Z(I)", 32, pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: 0x30002}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := dialRaw(t, in.Addr())
			if got := r.login(tt.version, tt.params...); got != tt.reply {
				t.Fatalf("got %s, want %s", got, tt.reply)
			}
			if len(r.key.SecretKey) != tt.key {
				t.Errorf("a key of %d bytes, want %d", len(r.key.SecretKey), tt.key)
			}
			if got := r.told.NewestMinorProtocol; got&0xffff != tt.told.NewestMinorProtocol&0xffff || len(r.told.UnrecognizedOptions) != len(tt.params) {
				t.Errorf("told %+v", r.told)
			}
			r.send(&pgproto3.Query{String: "SELECT pg_sleep(60), 'long key'"})
			untilRunning(t, s, "long key", 1)
			if err := r.cancel(t.Context(), in.Addr()); err != nil {
				t.Error(err)
			}
			if got := r.reply(); !strings.Contains(got, "57014") {
				t.Error(got)
			}
		})
	}
}

func TestALoginIsBoundedInTimeAndInNumber(t *testing.T) {
	s := pgtest.Shared(t)
	in := before(t, s, slots(1), "--client-login-timeout=500ms", "--max-unauthenticated-clients=3")
	start := time.Now()
	silent := []*raw{dialRaw(t, in.Addr()), dialRaw(t, in.Addr()), dialRaw(t, in.Addr())}
	silent[1].sendBytes([]byte{0, 0, 0, 8, 4, 210, 22, 47}) // SSLRequest, and no more
	silent[2].send(&pgproto3.StartupMessage{ProtocolVersion: 0x30000, Parameters: map[string]string{"user": "app"}})
	mp.Eventually(t, limitOfRest, "three are logging in", func() bool { return in.Metric(t, "multipooler_clients_logging_in") == 3 })
	late := dialRaw(t, in.Addr())
	if got := late.reply(); got != "E(FATAL 53300) EOF" {
		t.Errorf("the fourth: %s", got)
	}
	if got := silent[0].reply(); !strings.HasSuffix(got, "EOF") || time.Since(start) < 400*time.Millisecond {
		t.Errorf("after %v: %s", time.Since(start), got)
	}
	mp.Eventually(t, limitOfRest, "nobody is logging in", func() bool { return in.Metric(t, "multipooler_clients_logging_in") == 0 })
	if got := in.Metric(t, "multipooler_logins_total", `result="timeout"`); got != 3 {
		t.Errorf("%v timeouts", got)
	}
	connect(t, in.URL("app", "app"))
}
