package config

import (
	"fmt"
	"strings"
)

// The manual: every key once, in the order in which it is explained. `--help`,
// `multipooler config` and SHOW CONFIG follow it; a test holds it against the
// struct.
type chapter struct {
	title   string
	prose   string
	options []option
}

type option struct {
	key  string
	arg  string // what stands for the value
	text string
}

var manual = []chapter{
	{
		"Where clients connect",
		"Clients connect to multipooler as if it were the server. A path is the folder of a unix socket: --listen /run/multipooler makes /run/multipooler/.s.PGSQL.6432, which libpq finds with host=/run/multipooler port=6432; --listen /run/multipooler:5432 names another port.",
		[]option{
			{"listen", "ADDRESS", "host:port, [v6]:port, :port (every address), or a unix socket's folder; repeatable"},
			{"unix_socket_mode", "MODE", "permissions of unix sockets, octal"},
			{"http_listen", "ADDRESS", "where /metrics, /livez, /readyz and /startupz are served; \"off\" serves nothing"},
			{"tcp_keepalive", "DURATION", "idle time before the first keepalive probe on both sides; 0 leaves it to the system"},
		},
	},
	{
		"Where the data is",
		"With one target URL that holds user and password nothing else is needed: clients log in as that user with that password, to any database of the server. The URL is libpq's: sslmode, sslrootcert, sslcert, sslkey, sslnegotiation, channel_binding, connect_timeout, application_name, options, and host=/folder for a unix socket. Several targets stand in the file under targets:, each with name, url (or host, port, user, password, …) and the databases routed to it.",
		[]option{
			{"target", "URL", "the server, the same as the argument; env:NAME takes it from a variable"},
			{"target_password_file", "FILE", "holds the target's password (else the URL, else PGPASSWORD)"},
			{"pool_mode", "MODE", "transaction, session or statement; users: and databases: in the file override it"},
			{"server_tls_mode", "MODE", "disable, allow, prefer, require, verify-ca or verify-full; default: the URL's sslmode, else prefer"},
			{"server_tls_negotiation", "HOW", "postgres, or direct (PostgreSQL 17 and later)"},
			{"server_tls_ca", "FILE", "authorities that sign servers' certificates; without one the system's"},
			{"server_tls_cert", "FILE", "certificate that multipooler shows to servers"},
			{"server_tls_key", "FILE", "its key"},
			{"server_connect_timeout", "DURATION", "to dial a server and log in"},
			{"server_check_period", "DURATION", "within this a server that has vanished without a word is noticed on its idle connections (TCP keepalive, at least 4s); 0 leaves it to --tcp-keepalive"},
			{"server_quarantine_timeout", "DURATION", "how long a server connection that must go may take to end before it is cut"},
		},
	},
	{
		"Who may log in",
		"Users come from --auth-file (PgBouncer's userlist.txt: plain passwords, md5 hashes, SCRAM verifiers), or, without one, from the targets' URLs. The console is the database multipooler (alias pgbouncer); only admin users reach it.",
		[]option{
			{"auth_type", "METHOD", "scram-sha-256, md5, cert or trust"},
			{"auth_file", "FILE", "users and their secrets, in PgBouncer's userlist.txt format"},
			{"admin_users", "NAMES", "who may use the console; default: the targets' users"},
			{"tls_mode", "MODE", "TLS for clients: disable, allow, prefer, require, verify-ca or verify-full; default: prefer with a certificate, else disable"},
			{"tls_cert", "FILE", "certificate shown to clients; read again when it changes"},
			{"tls_key", "FILE", "its key"},
			{"tls_ca", "FILE", "authorities that sign clients' certificates"},
		},
	},
	{
		"How many, and how long",
		"A server sees never more than --connpool-global-capacity connections. Clients beyond that wait in order, at most --acquire-timeout. With N instances the server must allow N times the capacity.",
		[]option{
			{"connpool_global_capacity", "N", "server connections per target"},
			{"connpool_max_idle", "N", "of these, how many may idle; 0 = all"},
			{"connpool_max_waiters", "N", "waiting clients per database and user"},
			{"acquire_timeout", "DURATION", "the longest wait for a server connection; 0 = no limit"},
			{"connpool_user_regular_idle_timeout", "DURATION", "close a server connection that idled this long; 0 = never"},
			{"connpool_user_regular_max_lifetime", "DURATION", "close a server connection at this age, spread; 0 = never"},
			{"connpool_user_reserved_inactivity_timeout", "DURATION", "end a client that idles inside a transaction (25P03); 0 = never"},
			{"connpool_inactive_timeout", "DURATION", "forget the pool of a database and user that nobody used"},
			{"max_clients", "N", "connected clients"},
			{"max_unauthenticated_clients", "N", "of these, how many may still be logging in"},
			{"client_login_timeout", "DURATION", "to finish logging in"},
			{"client_idle_timeout", "DURATION", "end a client that idles outside a transaction; 0 = never"},
			{"client_stall_timeout", "DURATION", "end a client that takes nothing of its result; 0 = never"},
			{"cancel_timeout", "DURATION", "to pass a cancel request on to a server"},
			{"cancel_concurrency", "N", "cancel requests on their way at the same time"},
		},
	},
	{
		"Running",
		"SIGTERM or SIGINT drains: after --drain-delay new clients are refused, transactions may end until --drain-timeout. A second signal cuts at once. Exit codes: 0 drained, 1 configuration or start failed, 2 drained with sessions cut. SIGHUP reads the configuration again, and so does a change of the file; a configuration with a mistake is refused whole.",
		[]option{
			{"config", "FILE", "configuration in YAML: the names of the flags with '_' for '-'"},
			{"event_loops", "N", "threads that move data; 0 = one per core"},
			{"event_loop_read_buffer", "SIZE", "bytes read at a time by a loop"},
			{"event_loop_high_water", "SIZE", "bytes waiting for a slow reader at which its sender is no longer read"},
			{"drain_delay", "DURATION", "serve on after the signal, while load balancers take notice"},
			{"drain_timeout", "DURATION", "how long transactions may take to end; 0 = cut at once"},
			{"log_level", "LEVEL", "debug, info, warn or error"},
			{"log_format", "FORMAT", "console or json; default: console on a terminal, else json"},
			{"service_name", "NAME", "this instance's name, a label of multipooler_build_info; default: the host name"},
		},
	},
}

// helpWidth is the width of a wrapped line.
const helpWidth = 96

// Help is the manual's text: every flag with its default.
func Help() string {
	var b strings.Builder
	def := fields(Default())
	for _, s := range manual {
		fmt.Fprintf(&b, "%s\n", strings.ToUpper(s.title))
		wrap(&b, "  ", s.prose)
		b.WriteByte('\n')
		for _, o := range s.options {
			f, _ := find(def, o.key)
			fmt.Fprintf(&b, "  --%s %s", flagName(o.key), o.arg)
			if d := f.text(); d != "" {
				fmt.Fprintf(&b, " (%s)", d)
			}
			b.WriteByte('\n')
			wrap(&b, "      ", strings.Join(append([]string{o.text}, f.seeds...), "; also as "))
		}
		b.WriteByte('\n')
	}
	b.WriteString("EVERY SETTING HAS THREE NAMES\n")
	wrap(&b, "  ", "--acquire-timeout, the environment variable MULTIPOOLER_ACQUIRE_TIMEOUT, and acquire_timeout in the file. A flag wins over MULTIPOOLER_*, this over a predecessor's variable (DB_*), this over the file, this over the default. Durations are 30s, 1h30m, 250ms, 0; sizes 64KiB, 16MiB. Secrets in the file may be env:NAME or a password_file. `multipooler config` prints what is in force and why, `multipooler check` every mistake with its place.")
	return b.String()
}

func wrap(b *strings.Builder, indent, text string) {
	width := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case width == 0:
			b.WriteString(indent)
			width = len(indent)
		case width+1+len(word) > helpWidth:
			b.WriteString("\n" + indent)
			width = len(indent)
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += len(word)
	}
	b.WriteByte('\n')
}
