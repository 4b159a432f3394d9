// Package endtoend holds no code: its tests run real clients through the built
// multipooler against a PostgreSQL of their own. One file is one subject:
//
//	psql_test.go       psql; pgbench_test.go and pgdump_test.go likewise
//	pgx_test.go        pgx in all its modes
//	psycopg_test.go    psycopg 3
//	frontend_*.go      sockets, TLS, authentication, startup packets
//	backend_*.go       logins to the server, its restarts
//	session_*.go       what leaks and what does not, cancel, clients that go away
//	operations_*.go    signals, probes, metrics, console, reload
//	oracle_test.go     markers and budget under churn
//	big_test.go        results and copies of any size in bounded memory
package endtoend
