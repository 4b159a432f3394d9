package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/multipooler/multipooler/test/pgtest/pgserver"
	"github.com/multipooler/multipooler/test/pgtest/testcert"
)

const (
	poolSize  = 20
	database  = "app"
	trusted   = "app"    // logs in without a password everywhere
	scramUser = "login"  // logs in with SCRAM everywhere
	password  = "secret" // of scramUser
)

// target is something clients can connect to.
type target struct {
	name string
	addr string   // host:port
	proc *process // nil for PostgreSQL itself
}

func (t target) url(user, sslmode string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Host: t.addr, Path: "/" + database, RawQuery: "sslmode=" + sslmode}
	return u.String()
}

// bench owns the server, the folder and the certificates of a run.
type bench struct {
	opts        options
	server      *pgserver.Server
	dir         string
	cert        testcert.Pair
	pgbouncer   string // path, "" is absent
	multipooler string
	as          *syscall.Credential // for programs that refuse root
	psql        string
	pgbenchTool string
	missing     map[string]bool // targets that did not start
	verifier    string          // scramUser's, as the server stores it
}

func newBench(ctx context.Context, o options) (b *bench, err error) {
	dir, err := os.MkdirTemp("", "multipooler-bench-")
	if err != nil {
		return nil, err
	}
	b = &bench{opts: o, dir: dir, missing: map[string]bool{}}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	for name := range strings.SplitSeq(o.skip, ",") {
		b.missing[strings.TrimSpace(name)] = true
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return b, err
	}
	b.findPgBouncer()
	b.findMultipooler(ctx)
	b.server, err = pgserver.Start(ctx, pgserver.Options{
		TLS:       true,
		Users:     []pgserver.User{{Name: trusted}, {Name: scramUser, Password: password}},
		Databases: []string{database},
		HBA:       []string{"host all " + trusted + " 127.0.0.1/32 trust"},
		Settings: map[string]string{
			"max_connections": "200", "shared_buffers": "256MB", "log_min_messages": "log",
		},
	})
	if err != nil {
		return b, err
	}
	for tool, path := range map[string]*string{"pgbench": &b.pgbenchTool, "psql": &b.psql} {
		if *path, err = b.server.Tool(tool); err != nil {
			return b, err
		}
	}
	authority, err := testcert.New(dir)
	if err != nil {
		return b, err
	}
	if b.cert, err = authority.Server("127.0.0.1", "localhost"); err != nil {
		return b, err
	}
	return b, b.load(ctx)
}

// load fills the tables: pgbench's at scale 10, and 150 MB for COPY.
func (b *bench) load(ctx context.Context) error {
	direct := target{addr: b.server.Addr()}
	cmd := exec.CommandContext(ctx, b.pgbenchTool, "-i", "-q", "-s", "10")
	cmd.Env = append(os.Environ(), pgEnv(direct, trusted, "disable")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgbench -i: %w: %s", err, out)
	}
	sql := fmt.Sprintf(`create unlogged table bulk as
		select repeat(md5(i::text), 31) as line from generate_series(1, %d) i;
		grant all on all tables in schema public to public; vacuum analyze bulk`, bulkRows)
	cmd = exec.CommandContext(ctx, b.psql, "-qX", "-v", "ON_ERROR_STOP=1")
	cmd.Env = append(os.Environ(), pgEnv(direct, trusted, "disable")...)
	cmd.Stdin = strings.NewReader(sql)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("load bulk: %w: %s", err, out)
	}
	conn, err := pgconn.Connect(ctx, b.server.AdminURL(database))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	res, err := conn.Exec(ctx, "select rolpassword from pg_authid where rolname = '"+scramUser+"'").ReadAll()
	if err != nil {
		return err
	}
	b.verifier = string(res[0].Rows[0][0])
	return nil
}

// bulkRows of 31 × 32 bytes and a line feed are 150 MB.
const bulkRows = 150_000_000 / (31*32 + 1)

func (b *bench) close() {
	if b.server != nil {
		if err := b.server.Close(); err != nil {
			say("stop PostgreSQL: %v", err)
		}
	}
	if err := os.RemoveAll(b.dir); err != nil {
		say("%v", err)
	}
}

// names of the targets that take part, in the order of the table.
func (b *bench) names() (names []string) {
	for _, n := range []string{"direct", "pgbouncer", "multipooler"} {
		if !b.missing[n] {
			names = append(names, n)
		}
	}
	return names
}

func (b *bench) findPgBouncer() {
	for _, path := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if p, err := exec.LookPath(path); err == nil {
			b.pgbouncer = p
			break
		}
	}
	if b.missing["pgbouncer"] {
		return
	}
	if b.pgbouncer == "" {
		b.missing["pgbouncer"] = true
		say("PgBouncer is not installed: no ratios. On Debian: apt-get install pgbouncer")
		return
	}
	out, _ := exec.Command(b.pgbouncer, "--version").Output()
	version, _, _ := strings.Cut(string(out), "\n")
	say("%s (%s)", version, b.pgbouncer)
	if os.Getuid() != 0 {
		return
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		b.missing["pgbouncer"] = true
		say("PgBouncer refuses root and there is no user nobody: %v", err)
		return
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	b.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (b *bench) findMultipooler(ctx context.Context) {
	if b.missing["multipooler"] {
		return
	}
	b.multipooler = b.opts.multipooler
	if b.multipooler == "" {
		b.multipooler = filepath.Join(b.dir, "multipooler")
		cmd := exec.CommandContext(ctx, "go", "build", "-o", b.multipooler, "./cmd/multipooler")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.missing["multipooler"] = true
			say("multipooler cannot be built (run in the repository, or give -multipooler): %v\n%s", err, out)
		}
	} else if _, err := os.Stat(b.multipooler); err != nil {
		b.missing["multipooler"] = true
		say("-multipooler: %v", err)
	}
}

// targets starts what a profile needs. Proxies that do not come up are left
// out of the rest of the run.
func (b *bench) targets(ctx context.Context, p profile, only string) (all []target, stop func(), err error) {
	stop = func() {
		for _, t := range all {
			if t.proc != nil {
				t.proc.stop()
			}
		}
	}
	if !b.missing["direct"] && p != idle && (only == "" || only == "direct") {
		all = append(all, target{name: "direct", addr: b.server.Addr()})
	}
	for _, proxy := range []struct {
		name  string
		start func(profile, int) (*process, error)
	}{{"pgbouncer", b.startPgBouncer}, {"multipooler", b.startMultipooler}} {
		if b.missing[proxy.name] || (only != "" && only != proxy.name) {
			continue
		}
		t := target{name: proxy.name}
		port, err := freePort()
		if err == nil {
			t.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			t.proc, err = proxy.start(p, port)
		}
		if err == nil {
			user, mode := clientOf(p)
			if err = t.proc.ready(ctx, t.url(user, mode)); err != nil {
				t.proc.stop()
			}
		}
		if ctx.Err() != nil {
			stop()
			return nil, nil, context.Cause(ctx)
		}
		if err != nil {
			b.missing[proxy.name] = true
			say("%s (%s) does not start: %v", proxy.name, p, err)
			continue
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return nil, nil, errors.New("nothing to measure is left")
	}
	return all, stop, nil
}

// clientOf is the user and sslmode that a profile's clients use.
func clientOf(p profile) (user, sslmode string) {
	switch p {
	case secure:
		return trusted, "require"
	case login:
		return scramUser, "disable"
	}
	return trusted, "disable"
}

// userlist is PgBouncer's file of users, which multipooler reads as well. It
// holds the server's own verifier: with the plain password PgBouncer 1.18
// derives the key anew at each login, 4.5 ms that say nothing about connecting.
func (b *bench) userlist() (string, error) {
	path := filepath.Join(b.dir, "userlist.txt")
	text := fmt.Sprintf("%q %q\n%q %q\n", trusted, "", scramUser, b.verifier)
	return path, os.WriteFile(path, []byte(text), 0o644)
}

func authType(p profile) string {
	if p == login {
		return "scram-sha-256"
	}
	return "trust"
}

func (b *bench) startPgBouncer(p profile, port int) (*process, error) {
	users, err := b.userlist()
	if err != nil {
		return nil, err
	}
	conf := fmt.Sprintf(`[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = %s
auth_file = %s
pool_mode = transaction
default_pool_size = %d
max_client_conn = 12000
server_tls_sslmode = disable
`, b.server.Host, b.server.Port, port, authType(p), users, poolSize)
	if p == secure || p == idle {
		// Its own copy of the key: it runs as another user.
		cert, key := filepath.Join(b.dir, "pgbouncer.crt"), filepath.Join(b.dir, "pgbouncer.key")
		for from, to := range map[string]string{b.cert.CertFile: cert, b.cert.KeyFile: key} {
			if err := b.copyFor(from, to); err != nil {
				return nil, err
			}
		}
		conf += fmt.Sprintf("client_tls_sslmode = allow\nclient_tls_cert_file = %s\nclient_tls_key_file = %s\n", cert, key)
	}
	ini := filepath.Join(b.dir, "pgbouncer-"+string(p)+".ini")
	if err := os.WriteFile(ini, []byte(conf), 0o644); err != nil {
		return nil, err
	}
	return startProcess(filepath.Join(b.dir, "pgbouncer-"+string(p)+".log"), b.as, nil, b.pgbouncer, ini)
}

func (b *bench) copyFor(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		return err
	}
	if b.as == nil {
		return nil
	}
	return os.Chown(to, int(b.as.Uid), int(b.as.Gid))
}

func (b *bench) startMultipooler(p profile, port int) (*process, error) {
	users, err := b.userlist()
	if err != nil {
		return nil, err
	}
	httpPort, err := freePort()
	if err != nil {
		return nil, err
	}
	user, _ := clientOf(p)
	server := target{addr: b.server.Addr()}
	args := []string{
		"--listen", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		"--http-listen", net.JoinHostPort("127.0.0.1", strconv.Itoa(httpPort)),
		"--auth-type", authType(p), "--auth-file", users,
		"--connpool-global-capacity", strconv.Itoa(poolSize),
	}
	if p == secure || p == idle {
		args = append(args, "--tls-cert", b.cert.CertFile, "--tls-key", b.cert.KeyFile)
	}
	args = append(args, strings.Fields(b.opts.extra)...)
	env := []string{"MULTIPOOLER_TARGET=" + server.url(user, "disable")}
	return startProcess(filepath.Join(b.dir, "multipooler-"+string(p)+".log"), nil, env, b.multipooler, args...)
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// pgEnv are libpq's variables for t.
func pgEnv(t target, user, sslmode string) []string {
	host, port, _ := net.SplitHostPort(t.addr)
	return []string{
		"PGHOST=" + host, "PGPORT=" + port, "PGUSER=" + user, "PGDATABASE=" + database,
		"PGPASSWORD=" + password, "PGSSLMODE=" + sslmode,
	}
}
