package pgserver

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Superuser is trusted on the unix socket and cannot log in over TCP.
const Superuser = "postgres"

// Options of a server. The zero value is a server with user and database
// "app" (password DefaultPassword) that asks for SCRAM over TCP.
type Options struct {
	// Settings go to postgresql.conf, over the defaults of this package. Keep
	// log_min_messages at a level that prints LOG: readiness is read there.
	Settings map[string]string
	// Users to create; nil means one user "app". Their pg_hba.conf lines are
	// generated from Hash.
	Users []User
	// Databases to create, owned by the first user; nil means one, "app".
	Databases []string
	// HBA lines are put in front of the generated ones (after the superuser's),
	// so they win.
	HBA []string
	// TLS makes a CA and a server certificate and switches ssl on. Client
	// certificates come from Server.Certs.
	TLS bool
	// Port to listen on; 0 takes a free one.
	Port int
	// Dir is where the server's folder is made; "" is the cache folder on
	// shared memory, or in the temporary folder where that is small.
	Dir string
	// NoTemplate runs initdb in place and leaves no template behind.
	NoTemplate bool
}

// DefaultPassword is the password of a User that names none.
const DefaultPassword = "app secret: ü'%/"

// User is a role that may log in.
type User struct {
	Name     string
	Password string // "" is DefaultPassword
	Hash     Hash   // how the server stores the password, "" is SCRAM
	Options  string // more words for CREATE ROLE, such as "SUPERUSER" or "CONNECTION LIMIT 3"
}

// Hash is a value of PostgreSQL's password_encryption; it is also the method
// in pg_hba.conf, since md5 hashes cannot answer SCRAM.
type Hash string

// The password hashes of PostgreSQL.
const (
	SCRAM Hash = "scram-sha-256"
	MD5   Hash = "md5"
)

func (o Options) withDefaults() Options {
	if o.Users == nil {
		o.Users = []User{{Name: "app"}}
	}
	if o.Databases == nil {
		o.Databases = []string{"app"}
	}
	o.Users = slices.Clone(o.Users)
	for i := range o.Users {
		o.Users[i].Password = cmp.Or(o.Users[i].Password, DefaultPassword)
		o.Users[i].Hash = cmp.Or(o.Users[i].Hash, SCRAM)
	}
	return o
}

// defaults make a small server that forgets everything at a power cut.
func defaults() map[string]string {
	return map[string]string{
		"listen_addresses":   "127.0.0.1",
		"fsync":              "off",
		"synchronous_commit": "off",
		"full_page_writes":   "off",
		"shared_buffers":     "32MB",
		"max_wal_size":       "256MB",
		"autovacuum":         "off",
		"huge_pages":         "off",
		"jit":                "off",
		"logging_collector":  "off",
		"log_destination":    "stderr",
		"log_line_prefix":    "%m [%p] %q%u@%d ",
		"log_timezone":       "UTC",
		"timezone":           "UTC",
		"lc_messages":        "C",
		// Segments in the data folder instead of /dev/shm/PostgreSQL.*, which
		// nobody would remove after a kill.
		"dynamic_shared_memory_type": "mmap",
	}
}

func confFile(own, user map[string]string) string {
	all := defaults()
	maps.Copy(all, own)
	maps.Copy(all, user)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(all[name]))
	}
	return b.String()
}

func hbaFile(o Options) string {
	lines := []string{"local all " + Superuser + " trust", "local replication " + Superuser + " trust"}
	lines = append(lines, o.HBA...)
	for _, u := range o.Users {
		lines = append(lines,
			fmt.Sprintf("local all %s %s", quoteHBA(u.Name), u.Hash),
			fmt.Sprintf("host all %s all %s", quoteHBA(u.Name), u.Hash),
			fmt.Sprintf("host replication %s all %s", quoteHBA(u.Name), u.Hash))
	}
	// Users that a test creates later.
	lines = append(lines, "local all all scram-sha-256", "host all all all scram-sha-256")
	return strings.Join(lines, "\n") + "\n"
}

// quoteHBA keeps keywords (all, sameuser) and odd characters from being read
// as anything but a name.
func quoteHBA(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
