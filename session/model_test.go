package session

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/protocol"
)

// The property: whatever some sessions send over few shared server connections,
// however it is cut and interleaved, whoever leaves in the middle, each client
// reads exactly what the same messages cause on a server of its own.

type fataler interface {
	Fatalf(format string, args ...any)
}

// shop is some clients, a pool, and few servers.
type shop struct {
	t       fataler
	pick    func(n int) int
	clients []*customer
	servers []*till
	waiting []*customer
	interns Interner
	log     []string
}

// customer is a session, its script and what it has read.
type customer struct {
	s         *shop
	id        int
	sess      *Session
	startup   []Setting
	script    []byte // not yet sent
	pending   []byte // sent and not taken
	got       []byte
	want      []byte
	wantZone  string
	redeliver bool
	ended     bool
	left      bool // went away on purpose
	cancelled bool
	doomed    bool  // its script ends in FATAL
	done      bool  // said goodbye with nothing more to come
	granted   *till // on its way
	held      *till
	read      stream
}

// till is a shared server connection with a simulator behind it.
type till struct {
	n        int
	sim      *simulator
	sv       *Server
	kept     []byte // delivered and not taken
	holder   *customer
	idle     bool
	settling bool
	closed   bool
}

func TestEachClientReadsWhatItWouldReadAlone(t *testing.T) {
	if seed := os.Getenv("SESSION_SEED"); seed != "" {
		n, _ := strconv.ParseUint(seed, 10, 64)
		rng := rand.New(rand.NewPCG(n, 7))
		runShop(t, rng.IntN)
		return
	}
	worlds := uint64(1500)
	if testing.Short() {
		worlds = 200
	}
	for seed := range worlds {
		rng := rand.New(rand.NewPCG(seed, 7))
		runShop(named{t, seed}, rng.IntN)
	}
}

// named says which seed has failed.
type named struct {
	t    *testing.T
	seed uint64
}

func (n named) Fatalf(format string, args ...any) {
	n.t.Fatalf("SESSION_SEED=%d: %s", n.seed, fmt.Sprintf(format, args...))
}

func TestEachClientReadsWhatItWouldReadAloneShrunk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runShop(t, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") })
	})
}

// FuzzShop takes the choices from the fuzzer.
func FuzzShop(f *testing.F) {
	f.Add([]byte("seed"))
	f.Fuzz(func(t *testing.T, choices []byte) {
		i := 0
		runShop(t, func(n int) int {
			if i >= len(choices) {
				i++
				return i % n
			}
			c := int(choices[i])
			i++
			return c % n
		})
	})
}

func runShop(t fataler, pick func(n int) int) {
	s := &shop{t: t, pick: pick}
	for range 1 + pick(2) {
		s.open()
	}
	for id := range 2 + pick(3) {
		s.enter(id + 1)
	}
	for steps := 0; s.busy() || s.farewell(); steps++ {
		if steps > 200000 {
			s.fail("hangs")
		}
		if s.busy() {
			s.step()
		}
	}
	for _, c := range s.clients {
		s.judge(c)
	}
	for _, b := range s.servers {
		if !b.closed && (!b.idle || !b.sv.Reusable()) && !s.held(b) {
			s.fail("server %d is neither idle nor closed at the end", b.n)
		}
	}
}

func (s *shop) held(b *till) bool { return b.holder != nil && !b.holder.ended }

func (s *shop) fail(format string, args ...any) {
	tail := s.log[max(0, len(s.log)-400):]
	s.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(tail, "\n"))
}

func (s *shop) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *shop) open() *till {
	b := &till{n: len(s.servers), sim: newSimulator(nil), idle: true}
	var p *Params
	p = p.With("TimeZone", "UTC")
	b.sv = NewServer(p)
	s.servers = append(s.servers, b)
	return b
}

// enter makes a client with a script.
func (s *shop) enter(id int) {
	c := &customer{s: s, id: id, read: stream{text: serverText}}
	if s.pick(2) == 0 {
		c.startup = []Setting{{"timezone", "Z" + strconv.Itoa(s.pick(2))}}
	}
	app := []string{"", "a", "b"}[s.pick(3)]
	g := &generator{pick: s.pick, id: id}
	for range 1 + s.pick(8) {
		g.unit()
	}
	g.out = protocol.AppendSync(g.out)
	g.out = protocol.AppendQuery(g.out, "select 'end'")
	c.script = g.out
	alone := newSimulator(c.startup)
	alone.in = append(alone.in, g.out...)
	for alone.step() {
	}
	c.want, c.wantZone, c.doomed = alone.out, alone.told["timezone"], alone.dead
	mode := ModeTransaction
	if s.pick(8) == 0 {
		mode = ModeSession
	}
	c.sess = New(Config{
		State: State{ID: uint64(id), AppName: app, Startup: c.startup, Mode: mode, CancelKey: []byte("abcd")},
		Host:  c, Settings: s.interns.Intern(c.startup),
	})
	s.clients = append(s.clients, c)
	if s.pick(3) > 0 {
		var p *Params
		zone := "UTC"
		if len(c.startup) > 0 {
			zone = c.startup[0].Value
		}
		c.sess.Start(p.With("TimeZone", zone))
	} else {
		c.sess.Start(nil)
	}
}

// farewell makes a client that has nothing more to say go, when nothing else
// can happen: a pinned one would keep its server from those who wait.
func (s *shop) farewell() bool {
	for _, c := range s.clients {
		if !c.ended && len(c.script) == 0 && len(c.pending) == 0 && !c.sess.Waiting() {
			c.done = true
			c.script = protocol.AppendTerminate(nil)
			c.deliver(len(c.script))
			if !c.ended {
				s.fail("client %d cannot go", c.id)
			}
			s.dispatch()
			return true
		}
	}
	return false
}

// busy tells whether anything can still happen.
func (s *shop) busy() bool { return len(s.moves()) > 0 }

// moves are what can happen next.
func (s *shop) moves() []func() {
	var can []func()
	for _, c := range s.clients {
		if c.ended {
			continue
		}
		if c.granted != nil {
			can = append(can, c.takeGrant)
		}
		if c.redeliver {
			can = append(can, func() { c.deliver(0) })
		}
		if len(c.script) > 0 {
			can = append(can, c.send)
		}
	}
	for _, b := range s.servers {
		if len(b.sim.in) > 0 && !b.closed {
			if b.sim.dead || b.ready() {
				can = append(can, func() { b.sim.step() })
			}
		}
		if len(b.sim.out) > 0 && !b.closed {
			can = append(can, func() { s.output(b) })
		} else if b.sim.dead && !b.closed && len(b.sim.in) == 0 {
			can = append(can, func() { s.eof(b) })
		}
	}
	return can
}

// ready tells whether a whole message waits.
func (b *till) ready() bool {
	_, size, ok, err := protocol.FrontendHeader(b.sim.in)
	return err != nil || ok && len(b.sim.in) >= protocol.HeaderLen+size
}

func (s *shop) step() {
	can := s.moves()
	switch s.pick(400) {
	case 1:
		c := s.clients[s.pick(len(s.clients))]
		if !c.ended && c.sess.Phase() == PhaseReady {
			s.note("client %d goes", c.id)
			c.left = true
			c.sess.ClientEnded(io.EOF)
			s.dispatch()
			return
		}
	case 2:
		c := s.clients[s.pick(len(s.clients))]
		if !c.ended && c.granted == nil && c.sess.CancelWaiting() {
			s.note("client %d is cancelled in the queue", c.id)
			c.cancelled = true
			return
		}
	case 3:
		c := s.clients[s.pick(len(s.clients))]
		if st, ok := c.sess.Detachable(); ok && !c.ended {
			c.sess = New(Config{State: st, Host: c, Settings: s.interns.Intern(st.Startup)})
			c.redeliver = true
			return
		}
	case 4:
		b := s.servers[s.pick(len(s.servers))]
		if !b.closed && b.holder != nil && b.holder.sess.Phase() == PhaseReady && s.pick(3) == 0 {
			s.note("server %d dies", b.n)
			b.holder.left = true
			b.closed = true
			b.holder.sess.ServerEnded(io.EOF)
			s.dispatch()
			return
		}
	}
	can[s.pick(len(can))]()
	s.dispatch()
}

// send sends the next piece of the script.
func (c *customer) send() {
	n := 1 + c.s.pick(min(len(c.script), 60))
	if c.s.pick(4) == 0 {
		n = len(c.script)
	}
	c.deliver(n)
}

func (c *customer) deliver(n int) {
	c.redeliver = false
	c.pending = append(c.pending, c.script[:n]...)
	c.script = c.script[n:]
	given := append([]byte(nil), c.pending...)
	k := c.sess.FromClient(given)
	scribble(given)
	c.pending = c.pending[k:]
}

func scribble(p []byte) {
	for i := range p {
		p[i] = 0xdd
	}
}

// output delivers a piece of what a server has sent.
func (s *shop) output(b *till) {
	n := 1 + s.pick(len(b.sim.out))
	b.kept = append(b.kept, b.sim.out[:n]...)
	b.sim.out = b.sim.out[n:]
	given := append([]byte(nil), b.kept...)
	if c := b.holder; c != nil {
		k := c.sess.FromServer(given)
		scribble(given)
		b.kept = b.kept[k:]
		return
	}
	k, err := b.sv.Feed(given)
	scribble(given)
	b.kept = b.kept[k:]
	if err != nil {
		s.fail("server %d, which nobody holds: %v", b.n, err)
	}
	if b.settling && len(b.kept) == 0 {
		s.settle(b)
	}
}

func (s *shop) eof(b *till) {
	b.closed = true
	if b.holder != nil {
		b.holder.sess.ServerEnded(io.EOF)
	}
}

func (s *shop) settle(b *till) {
	send, outcome := b.sv.Settle(nil)
	b.sim.in = append(b.sim.in, send...)
	switch outcome {
	case SettlePending:
		b.settling = true
	case SettleDone:
		b.settling = false
		s.returned(b)
	case SettleClose:
		b.settling, b.closed = false, true
	}
}

// returned audits a server connection that goes to the next session.
func (s *shop) returned(b *till) {
	if !b.sv.Reusable() {
		s.fail("server %d given back and not reusable", b.n)
	}
	before := len(b.sim.out)
	for b.sim.step() { // a Flush, or what is left of a COPY, may be under way
	}
	if len(b.sim.out) != before || !b.sim.quiet() || len(b.sim.in) > 0 {
		s.fail("server %d given back and not quiet: %d bytes in, %d out, %+v", b.n, len(b.sim.in), len(b.sim.out), b.sim)
	}
	for name := range b.sim.texts {
		if name != "" {
			s.fail("server %d given back with the statement %q", b.n, name)
		}
	}
	want := map[string]string{}
	for _, p := range b.sv.Settings().Pairs() {
		want[p.Name] = p.Value
	}
	for name, v := range b.sim.state.set {
		if name != "application_name" && want[name] != v {
			s.fail("server %d given back with %s = %s, believed to be %v", b.n, name, v, want)
		}
	}
	for name := range want {
		if _, ok := b.sim.state.set[name]; !ok {
			s.fail("server %d given back without %s, believed to be %v", b.n, name, want)
		}
	}
	b.idle = true
}

// dispatch gives idle servers to waiters and replaces closed ones.
func (s *shop) dispatch() {
	alive := 0
	for _, b := range s.servers {
		if !b.closed {
			alive++
		}
	}
	if alive == 0 {
		s.open()
	}
	for _, b := range s.servers {
		if b.idle && !b.closed && len(s.waiting) > 0 {
			c := s.waiting[0]
			s.waiting = s.waiting[1:]
			b.idle = false
			c.granted = b
		}
	}
}

func (c *customer) takeGrant() {
	b := c.granted
	c.granted = nil
	if !c.sess.Waiting() {
		b.idle = true
		return
	}
	c.take(b)
	c.sess.Granted(b.sv)
}

func (c *customer) take(b *till) {
	c.s.note("client %d has server %d", c.id, b.n)
	b.idle = false
	b.holder, c.held = c, b
}

// ToClient implements Host.
func (c *customer) ToClient(p []byte) {
	c.got = append(c.got, p...)
	c.read.feed(p, func(text string) { c.s.note("to client %d: %s", c.id, text) })
}

// ToServer implements Host.
func (c *customer) ToServer(p []byte) {
	st := stream{text: clientText}
	st.feed(p, func(text string) { c.s.note("client %d to server %d: %s", c.id, c.held.n, text) })
	c.held.sim.in = append(c.held.sim.in, p...)
}

// Borrow implements Host.
func (c *customer) Borrow(connpool.Class) (*Server, error) {
	for _, b := range c.s.servers {
		if b.idle && !b.closed && len(c.s.waiting) == 0 && c.s.pick(3) > 0 {
			c.take(b)
			return b.sv, nil
		}
	}
	c.s.waiting = append(c.s.waiting, c)
	c.s.note("client %d waits", c.id)
	return nil, nil
}

// CancelBorrow implements Host.
func (c *customer) CancelBorrow() bool {
	for i, o := range c.s.waiting {
		if o == c {
			c.s.waiting = append(c.s.waiting[:i:i], c.s.waiting[i+1:]...)
			return true
		}
	}
	if b := c.granted; b != nil { // the grant that is on its way goes back
		c.granted = nil
		b.idle = true
	}
	return false
}

// Release implements Host.
func (c *customer) Release(sv *Server, how Disposal) {
	b := c.held
	if b == nil || b.sv != sv {
		c.s.fail("client %d releases what it does not hold", c.id)
	}
	c.held, b.holder = nil, nil
	c.s.note("client %d releases server %d: %d", c.id, b.n, how)
	switch {
	case b.closed:
	case how == Reuse:
		if len(b.sim.out) > 0 {
			c.s.fail("server %d given back with %d bytes to come", b.n, len(b.sim.out))
		}
		c.s.returned(b)
	case how == Settle:
		c.s.settle(b)
	default:
		b.closed = true
	}
}

// Redeliver implements Host.
func (c *customer) Redeliver() { c.redeliver = true }

// Learned implements Host.
func (c *customer) Learned(*Params) {}

// Pinned implements Host.
func (c *customer) Pinned(Pin) {}

// End implements Host.
func (c *customer) End(reason EndReason, detail string) {
	c.s.note("client %d ends: %s %s", c.id, reason, detail)
	c.ended = true
}

// Now implements Host.
func (c *customer) Now() int64 { return 0 }

// judge compares what a client has read with what it would have read alone.
func (s *shop) judge(c *customer) {
	got, zone := replies(c.got, true)
	want, _ := replies(c.want, false)
	if c.left {
		for i, m := range got {
			if (i >= len(want) || m != want[i]) && !strings.Contains(m, "FATAL") && !c.cancelled {
				s.fail("client %d, which left, reads as message %d\n%s, want\n%s", c.id, i, m, at(want, i))
			}
		}
		return
	}
	if c.ended && !c.done && !c.doomed {
		s.fail("client %d has ended", c.id)
	}
	if !c.doomed && (!c.done || len(c.pending) > 0 || len(c.script) > 0) || c.sess.Waiting() {
		s.fail("client %d hangs: %d bytes not taken, waits %v", c.id, len(c.pending), c.sess.Waiting())
	}
	if c.cancelled {
		if c.doomed {
			return
		}
		if last := at(got, len(got)-1); !strings.HasPrefix(last, "ReadyForQuery") {
			s.fail("client %d, once cancelled, reads last %s", c.id, last)
		}
		return
	}
	for i := range max(len(got), len(want)) {
		if at(got, i) != at(want, i) {
			s.fail("client %d reads as message %d\n%s, want\n%s", c.id, i, at(got, i), at(want, i))
		}
	}
	if zone != c.wantZone && !c.doomed {
		s.fail("client %d believes in %s, and is in %s", c.id, zone, c.wantZone)
	}
}

// replies are the messages behind the welcome, without what may come at any
// time, and the time zone that was reported last.
func replies(p []byte, welcome bool) (out []string, zone string) {
	st := stream{text: serverText}
	st.feed(p, func(text string) {
		if v, ok := strings.CutPrefix(text, "ParameterStatus TimeZone "); ok {
			zone, _ = strconv.Unquote(v)
		}
		if !strings.HasPrefix(text, "ParameterStatus") && !strings.HasPrefix(text, "BackendKeyData") {
			out = append(out, text)
		}
	})
	if welcome && len(out) > 0 {
		out = out[1:]
	}
	return out, zone
}

// generator writes scripts that a client may send without waiting for anything.
type generator struct {
	pick func(n int) int
	id   int
	n    int
	out  []byte
	// risky: the last batch may have ended or replaced the unnamed statement
	// behind an error. Then PostgreSQL still has the old one; a session has it
	// only if its server connection has.
	risky bool
}

func (g *generator) tag() string {
	g.n++
	return fmt.Sprintf("c%d.%d", g.id, g.n)
}

func (g *generator) statement() string {
	switch g.pick(22) {
	case 0:
		return "begin"
	case 1:
		return "commit"
	case 2:
		return "rollback"
	case 3:
		return "select fail('" + g.tag() + "')"
	case 4:
		return "show timezone"
	case 5:
		return "show work_mem"
	case 6:
		return "show listening"
	case 7:
		return "select rows('" + g.tag() + "')"
	case 8:
		return "select syntax" + g.tag()
	case 9:
		if g.pick(4) == 0 {
			return "listen ch"
		}
	case 10:
		if g.pick(3) == 0 {
			return "set work_mem = '" + g.tag() + "'"
		}
	case 11:
		if g.pick(3) == 0 {
			return "set timezone = '" + g.tag() + "'"
		}
	case 12:
		if g.pick(2) == 0 {
			return "update t"
		}
	case 13:
		return ""
	}
	return "select '" + g.tag() + "'"
}

// unit is some messages that belong together.
func (g *generator) unit() {
	switch g.pick(12) {
	case 0:
		g.out = protocol.AppendQuery(g.out, g.statement()+"; "+g.statement())
	case 1:
		g.copySimple()
	case 2:
		g.copyExtended()
	case 3:
		g.out = protocol.AppendMessage(g.out, protocol.MsgFunctionCall, []byte{0, 0, 3, 0xb8, 0, 0, 0, 0, 0, 0})
	case 4:
		g.reset()
	case 5, 6, 7:
		g.out = protocol.AppendQuery(g.out, g.statement())
	default:
		g.batch()
	}
}

// reset takes settings back, outside a transaction: inside, the startup settings
// are put back at its end only.
func (g *generator) reset() {
	g.out = protocol.AppendQuery(g.out, "rollback")
	sql := []string{"discard all", "reset all", "reset timezone", "begin; reset all; rollback"}[g.pick(4)]
	if g.pick(3) > 0 || strings.Contains(sql, ";") {
		g.out = protocol.AppendQuery(g.out, sql)
		return
	}
	name := []string{"", "r"}[g.pick(2)]
	g.out = protocol.AppendClose(g.out, protocol.KindStatement, name)
	g.out = protocol.AppendParse(g.out, name, sql, nil)
	g.out = protocol.AppendBind(g.out, "", name, nil, nil, nil)
	g.out = protocol.AppendExecute(g.out, "", 0)
	// Executed again later, it is known for a RESET by its reply only, and what
	// was sent behind it runs without the startup settings.
	g.out = protocol.AppendClose(g.out, protocol.KindStatement, name)
	g.out = protocol.AppendSync(g.out)
}

func (g *generator) copyData() {
	for range g.pick(4) {
		data := "data"
		if g.pick(5) == 0 {
			data = "bad"
		}
		g.out = protocol.AppendMessage(g.out, protocol.MsgCopyData, []byte(data))
	}
	if g.pick(5) == 0 {
		g.out = protocol.AppendCopyFail(g.out, "no")
	} else {
		g.out = protocol.AppendCopyDone(g.out)
	}
}

func (g *generator) copySimple() {
	sql := "copy t from stdin"
	n := 1
	if g.pick(4) == 0 {
		sql, n = sql+"; select '"+g.tag()+"'; "+sql, 2
	}
	g.out = protocol.AppendQuery(g.out, sql)
	for range n {
		g.copyData()
	}
}

func (g *generator) copyExtended() {
	g.out = protocol.AppendParse(g.out, "", "copy t from stdin", nil)
	g.out = protocol.AppendBind(g.out, "", "", nil, nil, nil)
	g.out = protocol.AppendExecute(g.out, "", 0)
	if g.pick(3) == 0 {
		g.out = protocol.AppendSync(g.out)
	}
	g.copyData()
	if g.pick(8) > 0 { // else a Bind of it, later, has no data and ends in FATAL
		g.out = protocol.AppendSync(g.out)
		g.out = protocol.AppendClose(g.out, protocol.KindStatement, "")
	}
	g.out = protocol.AppendSync(g.out)
}

func (g *generator) batch() {
	stmt := func() string {
		if g.pick(8) == 0 {
			return "s" + strconv.Itoa(g.pick(2))
		}
		return ""
	}
	portal := func() string {
		if g.pick(6) == 0 {
			return "p"
		}
		return ""
	}
	if g.risky {
		g.out = protocol.AppendClose(g.out, protocol.KindStatement, "")
	}
	g.risky = false
	for i := range 1 + g.pick(6) {
		kind := g.pick(9)
		g.risky = g.risky || i > 0 && kind != 2 && kind != 3 && kind != 4 && kind != 6
		switch kind {
		case 0, 1:
			g.out = protocol.AppendParse(g.out, stmt(), g.statement(), nil)
		case 2:
			g.out = protocol.AppendBind(g.out, portal(), stmt(), nil, nil, nil)
		case 3:
			g.out = protocol.AppendDescribe(g.out, "SP"[g.pick(2)], stmt())
		case 4:
			g.out = protocol.AppendExecute(g.out, portal(), int32(g.pick(3)))
		case 5:
			if g.pick(2) == 0 {
				g.out = protocol.AppendClose(g.out, protocol.KindStatement, stmt())
			} else {
				g.out = protocol.AppendClose(g.out, protocol.KindPortal, portal())
			}
		case 6:
			g.out = protocol.AppendFlush(g.out)
		case 7:
			if g.pick(6) == 0 {
				g.out = protocol.AppendQuery(g.out, g.statement())
			}
		default:
			g.out = protocol.AppendParse(g.out, "", g.statement(), nil)
			g.out = protocol.AppendBind(g.out, "", "", nil, nil, nil)
			g.out = protocol.AppendExecute(g.out, "", 0)
		}
	}
	g.out = protocol.AppendSync(g.out)
}
