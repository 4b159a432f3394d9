package session

import (
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
	if path, _ := c.Settings.Lookup("search_path"); namesTemp(path) {
		s.state.TempPath = true
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

// answered counts a ReadyForQuery that the client has asked for.
func (s *Session) answered(status protocol.TxStatus) {
	s.queries++
	if status == protocol.TxIdle {
		s.transactions++
	}
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

// AtBoundary tells whether the session can be ended without cutting work: it
// is between transactions and not in the middle of a message.
func (s *Session) AtBoundary() bool {
	return s.state.Phase == PhaseReady && !s.waiting && !s.expecting && s.left == 0 &&
		(s.srv == nil || s.srv.Quiet() && s.srv.status == protocol.TxIdle)
}
