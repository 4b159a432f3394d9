package pooler

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/test/pgtest"
)

func TestIdleServerConnectionsGoAfterTheirTimeout(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--connpool-user-regular-idle-timeout", "1s")
	c := connect(t, r.addressOf("app", pg.Password("app"), "app"))
	exec(t, c, "select 1")
	eventually(t, "the idle connection is closed", func() bool { return r.targets[0].arb.Stats().Held() == 0 })
	if n := r.targets[0].arb.Stats().Totals.Expired; n != 1 {
		t.Errorf("%d connections expired, want 1", n)
	}
	exec(t, c, "select 1")
}

func TestNoMoreServerConnectionsIdleThanAllowed(t *testing.T) {
	pg := pgtest.Shared(t)
	r := run(t, pg.URL("app", "app"), "--connpool-global-capacity", "4", "--connpool-max-idle", "1")
	var all []*pgconn.PgConn
	for range 4 {
		c := connect(t, r.addressOf("app", pg.Password("app"), "app"))
		exec(t, c, "begin")
		all = append(all, c)
	}
	for _, c := range all {
		exec(t, c, "commit")
	}
	eventually(t, "one of four stays", func() bool {
		c := r.targets[0].arb.Stats().Counts
		return c.Held() == 1 && c.Idle == 1
	})
}

func TestAUnixSocketHasThePermissionsOfTheFlag(t *testing.T) {
	pg := pgtest.Shared(t)
	for _, mode := range []string{"0700", "0770"} {
		dir := t.TempDir()
		run(t, pg.URL("app", "app"), "--listen", dir+":7000", "--unix-socket-mode", mode)
		st, err := os.Stat(filepath.Join(dir, ".s.PGSQL.7000"))
		if err != nil {
			t.Fatal(err)
		}
		if want := "S" + map[string]string{"0700": "rwx------", "0770": "rwxrwx---"}[mode]; st.Mode().String() != want {
			t.Errorf("got %v, want %s", st.Mode(), want)
		}
	}
}

// A server that works for ever, never answers a cancel request and never ends
// its connection costs its slot for two quarantines, not for ever.
func TestAServerThatNeverEndsCostsItsSlotForTheQuarantine(t *testing.T) {
	welcome := append(message('R', "\x00\x00\x00\x00"), message('S', "server_version\x0017.0\x00")...)
	welcome = append(append(welcome, message('K', "\x00\x00\x00\x01\x00\x00\x00\x02")...), message('Z', "I")...)
	cancels := make(chan struct{}, 100)
	addr := hostile(t, func(conn net.Conn) {
		buf := make([]byte, 1024)
		n, _ := conn.Read(buf)
		if bytes.HasPrefix(buf[:n], []byte{0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e}) {
			cancels <- struct{}{}
			_, _ = io.Copy(io.Discard, conn)
			return // at the end of multipooler's patience
		}
		_, _ = conn.Write(welcome)
		for { // its end is not noticed
			if _, err := conn.Read(buf); err != nil {
				break
			}
		}
		select {
		case <-time.After(20 * time.Second):
		case <-t.Context().Done():
		}
	})
	const quarantine = 300 * time.Millisecond
	r := run(t, "postgres://app:secret@"+addr+"/app?sslmode=disable", "--auth-type", "trust",
		"--server-quarantine-timeout", quarantine.String(), "--cancel-timeout", "200ms")
	conn := rawClient(t, r.addr)
	if _, err := conn.Write(protocol.AppendQuery(nil, "select for_ever()")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { return r.targets[0].arb.Stats().Active == 1 })
	began := time.Now()
	conn.Close()
	eventually(t, "the slot is free", func() bool { return r.targets[0].arb.Stats().Held() == 0 })
	if took := time.Since(began); took < 2*quarantine {
		t.Errorf("the slot was free after %v, want at least %v", took, 2*quarantine)
	}
	if len(cancels) == 0 {
		t.Error("the statement was not cancelled")
	}
	eventually(t, "the cancel request has failed at its timeout", func() bool { return r.Totals().Cancels["failed"] == 1 })
}
