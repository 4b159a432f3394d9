package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
)

// Bounds on a user list.
const (
	maxUserlist = 16 << 20 // bytes of file; at 100 bytes a line about 160,000 users
	// maxUser is four times PostgreSQL's NAMEDATALEN: names beyond 63 bytes can
	// only reach servers that are not PostgreSQL.
	maxUser = 255
)

// Lookuper finds a user's secret. Lookup is called on an event loop: it must not
// block.
type Lookuper interface {
	Lookup(user string) (Secret, bool)
}

// Userlist is an immutable snapshot of users and secrets, safe for any number of
// goroutines. A reload makes a new one; logins under way finish with the old.
type Userlist struct {
	users map[string]Secret
	mock  Mock
	plain []namedEntry // those that PBKDF2 will be due for
	cold  atomic.Int64 // plain[:cold] are derived
}

type namedEntry struct {
	user string
	e    *entry
}

// Mock says how users look in general, so that a login as a user who does not
// exist can look the same. The zero Mock is PostgreSQL's default.
type Mock struct {
	Iterations int  // 0: 4096
	SaltLen    int  // bytes; 0: 16
	SCRAM      bool // under method md5: pretend a SCRAM verifier rather than md5
}

// Single is the list of one user with a plain-text password.
func Single(user, password string) (*Userlist, error) {
	return Plain(map[string]string{user: password})
}

// Plain is a list of users with plain-text passwords: text that looks like a hash
// is still a password here.
func Plain(passwords map[string]string) (*Userlist, error) {
	users := make(map[string]Secret, len(passwords))
	for user, password := range passwords {
		if err := checkUser(user); err != nil {
			return nil, err
		}
		s, err := PlainSecret(password)
		if err != nil {
			return nil, err
		}
		users[user] = s
	}
	return newUserlist(users), nil
}

// LoadUserlist reads the file; see ParseUserlist.
func LoadUserlist(path string, previous *Userlist) (*Userlist, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open user list: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxUserlist+1))
	if err != nil {
		return nil, fmt.Errorf("read user list: %w", err)
	}
	return ParseUserlist(path, data, previous)
}

// ParseUserlist reads PgBouncer's userlist.txt: lines of `"user" "secret"`, a
// quote inside is doubled, further quoted columns are ignored (old PostgreSQL's
// pg_auth files have them), a line may be empty or a comment starting with ; or #
// (as may the rest of a line). Secrets are what ParseSecret reads; the empty one
// means that the user has no password. A user may occur only once.
//
// Where PgBouncer guesses on, this refuses: anything else on a line is an error,
// reported as file:line without quoting the line, since it may hold a password.
//
// Users whose secret is the same in previous (which may be nil) keep the keys
// derived from it.
func ParseUserlist(file string, data []byte, previous *Userlist) (*Userlist, error) {
	if len(data) > maxUserlist {
		return nil, fmt.Errorf("%s: more than %d bytes", file, maxUserlist)
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // byte order mark
	users := make(map[string]Secret)
	lineOf := make(map[string]int)
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		user, text, found, err := parseLine(strings.TrimRight(line, "\r\n"))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, number, err)
		}
		if !found {
			continue
		}
		if first, dup := lineOf[user]; dup {
			return nil, fmt.Errorf("%s:%d: user %q is already in line %d", file, number, user, first)
		}
		lineOf[user] = number
		s, err := ParseSecret(text)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: user %q: %w", file, number, user, err)
		}
		if previous != nil {
			if old, ok := previous.users[user]; ok && old.same(s) {
				s = old
			}
		}
		users[user] = s
	}
	return newUserlist(users), nil
}

func parseLine(line string) (user, text string, found bool, err error) {
	rest := skipBlanks(line)
	if rest == "" || rest[0] == ';' || rest[0] == '#' {
		return "", "", false, nil
	}
	if strings.IndexByte(rest, 0) >= 0 {
		return "", "", false, errors.New("NUL byte")
	}
	if user, rest, err = quoted(rest, "user name"); err != nil {
		return "", "", false, err
	}
	if err = checkUser(user); err != nil {
		return "", "", false, err
	}
	if rest = skipBlanks(rest); rest == "" {
		return "", "", false, errors.New("password missing: want \"user\" \"password\"")
	}
	if text, rest, err = quoted(rest, "password"); err != nil {
		return "", "", false, err
	}
	for {
		rest = skipBlanks(rest)
		if rest == "" || rest[0] == ';' || rest[0] == '#' {
			return user, text, true, nil
		}
		if _, rest, err = quoted(rest, "further column"); err != nil {
			return "", "", false, fmt.Errorf("text after the password (a quote inside it must be doubled): %w", err)
		}
	}
}

// quoted cuts one quoted column off the text. The column must end at a blank,
// a comment or the end of the line.
func quoted(text, what string) (value, rest string, err error) {
	if text[0] != '"' {
		return "", "", fmt.Errorf("%s does not begin with a double quote", what)
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		if text[i] != '"' {
			b.WriteByte(text[i])
			continue
		}
		if i+1 < len(text) && text[i+1] == '"' {
			b.WriteByte('"')
			i++
			continue
		}
		return b.String(), text[i+1:], nil
	}
	return "", "", fmt.Errorf("%s has no closing double quote", what)
}

func skipBlanks(s string) string { return strings.TrimLeft(s, " \t\v\f") }

func checkUser(user string) error {
	switch {
	case user == "":
		return errors.New("empty user name")
	case len(user) > maxUser:
		return fmt.Errorf("user name has %d bytes, more than %d", len(user), maxUser)
	case strings.IndexByte(user, 0) >= 0:
		return errors.New("user name contains a NUL byte")
	}
	return nil
}

func newUserlist(users map[string]Secret) *Userlist {
	u := &Userlist{users: users}
	looks := make(map[Mock]int) // how many users look like this; SCRAM unused here
	verifiers := 0
	for _, name := range slices.Sorted(maps.Keys(users)) {
		s := users[name]
		switch s.Kind() {
		case KindPlain:
			u.plain = append(u.plain, namedEntry{name, s.e})
			looks[Mock{Iterations: defaultIterations, SaltLen: plainSaltLen}]++
		case KindSCRAM, KindKeys:
			verifiers++
			looks[Mock{Iterations: s.e.verifier.iterations, SaltLen: len(s.e.verifier.salt)}]++
		}
	}
	best := 0
	for m, n := range looks {
		if n > best || n == best && (m.Iterations < u.mock.Iterations ||
			m.Iterations == u.mock.Iterations && m.SaltLen < u.mock.SaltLen) {
			u.mock, best = m, n
		}
	}
	u.mock.SCRAM = verifiers > len(users)-verifiers
	return u
}

// Lookup finds the user's secret. It never blocks.
func (u *Userlist) Lookup(user string) (Secret, bool) {
	s, ok := u.users[user]
	return s, ok
}

// Len is the number of users.
func (u *Userlist) Len() int { return len(u.users) }

// Names are the users in order.
func (u *Userlist) Names() []string { return slices.Sorted(maps.Keys(u.users)) }

// Mock is how most of the users look.
func (u *Userlist) Mock() Mock { return u.mock }

// Format keeps the list out of every print-out.
func (u *Userlist) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "userlist of %d", len(u.users)) }

// Warm derives the keys of all plain-text entries, up to a millisecond of CPU
// each, until ctx ends. Without it each one's first login pays. key is that of
// the logins (nil: the default).
//
// Until a list is warm, the time of a first login tells a user with a plain-text
// password from one with a verifier; a user who does not exist is made to look
// like the former (see coldEntry). Afterwards there is nothing to tell.
func (u *Userlist) Warm(ctx context.Context, key *ProcessKey) error {
	if key == nil {
		key = defaultKey()
	}
	for _, p := range u.plain {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.e.serverKeysFor(key.salt(nil, p.user, plainSaltLen))
	}
	return nil
}

// coldEntry is a plain-text entry whose keys are still to be derived, or nil. A
// login as a user who does not exist derives these, and so takes as long as a
// first login does; the work is useful and bounded by the list, so that it is no
// lever for an attacker.
func (u *Userlist) coldEntry() *namedEntry {
	for {
		i := u.cold.Load()
		if i >= int64(len(u.plain)) {
			return nil
		}
		if u.plain[i].e.derived.Load() == nil {
			return &u.plain[i]
		}
		u.cold.CompareAndSwap(i, i+1)
	}
}
