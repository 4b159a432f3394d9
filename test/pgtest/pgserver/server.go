package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/multipooler/multipooler/test/pgtest/testcert"
)

// Server is a private PostgreSQL. Its methods may be called from any
// goroutine; Stop, Start, Restart, Kill and Close exclude one another.
type Server struct {
	Binaries
	Host      string // where it listens over TCP
	Port      int    // the same over all restarts
	SocketDir string
	DataDir   string
	Certs     *testcert.Authority // nil without Options.TLS

	opts   Options
	acct   account
	folder folder
	log    serverLog

	mu struct {
		sync.Mutex
		proc   *process // nil while stopped
		closed bool
	}
}

// Start runs a new server with the users and databases of o. The caller must
// Close it.
func Start(ctx context.Context, o Options) (*Server, error) {
	b, err := Find()
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	acct := serverAccount()
	f, err := newFolder(ctx, b, o, acct)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Binaries: b, Host: "127.0.0.1", SocketDir: f.sock(), DataDir: f.data(),
		opts: o, acct: acct, folder: f,
	}
	if err := s.start(ctx); err != nil {
		log := s.Log()
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, log), s.Close())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) error {
	if len(filepath.Join(s.SocketDir, ".s.PGSQL.65535")) > 100 { // sockaddr_un has 108 bytes
		return fmt.Errorf("%s is too long for a unix socket: set TMPDIR to a shorter path", s.SocketDir)
	}
	own := map[string]string{"unix_socket_directories": s.SocketDir}
	if s.opts.TLS {
		if err := s.makeCerts(own); err != nil {
			return err
		}
	}
	if err := s.write("pg_hba.conf", hbaFile(s.opts)); err != nil {
		return err
	}
	if err := s.startOnFreePort(ctx, own); err != nil {
		return err
	}
	return s.createUsers(ctx)
}

func (s *Server) makeCerts(settings map[string]string) error {
	var err error
	if s.Certs, err = testcert.New(s.folder.tls()); err != nil {
		return err
	}
	pair, err := s.Certs.Server("localhost", "127.0.0.1", "::1")
	if err != nil {
		return err
	}
	settings["ssl"] = "on"
	settings["ssl_ca_file"] = s.Certs.CAFile
	settings["ssl_cert_file"] = pair.CertFile
	settings["ssl_key_file"] = pair.KeyFile
	return s.acct.own(pair.KeyFile)
}

// startOnFreePort tries other ports when somebody is faster.
func (s *Server) startOnFreePort(ctx context.Context, own map[string]string) error {
	const tries = 10
	for try := 1; ; try++ {
		s.Port = s.opts.Port
		if s.Port == 0 {
			s.Port = freePort()
		}
		own["port"] = strconv.Itoa(s.Port)
		if err := s.write("postgresql.conf", confFile(own, s.opts.Settings)); err != nil {
			return err
		}
		err := s.Start(ctx)
		if err == nil || s.opts.Port != 0 || try == tries || !strings.Contains(s.Log(), "Address already in use") {
			return err
		}
	}
}

// freePort looks below the range of outgoing connections first (32768 on
// Linux), so that nobody takes the port while the server restarts.
func freePort() int {
	for range 100 {
		port := 20000 + rand.IntN(12000)
		if ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			ln.Close()
			return port
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0 // PostgreSQL will say what is wrong with the network
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// write replaces a file in the data folder.
func (s *Server) write(name, text string) error {
	path := filepath.Join(s.DataDir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return s.acct.own(path)
}

func (s *Server) createUsers(ctx context.Context) error {
	var sql []string
	for _, u := range s.opts.Users {
		sql = append(sql,
			"SET password_encryption = '"+string(u.Hash)+"'",
			fmt.Sprintf("CREATE ROLE %s LOGIN %s PASSWORD %s", Identifier(u.Name), u.Options, Literal(u.Password)))
	}
	for _, db := range s.opts.Databases {
		owner := Superuser
		if len(s.opts.Users) > 0 {
			owner = s.opts.Users[0].Name
		}
		sql = append(sql, fmt.Sprintf("CREATE DATABASE %s OWNER %s", Identifier(db), Identifier(owner)))
	}
	return s.Exec(ctx, sql...)
}

// Identifier quotes a name for SQL.
func Identifier(name string) string { return pgx.Identifier{name}.Sanitize() }

// Literal quotes a text for SQL, under any standard_conforming_strings.
func Literal(text string) string {
	return " E'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + "'"
}

// Exec runs statements as the superuser in database postgres, on one
// connection that is closed afterwards.
func (s *Server) Exec(ctx context.Context, sql ...string) error {
	conn, err := pgx.Connect(ctx, s.AdminURL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, stmt := range sql {
		if _, err := conn.Exec(ctx, stmt); err != nil {
			return fmt.Errorf("%s: %w", stmt, err)
		}
	}
	return awaitEnd(conn)
}

// awaitEnd closes conn and waits for the server's end of it: until then the
// server counts the connection, and a test of its limits would meet it.
func awaitEnd(conn *pgx.Conn) error {
	h, err := conn.PgConn().Hijack()
	if err != nil {
		return err
	}
	defer h.Conn.Close()
	h.Frontend.Send(&pgproto3.Terminate{})
	if err := h.Frontend.Flush(); err != nil {
		return err
	}
	_ = h.Conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err = io.Copy(io.Discard, h.Conn)
	return err
}

// Addr is host:port.
func (s *Server) Addr() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// PID of the postmaster, 0 while the server is stopped.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.proc == nil {
		return 0
	}
	return s.mu.proc.pid
}

// Password of a user in Options, "" of an unknown one.
func (s *Server) Password(user string) string {
	for _, u := range s.opts.Users {
		if u.Name == user {
			return u.Password
		}
	}
	return ""
}

// URL is how user reaches database db over TCP; params are "key=value" pairs
// such as "sslmode=require" (the default is disable).
func (s *Server) URL(user, db string, params ...string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, s.Password(user)), Host: s.Addr(), Path: "/" + db}
	return withParams(u, append([]string{"sslmode=disable"}, params...))
}

// SocketURL is the same over the unix socket.
func (s *Server) SocketURL(user, db string, params ...string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, s.Password(user)), Path: "/" + db}
	return withParams(u, append([]string{"host=" + s.SocketDir, "port=" + strconv.Itoa(s.Port)}, params...))
}

// AdminURL is the superuser's way into db: the unix socket, no password.
func (s *Server) AdminURL(db string) string {
	u := url.URL{Scheme: "postgres", User: url.User(Superuser), Path: "/" + db}
	return withParams(u, []string{"host=" + s.SocketDir, "port=" + strconv.Itoa(s.Port), "application_name=pgtest admin"})
}

// withParams adds "key=value" pairs, later ones replacing earlier ones. libpq
// and pgx take a plus sign for itself, so a space must travel as %20.
func withParams(u url.URL, params []string) string {
	q := url.Values{}
	for _, p := range params {
		k, v, _ := strings.Cut(p, "=")
		q.Set(k, v)
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
}

// Log is what the server wrote, over all restarts; the newest megabyte of it.
func (s *Server) Log() string {
	text, _ := s.log.since(0)
	return text
}

// LogSince is what the server wrote after position from, and the position for
// the next call.
func (s *Server) LogSince(from int) (text string, next int) { return s.log.since(from) }

var errClosed = errors.New("the server was closed")

// Start runs a stopped server again, on the same port with the same data.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startLocked(ctx)
}

func (s *Server) startLocked(ctx context.Context) error {
	if s.mu.closed {
		return errClosed
	}
	if s.mu.proc != nil {
		return fmt.Errorf("postgres %d is already running", s.mu.proc.pid)
	}
	proc, err := spawn(ctx, s.Binaries, s.folder, s.acct, &s.log)
	s.mu.proc = proc
	return err
}

// Stop ends the server and keeps its data for Start. A stopped server is
// stopped again without an error.
func (s *Server) Stop(m Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopLocked(m)
}

func (s *Server) stopLocked(m Mode) error {
	if s.mu.proc == nil {
		return nil
	}
	err := s.mu.proc.stop(m)
	s.mu.proc = nil
	return err
}

// Restart is Stop and Start with nobody in between.
func (s *Server) Restart(ctx context.Context, m Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.stopLocked(m), s.startLocked(ctx))
}

// Kill ends every process of the server at once with SIGKILL: sockets die
// without a message. Start recovers the data.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.proc != nil {
		s.mu.proc.kill()
		s.mu.proc = nil
	}
}

// Close stops the server at once and removes its folder. It may be called
// more than once.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil
	}
	s.mu.closed = true
	err := errors.Join(s.stopLocked(Immediate), s.folder.remove())
	if s.opts.NoTemplate {
		err = errors.Join(err, leave(filepath.Dir(s.folder.path)))
	}
	return err
}
