package pgserver

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// account is who PostgreSQL runs as. PostgreSQL refuses to run as root, so
// root drops to the package's user, or to nobody.
type account struct {
	uid, gid int
	drop     bool // we are root
}

const nobody = 65534 // where /etc/passwd is missing, as in small containers

func serverAccount() account {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		if errUID == nil && errGID == nil && uid != 0 {
			return account{uid: uid, gid: gid, drop: true}
		}
	}
	return account{uid: nobody, gid: nobody, drop: true}
}

// own gives a file of ours to the account.
func (a account) own(path string) error {
	if !a.drop {
		return nil
	}
	if err := os.Chown(path, a.uid, a.gid); err != nil {
		return fmt.Errorf("give to the server's user: %w", err)
	}
	return nil
}

// attr puts a child under the account, in a process group of its own (Ctrl-C
// in a terminal is for us, we stop the server), and has the kernel send it an
// immediate shutdown when the thread that starts it ends.
func (a account) attr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	if a.drop {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}
