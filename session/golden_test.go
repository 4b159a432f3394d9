package session

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/protocol"
)

var update = flag.Bool("update", false, "rewrite the golden transcripts")

// A transcript is a text file: lines at the margin are what happens, indented
// lines are what comes of it. With -update the indented lines are written anew;
// the diff is the review.
//
//	session 1 mode=transaction app=psql set TimeZone=UTC   a client, authenticated, and its startup settings
//	use 1                     the session that the next lines are about
//	start known | start       the login ends; known: with the parameters of a bare server connection;
//	                          start quiet: the same, without printing the welcome
//	grants A wait refuse:53300:text   answers to the borrows to come; without any, an idle or new server connection
//	granted A | refused 53300 "text"  the answer to a borrow that waits
//	client> Query "select 1" | Sync   bytes of the client, in one delivery
//	server> ReadyForQuery I           bytes of the server connection that the session holds
//	server A> …                       of the named one; "settling" is the one that is being settled
//	client eof | server eof           the end of a connection
//	kill 57P01 "text" | cancel        what others do to the session
//	move                      the session is turned into JSON and back
//	state                     prints the state of the session
//
// Messages split at other places must have the same outcome: each transcript is
// run again with single bytes and with random pieces. A transcript in which the
// pieces matter says "# whole".
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runTranscript(t, string(want), nil)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Fatalf("got:\n%s", firstDifference(got, string(want)))
			}
			if strings.Contains(got, "# whole\n") {
				return
			}
			splits := map[string]func(n int) int{"single bytes": func(int) int { return 1 }}
			for seed := range uint64(12) {
				rng := rand.New(rand.NewPCG(seed, 1))
				splits[fmt.Sprintf("random pieces, seed %d", seed)] = func(n int) int { return 1 + rng.IntN(n) }
			}
			for name, split := range splits {
				if again := byPeer(runTranscript(t, got, split)); again != byPeer(got) {
					t.Errorf("%s:\n%s", name, firstDifference(again, byPeer(got)))
				}
			}
		})
	}
}

// byPeer groups what comes of each line by whom it is for: how the bytes are cut
// may change which peer hears first, not what it hears.
func byPeer(transcript string) string {
	var out, group []string
	peer := func(line string) string { p, _, _ := strings.Cut(line, ": "); return p }
	flush := func() {
		slices.SortStableFunc(group, func(a, b string) int { return strings.Compare(peer(a), peer(b)) })
		out, group = append(out, group...), nil
	}
	for line := range strings.SplitSeq(transcript, "\n") {
		if strings.HasPrefix(line, "  ") {
			group = append(group, line)
			continue
		}
		flush()
		out = append(out, line)
	}
	flush()
	return strings.Join(out, "\n")
}

// firstDifference shows the lines of got around the first that differs.
func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	i := 0
	for i < len(g) && i < len(w) && g[i] == w[i] {
		i++
	}
	return strings.Join(g[max(0, i-6):i], "\n") + "\n-" + at(w, i) + "\n+" + at(g, i)
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(end)"
}

// world is what a transcript acts on.
type world struct {
	t       testing.TB
	out     strings.Builder
	quiet   bool
	split   func(n int) int // how long the next piece is, of n bytes; nil: all
	clients map[string]*client
	now     *client // the session that the lines are about
	order   []string
	servers map[string]*backend
	answers []string // to the borrows to come
	interns Interner
}

// client is a session with its fake host and the event loop's buffer.
type client struct {
	w         *world
	name      string
	sess      *Session
	pending   []byte // bytes that the session has not taken
	redeliver bool
	ended     bool
	toClient  stream
	held      *backend
}

// backend is a fake server connection.
type backend struct {
	name     string
	sv       *Server
	pending  []byte
	holder   *client
	idle     bool
	settling bool
	gone     bool
	toServer stream
}

func runTranscript(t testing.TB, script string, split func(n int) int) string {
	w := &world{t: t, split: split, clients: map[string]*client{}, servers: map[string]*backend{}}
	for line := range strings.SplitSeq(strings.TrimSuffix(script, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		w.out.WriteString(line + "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		w.do(line)
		w.leftovers()
	}
	return w.out.String()
}

func (w *world) print(format string, args ...any) {
	if !w.quiet {
		fmt.Fprintf(&w.out, "  "+format+"\n", args...)
	}
}

// leftovers prints messages that have been begun and not completed.
func (w *world) leftovers() {
	for _, c := range w.clients {
		if s := c.toClient.left(); s != "" {
			w.print("to client%s: %s so far", c.label(), s)
		}
	}
	for _, name := range w.order {
		if s := w.servers[name].toServer.left(); s != "" {
			w.print("to server%s: %s so far", w.servers[name].label(), s)
		}
	}
}

func (c *client) label() string {
	if c.name == "1" {
		return ""
	}
	return " " + c.name
}

func (b *backend) label() string {
	if b.name == "A" {
		return ""
	}
	return " " + b.name
}

func (w *world) do(line string) {
	w.t.Helper()
	if rest, ok := strings.CutPrefix(line, "client> "); ok {
		w.clientBytes(encodeClient(w.t, rest))
		return
	}
	if rest, ok := strings.CutPrefix(line, "client part "); ok { // client part N> …: the first N bytes
		n, text, _ := strings.Cut(rest, "> ")
		w.clientBytes(encodeClient(w.t, text)[:number(w.t, n)])
		return
	}
	if rest, ok := strings.CutPrefix(line, "client rest "); ok { // client rest N> …: all but the first N bytes
		n, text, _ := strings.Cut(rest, "> ")
		w.clientBytes(encodeClient(w.t, text)[number(w.t, n):])
		return
	}
	if strings.HasPrefix(line, "server") && strings.Contains(line, "> ") {
		head, rest, _ := strings.Cut(line, "> ")
		f := strings.Fields(head)
		b := w.now.held
		if len(f) > 1 && f[1] != "part" && f[1] != "rest" {
			b = w.servers[f[1]]
			for _, other := range w.servers {
				if f[1] == "settling" && other.settling {
					b = other
				}
			}
			f = slices.Delete(f, 1, 2)
		}
		if b == nil {
			w.t.Fatalf("%s\n%s: no server connection", w.out.String(), line)
		}
		p := encodeServer(w.t, rest)
		switch {
		case len(f) > 2 && f[1] == "part":
			p = p[:number(w.t, f[2])]
		case len(f) > 2 && f[1] == "rest":
			p = p[number(w.t, f[2]):]
		}
		w.serverBytes(b, p)
		return
	}
	f := words(w.t, line)
	switch f[0] {
	case "session":
		w.session(f[1], f[2:])
	case "use":
		w.now = w.clients[f[1]]
	case "start":
		var known *Params
		if len(f) > 1 {
			known = bareParams()
		}
		w.quiet = len(f) > 1 && f[1] == "quiet"
		w.now.sess.Start(known)
		w.quiet = false
		w.pump()
	case "grants":
		w.answers = append(w.answers, f[1:]...)
	case "granted":
		b := w.server(f[1])
		w.lend(w.now, b)
		w.now.sess.Granted(b.sv)
		w.pump()
	case "refused":
		w.now.sess.Refused(&protocol.Error{Code: f[1], Message: f[2]})
		w.pump()
	case "client":
		w.now.sess.ClientEnded(io.EOF)
	case "server":
		b := w.now.held
		if len(f) > 2 {
			b = w.servers[f[1]]
		}
		b.gone = true
		if b.holder != nil {
			b.holder.sess.ServerEnded(io.EOF)
		}
		w.pump()
	case "kill":
		w.now.sess.Kill(EndKilled, &protocol.Error{Code: f[1], Message: f[2]})
	case "cancel":
		w.print("cancelled %v", w.now.sess.CancelWaiting())
		w.pump()
	case "move":
		w.now.move()
	case "state":
		w.print("%s", w.now.describe())
	default:
		w.t.Fatalf("unknown line %q", line)
	}
}

func bareParams() *Params {
	var p *Params
	for _, s := range []Setting{
		{"application_name", ""}, {"client_encoding", "UTF8"}, {"standard_conforming_strings", "on"}, {"TimeZone", "UTC"},
	} {
		p = p.With(s.Name, s.Value)
	}
	return p
}

func (w *world) session(name string, opts []string) {
	st := State{ID: uint64(number(w.t, name)), User: "u", Database: "d", CancelPID: 42, CancelKey: []byte("key1")}
	for i, o := range opts {
		k, v, _ := strings.Cut(o, "=")
		switch {
		case i > 0 && slices.Contains(opts[:i], "set"):
			st.Startup = append(st.Startup, Setting{k, v})
		case k == "mode":
			st.Mode = map[string]Mode{"transaction": ModeTransaction, "session": ModeSession, "statement": ModeStatement}[v]
		case k == "app":
			st.AppName = v
		case k != "set":
			w.t.Fatalf("unknown option %q", o)
		}
	}
	c := &client{w: w, name: name, toClient: stream{text: serverText}}
	c.sess = New(Config{State: st, Host: c, Settings: w.interns.Intern(st.Startup)})
	w.clients[name], w.now = c, c
}

func (w *world) server(name string) *backend {
	b := w.servers[name]
	if b == nil {
		b = &backend{name: name, sv: NewServer(bareParams()), idle: true, toServer: stream{text: clientText}}
		w.servers[name] = b
		w.order = append(w.order, name)
	}
	return b
}

// free is an idle server connection, or a new one.
func (w *world) free() *backend {
	for _, name := range w.order {
		if b := w.servers[name]; b.idle && !b.gone {
			return b
		}
	}
	return w.server(string(rune('A' + len(w.order))))
}

func (w *world) lend(c *client, b *backend) {
	if !b.idle || b.gone {
		w.t.Fatalf("server connection %s is not idle", b.name)
	}
	if !b.sv.Reusable() {
		w.t.Fatalf("server connection %s is idle and not reusable", b.name)
	}
	b.idle, b.holder, c.held = false, c, b
}

func (w *world) pieces(p []byte, each func(p []byte)) {
	for len(p) > 0 {
		n := len(p)
		if w.split != nil && n < 4096 { // long ones would take for ever
			n = w.split(n)
		}
		each(p[:n])
		p = p[n:]
	}
}

func (w *world) clientBytes(p []byte) {
	c := w.now
	w.pieces(p, func(p []byte) {
		if c.ended {
			return
		}
		c.pending = append(c.pending, p...)
		c.redeliver = true
		w.pump()
	})
}

// serverBytes delivers bytes of a server connection to its holder, or as the
// pooler does it to the settling or idle connection itself.
func (w *world) serverBytes(b *backend, p []byte) {
	w.pieces(p, func(p []byte) {
		if b.gone {
			return
		}
		b.pending = append(b.pending, p...)
		given := slices.Clone(b.pending)
		var n int
		if c := b.holder; c != nil {
			n = c.sess.FromServer(given)
		} else {
			var err error
			if n, err = b.sv.Feed(given); err != nil {
				w.print("server%s: %v", b.label(), err)
				b.gone = true
			}
		}
		for i := range given {
			given[i] = 0xdd // nothing may be kept of it
		}
		b.pending = b.pending[n:]
		if b.holder == nil && b.settling && len(b.pending) == 0 {
			w.settle(b)
		}
		w.pump()
	})
}

// pump delivers again what sessions have asked for.
func (w *world) pump() {
	for again := true; again; {
		again = false
		for _, c := range w.clients {
			if !c.redeliver || c.ended {
				continue
			}
			c.redeliver, again = false, true
			given := slices.Clone(c.pending)
			n := c.sess.FromClient(given)
			for i := range given {
				given[i] = 0xdd
			}
			c.pending = c.pending[n:]
		}
	}
}

func (w *world) settle(b *backend) {
	send, outcome := b.sv.Settle(nil)
	b.toServer.feed(send, func(text string) { w.print("to server%s: %s", b.label(), text) })
	switch outcome {
	case SettlePending:
		b.settling = true
		return
	case SettleDone:
		b.idle = true
	case SettleClose:
		b.gone = true
	}
	b.settling = false
	w.print("settled%s: %s", b.label(), [...]string{SettleDone: "reusable", SettleClose: "closed"}[outcome])
}

// ToClient implements Host.
func (c *client) ToClient(p []byte) {
	if c.ended {
		c.w.t.Fatal("bytes for a client that has ended")
	}
	c.toClient.feed(p, func(text string) { c.w.print("to client%s: %s", c.label(), text) })
}

// ToServer implements Host.
func (c *client) ToServer(p []byte) {
	b := c.held
	b.toServer.feed(p, func(text string) { c.w.print("to server%s: %s", b.label(), text) })
}

// Borrow implements Host.
func (c *client) Borrow(class connpool.Class) (*Server, error) {
	w := c.w
	name := [...]string{"regular", "reserved"}[class]
	answer := ""
	if len(w.answers) > 0 {
		answer, w.answers = w.answers[0], w.answers[1:]
	}
	switch {
	case answer == "wait":
		w.print("host%s: borrow %s, waits", c.label(), name)
		return nil, nil
	case answer == "broken":
		w.print("host%s: borrow %s, fails", c.label(), name)
		return nil, errors.New("dial tcp: refused")
	case strings.HasPrefix(answer, "refuse:"):
		part := strings.SplitN(answer, ":", 3)
		w.print("host%s: borrow %s, refused", c.label(), name)
		return nil, &protocol.Error{Code: part[1], Message: part[2]}
	}
	b := w.free()
	if answer != "" {
		b = w.server(answer)
	}
	w.lend(c, b)
	w.print("host%s: borrow %s: %s", c.label(), name, b.name)
	return b.sv, nil
}

// CancelBorrow implements Host.
func (c *client) CancelBorrow() bool {
	c.w.print("host%s: cancel the borrow", c.label())
	return true
}

// Release implements Host.
func (c *client) Release(sv *Server, how Disposal) {
	b := c.held
	if b == nil || b.sv != sv {
		c.w.t.Fatal("released what it does not hold")
	}
	if how == Reuse && !sv.Reusable() {
		c.w.t.Fatal("released for reuse and not reusable")
	}
	c.held, b.holder = nil, nil
	c.w.print("host%s: release %s, %s", c.label(), b.name, [...]string{"reuse", "settle", "close"}[how])
	switch {
	case how == Reuse:
		b.idle = true
	case how == Settle && !b.gone:
		c.w.settle(b)
	default:
		b.gone = true
	}
}

// Redeliver implements Host.
func (c *client) Redeliver() { c.redeliver = true }

// Learned implements Host.
func (c *client) Learned(p *Params) {
	c.w.print("host%s: learned %d parameters", c.label(), len(p.All()))
}

// Pinned implements Host.
func (c *client) Pinned(reason Pin) { c.w.print("host%s: pinned %s", c.label(), reason) }

// End implements Host.
func (c *client) End(reason EndReason, detail string) {
	if c.held != nil || c.sess.Waiting() {
		c.w.t.Fatal("the session ends and holds or waits for a server connection")
	}
	c.ended = true
	c.w.print("host%s: end %s %s", c.label(), reason, quote(detail))
}

// Now implements Host.
func (c *client) Now() int64 { return 1 }

// describe is the state of a session in a line.
func (c *client) describe() string {
	s := c.sess
	var is []string
	add := func(cond bool, what string) {
		if cond {
			is = append(is, what)
		}
	}
	add(c.held != nil, "holds a server connection")
	add(s.Waiting(), "waits")
	add(s.Idle(), "idle")
	add(s.AtBoundary(), "at a boundary")
	add(s.IdleInTransaction(), "idle in transaction")
	add(s.Pins() != 0, "pins "+s.Pins().String())
	q, tx := s.Counts()
	return fmt.Sprintf("%s; %d queries, %d transactions", strings.Join(is, ", "), q, tx)
}
