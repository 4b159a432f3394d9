package pgserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The cache folder holds, per user of the machine:
//
//	lock            held while a template is made, a folder is created or swept
//	t-15-1a2b3c4d/  a data folder fresh from initdb, copied per server
//	s-123456/       one server: lock (held by the owner and its postmaster), data, sock, tls
//
// A folder whose lock nobody holds belongs to a process that was killed.
const (
	cacheName   = "multipooler-pg"
	templateTTL = 24 * time.Hour // unused templates of other versions go
	roomNeeded  = 1 << 30        // shared memory is used only where this much is free
)

// CacheDir is the folder that templates and servers live in. It is safe to
// remove when no test runs.
func CacheDir() string {
	base := os.TempDir()
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) == nil && st.Bavail*uint64(st.Bsize) >= roomNeeded && unix.Access("/dev/shm", unix.W_OK) == nil {
		base = "/dev/shm"
	}
	return filepath.Join(base, fmt.Sprintf("%s-%d", cacheName, os.Geteuid()))
}

// makeCacheDir refuses a folder that somebody else put there: on a shared
// machine its owner could swap the data under a server.
func makeCacheDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a folder of user %d that only it may write to: remove it", dir, os.Geteuid())
	}
	return nil
}

// lockFile waits for the lock on path; closing the file gives it back. The
// kernel does so when every process that inherited it is gone.
func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// folder is one server's place on disk.
type folder struct {
	path string
	lock *os.File
}

func (f folder) data() string { return filepath.Join(f.path, "data") }
func (f folder) sock() string { return filepath.Join(f.path, "sock") }
func (f folder) tls() string  { return filepath.Join(f.path, "tls") }

func (f folder) remove() error {
	err := os.RemoveAll(f.path)
	return errors.Join(err, f.lock.Close())
}

// newFolder makes a server's folder with a filled data folder, owned by acct.
func newFolder(ctx context.Context, b Binaries, o Options, acct account) (_ folder, err error) {
	cache := o.Dir
	if cache == "" {
		cache = CacheDir()
	}
	guard, err := enter(cache)
	if err != nil {
		return folder{}, err
	}
	defer guard.Close()
	sweep(cache)

	var template string
	if !o.NoTemplate {
		if template, err = makeTemplate(ctx, cache, b, acct); err != nil {
			return folder{}, err
		}
	}
	path, err := os.MkdirTemp(cache, "s-")
	if err != nil {
		return folder{}, err
	}
	lock, err := lockFile(filepath.Join(path, "lock"), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return folder{}, errors.Join(err, os.RemoveAll(path))
	}
	f := folder{path, lock}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.remove())
		}
	}()
	for dir, mode := range map[string]os.FileMode{f.path: 0o711, f.sock(): 0o755, f.tls(): 0o755} {
		if err := errors.Join(os.MkdirAll(dir, mode), os.Chmod(dir, mode)); err != nil {
			return f, err
		}
	}
	if err := acct.own(f.sock()); err != nil {
		return f, err
	}
	if template != "" {
		return f, copyTree(f.data(), template, acct)
	}
	return f, initdb(ctx, f.data(), b, acct)
}

// enter makes the cache folder and takes its lock. The lock that we waited for
// may have been removed with the folder by then (leave), so it counts only
// while it still is the one on disk.
func enter(cache string) (*os.File, error) {
	for {
		if err := makeCacheDir(cache); err != nil {
			return nil, err
		}
		path := filepath.Join(cache, "lock")
		lock, err := lockFile(path, unix.LOCK_EX)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		held, err := lock.Stat()
		if err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		if onDisk, err := os.Stat(path); err == nil && os.SameFile(held, onDisk) {
			return lock, nil
		}
		lock.Close()
	}
}

// leave removes the cache folder when nothing but the lock is left in it.
func leave(cache string) error {
	lock, err := enter(cache)
	if err != nil {
		return err
	}
	defer lock.Close()
	entries, err := os.ReadDir(cache)
	if err != nil || len(entries) > 1 {
		return err
	}
	return os.RemoveAll(cache)
}

// sweep removes what killed processes left and templates nobody used lately.
func sweep(cache string) {
	entries, _ := os.ReadDir(cache)
	for _, e := range entries {
		path := filepath.Join(cache, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "s-"):
			lock, err := lockFile(filepath.Join(path, "lock"), unix.LOCK_EX|unix.LOCK_NB)
			if err != nil {
				continue // in use
			}
			removeSharedMemory(filepath.Join(path, "data"))
			os.RemoveAll(path)
			lock.Close()
		case strings.HasPrefix(e.Name(), "new-"):
			os.RemoveAll(path) // an initdb that was killed; ours would hold the lock
		case strings.HasPrefix(e.Name(), "t-"):
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > templateTTL {
				os.RemoveAll(path)
			}
		}
	}
}

var initdbArgs = []string{
	"--username=" + Superuser, "--auth=trust", "--encoding=UTF8", "--locale=C",
	"--no-sync", "--wal-segsize=1", // small files: a copy takes 60 ms on shared memory
}

// makeTemplate returns the template for these binaries, made at the first
// call on the machine. The caller holds the cache's lock.
func makeTemplate(ctx context.Context, cache string, b Binaries, acct account) (string, error) {
	key := sha256.Sum256(fmt.Append(nil, b, initdbArgs, acct.uid))
	path := filepath.Join(cache, fmt.Sprintf("t-%d-%x", b.Major, key[:4]))
	if _, err := os.Stat(path); err == nil {
		now := time.Now()
		return path, os.Chtimes(path, now, now)
	}
	tmp, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o711); err != nil {
		return "", err
	}
	if err := initdb(ctx, filepath.Join(tmp, "data"), b, acct); err != nil {
		return "", err
	}
	return path, os.Rename(filepath.Join(tmp, "data"), path)
}

func initdb(ctx context.Context, data string, b Binaries, acct account) error {
	if err := errors.Join(os.Mkdir(data, 0o700), acct.own(data)); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.Dir, "initdb"), append([]string{"--pgdata=" + data}, initdbArgs...)...)
	cmd.Dir = "/" // our own working folder may be closed to acct
	cmd.Env = environment()
	cmd.SysProcAttr = acct.attr()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb as user %d: %w\n%s", acct.uid, err, out)
	}
	return nil
}

// copyTree copies a data folder that no server runs on.
func copyTree(to, from string, acct account) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			err = os.Mkdir(target, 0o700)
		} else {
			err = copyFile(target, path)
		}
		if err != nil {
			return err
		}
		return acct.own(target)
	})
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
