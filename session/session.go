package session

import (
	"errors"

	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/protocol"
)

const (
	// inspectClient is how much of a client's message multipooler waits for to
	// look into it before it streams the message on.
	inspectClient = 16 << 10
	// maxUnnamed bounds the text that a session keeps of its unnamed
	// statement; with a longer one it stays on its server connection.
	maxUnnamed = 16 << 10
	// maxRetries is how often a borrow is repeated when the server connection
	// dies before anything of the client's was sent on it.
	maxRetries = 3
)

// Config is what a session is made of.
type Config struct {
	State
	Host Host
	// Settings are State.Startup, interned.
	Settings *Settings
}

// Session is the state machine of one client. All methods are for the loop that
// owns the client.
type Session struct {
	state    State
	host     Host
	settings *Settings
	srv      *Server // the server connection it holds

	pins       Pin
	waiting    bool // a borrow is outstanding
	aligning   bool // the alignment of srv is under way
	realigning bool // it puts back what a RESET took
	realignDue bool // a RESET may have taken startup settings
	custom     bool // a setting was set that DISCARD ALL cannot unset
	expecting  bool // the message that waited is about to come again
	stalled    bool // the ledger is full, or a message waits for the replies that are owed
	wasDirty   bool // srv was dirty before the round trip that is under way
	setting    bool // a statement may have changed a setting of srv
	used       usage
	// told is what the client knows of the server's parameters; nil if that is
	// not known.
	told    *Params
	retries uint8
	refusal *protocol.Error // for the message that waited
	judged  bool            // verdict is of the message that waits
	verdict protocol.Verdict

	// left counts the bytes still to come of the client's current message;
	// streaming says what to do with them.
	left      int
	streaming streamKind
	// scan is the scanner of a statement that arrives in pieces.
	scan *protocol.Scanner
	// pendingParses counts unnamed Parses that the server has not answered;
	// state.Unnamed is the text of the last one.
	pendingParses int
	// unnamedHeld: the server's answer to the Parse of state.Unnamed is known.
	unnamedHeld bool
	// overwritten: the server may hold an unnamed statement of the session of
	// which the text is not kept any more.
	overwritten bool
	// over: behind the last unnamed Parse a Query was sent that the server is
	// certain to read, which ends the statement.
	over bool

	queries, transactions uint64
}

// streamKind says what happens to the rest of a message that arrives in pieces.
type streamKind uint8

const (
	streamForward streamKind = iota // to the server as it is
	streamDrop                      // nowhere
	streamQuery                     // to the server and through the scanner
	streamParse                     // the same; the statement ends at a NUL
)

// New makes a session of an authenticated client. It does nothing before Start.
func New(c Config) *Session {
	s := &Session{state: c.State, host: c.Host, settings: c.Settings, unnamedHeld: len(c.State.Unnamed) > 0}
	if len(c.Told) > 0 {
		s.told = newParams(c.Told)
		s.state.Told = nil
	}
	if enc, ok := c.Settings.Lookup("client_encoding"); ok && s.told == nil {
		s.learn("client_encoding", enc)
	}
	s.state.AppName = cleanName(s.state.AppName)
	if s.state.Mode == ModeSession {
		s.pins = PinMode
	}
	if s.state.Left > 0 {
		s.left, s.streaming = s.state.Left, streamDrop
		s.state.Left = 0
	}
	return s
}

// ID is the number of the session, unique in the process and never 0.
func (s *Session) ID() uint64 { return s.state.ID }

// Settings are what a server connection must be aligned to.
func (s *Session) Settings() *Settings { return s.settings }

// Server is the server connection that the session holds, nil if none.
func (s *Session) Server() *Server { return s.srv }

// Pins are the reasons that keep the session on its server connection.
func (s *Session) Pins() Pin { return s.pins }

// Waiting tells whether a borrow is outstanding.
func (s *Session) Waiting() bool { return s.waiting }

// Phase is where the session is in its life.
func (s *Session) Phase() Phase { return s.state.Phase }

// Counts returns how many queries and transactions have been answered.
func (s *Session) Counts() (queries, transactions uint64) { return s.queries, s.transactions }

// AppName is the client's application_name.
func (s *Session) AppName() string { return s.state.AppName }

// IdleInTransaction tells whether a server connection waits for this client's
// next statement inside a transaction.
func (s *Session) IdleInTransaction() bool {
	return s.srv != nil && s.srv.status != protocol.TxIdle && s.srv.Quiet()
}

// Idle tells whether the session is at rest: it holds no server connection,
// waits for none, and is not in the middle of a message.
func (s *Session) Idle() bool {
	return s.state.Phase == PhaseReady && s.srv == nil && !s.waiting && s.left == 0
}

// Detachable returns the session as a value that New can resume elsewhere; only
// an Idle session can be moved.
func (s *Session) Detachable() (State, bool) {
	if !s.Idle() || s.pendingParses > 0 || s.refusal != nil {
		return State{}, false
	}
	st := s.state
	st.Told = s.told.All()
	return st, true
}

// SetHost changes who executes what the session asks for: it has been moved.
func (s *Session) SetHost(h Host) { s.host = h }

// Start answers the login. known are the parameters that a server connection
// with the session's settings reports; nil when nobody has seen one yet: then
// the session borrows one to learn them.
func (s *Session) Start(known *Params) {
	if known != nil {
		s.welcome(known)
		return
	}
	s.borrowForLogin()
}

// borrowForLogin borrows a server connection to learn what it reports.
func (s *Session) borrowForLogin() {
	if s.need(connpool.Regular) {
		s.aligned()
	}
	s.afterClient()
}

// welcome completes the login (manual, 55.2.1).
func (s *Session) welcome(p *Params) {
	s.state.Phase = PhaseReady
	s.told = p
	buf := make([]byte, 0, 640)
	for _, v := range p.All() {
		value := v.Value
		if v.Name == "application_name" {
			value = s.state.AppName // not that of the last session there
		}
		buf = protocol.AppendParameterStatus(buf, v.Name, value)
		s.learn(v.Name, v.Value)
	}
	buf = protocol.AppendBackendKeyData(buf, s.state.CancelPID, s.state.CancelKey)
	buf = protocol.AppendReadyForQuery(buf, protocol.TxIdle)
	s.host.ToClient(buf)
	s.host.Redeliver()
}

// need makes sure that a server connection is attached and aligned. false: the
// message must wait, or has been refused and s.refusal says why.
func (s *Session) need(class connpool.Class) bool {
	if s.srv != nil {
		return s.realigned()
	}
	if s.refusal != nil {
		return false
	}
	srv, err := s.host.Borrow(class)
	if err != nil {
		s.refusal = refused(err)
		return false
	}
	if srv == nil {
		s.waiting = true
		return false
	}
	return s.attach(srv)
}

// realigned tells whether the startup settings are in place between two
// transactions; if a RESET has taken them, they are put back once it is answered.
func (s *Session) realigned() bool {
	srv := s.srv
	switch {
	case !s.realignDue, srv.batch, srv.copyIn:
		return true
	case s.pins&PinUnnamed != 0:
		return true // a simple Query would end the statement that only the server has
	case !srv.led.empty():
		s.stalled = true
		return false
	case !srv.Quiet() || srv.status != protocol.TxIdle:
		return true
	}
	s.realignDue, s.realigning = false, true
	s.roundTrip(s.settings.realignText())
	return false
}

// attach takes a server connection and aligns it. false: a round trip is under
// way.
func (s *Session) attach(srv *Server) bool {
	s.srv = srv
	s.used = untouched
	srv.sess = s
	if srv.settings != s.settings {
		s.roundTrip(srv.alignTo(s.settings))
		return false
	}
	s.lazyAppName()
	s.inform()
	return true
}

// inform tells the client where the parameters of its server connection differ
// from what it knows: another one may report other values, or this one did when
// nobody listened.
func (s *Session) inform() {
	now := s.srv.params
	if s.told == now || s.told == nil {
		s.told = now
		return
	}
	if s.told.SameButName(now) {
		if s.told.age < now.age {
			s.srv.params = s.told
		} else {
			s.told = now
		}
		return
	}
	var buf []byte
	for _, p := range now.All() {
		if v, ok := s.told.Get(p.Name); p.Name != "application_name" && (!ok || v != p.Value) {
			buf = protocol.AppendParameterStatus(buf, p.Name, p.Value)
			s.learn(p.Name, p.Value)
		}
	}
	s.told = now
	if len(buf) > 0 {
		s.host.ToClient(buf)
	}
}

// learn draws the consequences of a parameter for how statements are read.
func (s *Session) learn(name, value string) {
	switch name {
	case "standard_conforming_strings":
		s.state.StringsOff = value == "off"
		s.judged = false // a statement that waits was read the other way
	case "client_encoding":
		s.state.UnsafeEncoding = !protocol.ClientEncodingSafe(value)
	}
}

// roundTrip sends a statement of multipooler's own and makes the client wait
// for its answer.
func (s *Session) roundTrip(sql string) {
	s.aligning = true
	// Until the answer is known, nobody knows what is set.
	s.wasDirty, s.srv.dirty = s.srv.dirty, true
	s.srv.alignErr = nil
	s.srv.unnamed = unnamedTag{} // a simple Query ends it
	s.srv.led.push(entry{kind: replyQuery, how: align})
	s.host.ToServer(protocol.AppendQuery(nil, sql))
}

// cleanName is an application_name as PostgreSQL takes it from a startup packet
// (pg_clean_ascii): SET would refuse what is not valid in the encoding.
func cleanName(name string) string {
	clean := []byte(name)
	for i, c := range clean {
		if c < ' ' || c > '~' {
			clean[i] = '?'
		}
	}
	return string(clean)
}

// errNoTransactions is what a client in pool mode statement gets for BEGIN.
var errNoTransactions = &protocol.Error{
	Code: protocol.CodeFeatureNotSupported, Message: "transactions are not allowed in pool mode statement",
	Hint: "The mode is --pool-mode, or pool_mode of the user or database.",
}

// forbids tells whether the pool mode has no place for what v begins. What
// begins a transaction unseen is found out by its ReadyForQuery.
func (s *Session) forbids(v protocol.Verdict) bool {
	return s.state.Mode == ModeStatement && v.Effects.Has(protocol.EffectTxBegin)
}

func (s *Session) refuseTransaction(p []byte) int {
	s.Kill(EndStatementMode, errNoTransactions)
	return len(p)
}

// lazyAppName sends the client's application_name in front of its statement,
// in the same write, when the connection has another one.
func (s *Session) lazyAppName() {
	if s.srv.appName == s.state.AppName {
		return
	}
	s.srv.appName = s.state.AppName
	s.srv.unnamed = unnamedTag{} // a simple Query ends it
	sql := []byte("RESET application_name")
	if s.state.AppName != "" {
		sql = protocol.AppendLiteral([]byte("SET application_name = "), s.state.AppName)
	}
	s.srv.led.push(entry{kind: replyQuery, how: swallow})
	s.host.ToServer(protocol.AppendQuery(nil, string(sql)))
}

// Granted delivers the server connection that the session waited for.
func (s *Session) Granted(srv *Server) {
	s.waiting = false
	if s.attach(srv) {
		s.aligned()
	}
	s.afterClient()
}

// aligned: the server connection is ready for the client's own messages.
func (s *Session) aligned() {
	if s.state.Phase == PhaseLogin {
		params := s.srv.params
		s.host.Learned(params)
		s.welcome(params)
		return
	}
	s.expecting = true
	s.host.Redeliver()
}

// Refused delivers the failure of the borrow that the session waited for: the
// queue, a limit, the dial, the acquire timeout or a cancel.
func (s *Session) Refused(err error) {
	s.waiting = false
	s.refusal = refused(err)
	if s.state.Phase == PhaseLogin {
		s.afterClient()
		return
	}
	s.host.Redeliver()
}

// release gives the server connection back.
func (s *Session) release(how Disposal) {
	srv := s.srv
	s.srv = nil
	srv.sess = nil
	srv.lastUser = s.state.ID
	s.expecting = false
	srv.dropping = true // of a message that is under way
	srv.orphanBytes = 0
	s.aligning, s.realigning, s.realignDue, s.custom, s.stalled, s.setting = false, false, false, false, false, false
	s.retries = 0
	s.pendingParses, s.overwritten = 0, false
	s.pins &= PinMode
	s.host.Release(srv, how)
}

// letGo says how the server connection is disposed of when the client goes.
func (s *Session) letGo() {
	if s.srv == nil {
		return
	}
	how := Settle
	if s.left > 0 && s.streaming != streamDrop {
		s.srv.torn = true
		how = Close
	}
	if s.pins&unresettable != 0 || s.custom {
		how = Close
	}
	s.release(how)
}

// afterClient and afterServer run at the end of every event: they are where a
// server connection is released, never in the middle of an event.
func (s *Session) afterClient() {
	if s.state.Phase == PhaseLogin && s.refusal != nil {
		e := *s.refusal
		s.refusal = nil
		s.fail(EndLoginRefused, &e)
		return
	}
	s.maybeRelease()
}

func (s *Session) maybeRelease() {
	srv := s.srv
	if srv == nil || s.aligning || s.expecting || s.pins != 0 || s.left > 0 || !srv.Quiet() || srv.status != protocol.TxIdle {
		return
	}
	if srv.Reusable() {
		s.release(Reuse)
		return
	}
	s.release(Settle) // dirty without a pin: a failed RESET ALL for instance
}

// FromServer takes bytes of the server connection that the session holds.
func (s *Session) FromServer(p []byte) int {
	srv := s.srv
	n, err := srv.Feed(p)
	if err != nil {
		s.serverLost(err)
		return len(p)
	}
	if s.aligning && srv.led.empty() {
		s.alignmentAnswered()
	}
	if s.stalled && srv.led.len() < maxLedger/2 {
		s.stalled = false
		s.host.Redeliver()
	}
	if s.state.Mode == ModeStatement && srv.status != protocol.TxIdle {
		s.Kill(EndStatementMode, errNoTransactions)
		return n
	}
	// With the beginning of a further message at hand the connection is not
	// at a boundary.
	if s.srv == srv && n == len(p) {
		s.maybeRelease()
	}
	return n
}

// alignmentAnswered: the round trip of attach or of a due realignment is over.
func (s *Session) alignmentAnswered() {
	srv := s.srv
	again := s.realigning
	s.aligning, s.realigning = false, false
	if e := srv.alignErr; e != nil {
		srv.alignErr = nil
		srv.distrust("alignment failed: " + e.Code)
		if again {
			// The client's session cannot be made what it was.
			s.release(Close)
			s.fail(EndServerFatal, &protocol.Error{Severity: protocol.SeverityFatal, Code: e.Code, Message: e.Message, Detail: e.Detail, Hint: e.Hint})
			return
		}
		s.release(Close)
		s.Refused(e)
		return
	}
	srv.settings = s.settings
	srv.dirty = s.wasDirty
	s.inform()
	s.lazyAppName()
	s.aligned()
}

// answered counts a ReadyForQuery that the client has asked for.
func (s *Session) answered(status protocol.TxStatus) {
	s.queries++
	if status == protocol.TxIdle {
		s.transactions++
	}
}

// ServerEnded tells that the server connection of the session is gone.
func (s *Session) ServerEnded(err error) { s.serverLost(err) }

func (s *Session) serverLost(err error) {
	srv := s.srv
	if s.aligning && !s.realigning && srv.led.len() == 1 && s.retries < maxRetries {
		// Nothing of the client's has been sent: another connection will do.
		retries := s.retries
		s.release(Close)
		s.retries = retries + 1
		if s.state.Phase == PhaseLogin {
			s.borrowForLogin()
			return
		}
		s.host.Redeliver()
		return
	}
	if !s.aligning && s.pins == 0 && s.left == 0 && srv.Quiet() && srv.status == protocol.TxIdle {
		// It is about to be given back, or was granted for a message that has
		// not come yet.
		s.release(Close)
		s.host.Redeliver()
		return
	}
	cutMessage := srv.left > 0 && !srv.dropping
	fatal := srv.lastError
	told := fatal != nil && !srv.fatalWithheld
	s.release(Close)
	switch {
	case told:
		s.end(EndServerFatal, fatal.Code+" "+fatal.Message)
	case cutMessage:
		// The client's stream ends inside a message: nothing can be added.
		s.end(EndServerGone, err.Error())
	case fatal != nil:
		s.fail(EndServerFatal, fatal)
	default:
		s.fail(EndServerGone, &protocol.Error{
			Severity: protocol.SeverityFatal, Code: "08006",
			Message: "server connection ended unexpectedly",
			Detail:  "The server closed the connection or it broke; what was running may or may not have been done.",
		})
	}
}

// Kill ends the session for a reason of multipooler's own: timeouts, drain, an
// administrator. The error reaches the client unless it would cut a reply.
func (s *Session) Kill(reason EndReason, e *protocol.Error) {
	if s.state.Phase == PhaseEnded {
		return
	}
	cut := s.srv != nil && (s.srv.left > 0 && !s.srv.dropping)
	s.abandon()
	if cut {
		s.end(reason, e.Message)
		return
	}
	s.fail(reason, e)
}

// ClientEnded tells that the client's connection is gone.
func (s *Session) ClientEnded(err error) {
	if s.state.Phase == PhaseEnded {
		return
	}
	s.abandon()
	s.end(EndClientGone, err.Error())
}

// abandon gives up the borrow and the server connection.
func (s *Session) abandon() {
	if s.waiting {
		s.waiting = false
		s.host.CancelBorrow()
	}
	s.letGo()
}

// fail sends a FATAL and ends the session.
func (s *Session) fail(reason EndReason, e *protocol.Error) {
	f := *e
	f.Severity = protocol.SeverityFatal
	s.host.ToClient(protocol.AppendErrorResponse(nil, &f))
	s.end(reason, f.Code+" "+f.Message)
}

func (s *Session) end(reason EndReason, detail string) {
	s.state.Phase = PhaseEnded
	s.host.End(reason, detail)
}

// CancelWaiting cancels the borrow that the session waits for on behalf of its
// user. false: it does not wait, or the grant is already on its way.
func (s *Session) CancelWaiting() bool {
	if !s.waiting || s.state.Phase != PhaseReady || !s.host.CancelBorrow() {
		return false
	}
	s.Refused(&protocol.Error{Severity: protocol.SeverityError, Code: "57014", Message: "canceling statement due to user request"})
	return true
}

// pin records a reason to keep the server connection.
func (s *Session) pin(p Pin) {
	fresh := p &^ s.pins
	if fresh == 0 {
		return
	}
	s.pins |= p
	if p&^clean != 0 && s.srv != nil {
		s.srv.dirty = true
	}
	s.host.Pinned(fresh)
}

// refused turns any error into what the client is told.
func refused(err error) *protocol.Error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		c := *e
		c.Severity = protocol.SeverityError
		return &c
	}
	e := &protocol.Error{Severity: protocol.SeverityError, Code: "08006", Message: err.Error()}
	if c, ok := err.(interface{ SQLState() string }); ok {
		e.Code = c.SQLState()
	}
	if h, ok := err.(interface{ Hint() string }); ok {
		e.Hint = h.Hint()
	}
	if d, ok := err.(interface{ Detail() string }); ok {
		e.Detail = d.Detail()
	}
	return e
}

// AtBoundary tells whether the session can be ended without cutting work: it
// is between transactions and not in the middle of a message.
func (s *Session) AtBoundary() bool {
	return s.state.Phase == PhaseReady && !s.waiting && !s.expecting && s.left == 0 &&
		(s.srv == nil || s.srv.Quiet() && s.srv.status == protocol.TxIdle)
}
