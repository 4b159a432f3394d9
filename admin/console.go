package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/zap"
)

// ConsoleConfig configures a Console.
type ConsoleConfig struct {
	Source  Source
	Version string // of the product, "1.2.3"
	Log     *zap.Logger
	// StatsPeriod is how far apart the samples behind the averages of SHOW
	// STATS are; 0 = 60 s, PgBouncer's stats_period. See Run.
	StatsPeriod time.Duration
	// OnPanic is called for every panic that a command made, after it was
	// contained; nil = nothing.
	OnPanic func(recovered any)
	// Now is the clock, nil = time.Now.
	Now func() time.Time
}

// Console is the SQL console. Register commands first, then Serve sessions.
// After that it is only read, apart from the averages, which have their lock.
type Console struct {
	source        Source
	log           *zap.Logger
	now           func() time.Time
	onPanic       func(any)
	period        time.Duration
	serverVersion string // ParameterStatus
	versionText   string // SHOW VERSION
	tables        map[string]Command
	verbs         map[string]Verb
	averages      averages
}

// ConsoleSession is who is at the other end. The login is done: pooler has
// checked that the user may use the console and has sent AuthenticationOk.
type ConsoleSession struct {
	ID       uint64 // the client's, as in SHOW CLIENTS
	User     string
	Database string // "multipooler" or "pgbouncer", as the client spelled it
	Admin    bool   // may run verbs; without it the session only reads
	// ProcessID and SecretKey are sent as BackendKeyData unless ProcessID is 0.
	// SecretKey has 4 bytes for protocol 3.0.
	ProcessID uint32
	SecretKey []byte
	// Received are bytes that arrived behind the login and were read from
	// the socket already.
	Received []byte
}

const (
	// maxMessage bounds the body of one message from a console client. Console
	// commands are short; PostgreSQL's own bound is 1 GiB.
	maxMessage = 64 << 10
	// flushSize bounds what a session collects before it writes.
	flushSize = 32 << 10
	// writeTimeout is how long a client may refuse to take a reply.
	writeTimeout = 30 * time.Second
	// farewellTimeout is the same for the last message of a session.
	farewellTimeout = time.Second
)

// Transaction status indicators of ReadyForQuery. The console has no
// transactions: it remembers BEGIN for drivers that look, and no more. An
// error does not abort anything, so there is no 'E'.
const (
	txIdle = 'I'
	txOpen = 'T'
)

// NewConsole makes a console with the tables of this package.
func NewConsole(cfg ConsoleConfig) *Console {
	c := &Console{
		source:        cfg.Source,
		log:           cfg.Log,
		now:           cfg.Now,
		onPanic:       cfg.OnPanic,
		period:        cfg.StatsPeriod,
		serverVersion: serverVersion(cfg.Version),
		versionText:   "multipooler " + cfg.Version,
		tables:        make(map[string]Command),
		verbs:         make(map[string]Verb),
	}
	if c.log == nil {
		c.log = zap.NewNop()
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.onPanic == nil {
		c.onPanic = func(any) {}
	}
	if c.period <= 0 {
		c.period = 60 * time.Second
	}
	c.averages.init(c.now())
	c.registerTables()
	return c
}

// serverVersion is the ParameterStatus of the same name. Drivers parse the
// number that it starts with (asyncpg and Npgsql fail without one), therefore
// "1.2.3/multipooler" in PgBouncer's manner; a version that is no number
// becomes 0.0.0.
func serverVersion(version string) string {
	number := version[:run(version, func(b byte) bool { return isDigit(b) || b == '.' })]
	if number == "" || !isDigit(number[0]) {
		number = "0.0.0"
	}
	return number + "/multipooler"
}

// session is one console session. It belongs to the goroutine of its Serve.
type session struct {
	console  *Console
	who      ConsoleSession
	conn     net.Conn
	wire     *pgproto3.Backend
	queued   int   // bytes sent to wire and not flushed, about
	broken   error // why nothing is written any more: a write failed or ctx ended
	torn     bool  // a write failed, perhaps in the middle of a message
	txStatus byte
	extended extended
}

// Serve runs one session until the client leaves (nil), breaks the protocol or
// the connection (the error), or ctx ends (context.Cause, after a FATAL
// 57P01). It starts with ParameterStatus, BackendKeyData and ReadyForQuery.
// Idle time is the caller's to limit, through ctx. Serve owns conn while it
// runs, uses its deadlines and does not close it: the caller does.
func (c *Console) Serve(ctx context.Context, conn net.Conn, who ConsoleSession) (err error) {
	s := &session{console: c, who: who, conn: conn, txStatus: txIdle}
	var input io.Reader = conn
	if len(who.Received) > 0 {
		input = io.MultiReader(bytes.NewReader(who.Received), conn)
	}
	s.who.Received = nil
	s.wire = pgproto3.NewBackend(input, conn)
	s.wire.SetMaxBodyLen(maxMessage)

	// The only way to stop a read: a deadline in the past.
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	defer func() {
		if r := recover(); r != nil {
			s.contain("session", r)
			err = &Error{State: stateInternal, Message: "the console session failed inside multipooler"}
		}
		if !stop() {
			<-interrupted
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			s.farewell(&Error{State: stateAdminShutdown, Message: "terminating connection due to administrator command"})
		} else if fatal, ok := errors.AsType[*Error](err); ok {
			s.farewell(fatal)
		}
		_ = conn.SetDeadline(time.Time{})
	}()
	return s.run(ctx)
}

// farewell tries to tell the client why it goes, unless the message could end
// up inside another one.
func (s *session) farewell(why *Error) {
	if s.torn {
		return
	}
	_ = s.conn.SetDeadline(time.Now().Add(farewellTimeout))
	s.wire.Send(response("FATAL", why))
	_ = s.wire.Flush()
}

func (s *session) run(ctx context.Context) error {
	for _, p := range [...][2]string{
		{"server_version", s.console.serverVersion},
		{"server_encoding", "UTF8"},
		{"client_encoding", "UTF8"},
		{"standard_conforming_strings", "on"},
		{"DateStyle", "ISO"},
		{"TimeZone", "GMT"},
		{"integer_datetimes", "on"},
		{"in_hot_standby", "off"},
		{"default_transaction_read_only", "off"},
	} {
		s.wire.Send(&pgproto3.ParameterStatus{Name: p[0], Value: p[1]})
	}
	if s.who.ProcessID != 0 {
		s.wire.Send(&pgproto3.BackendKeyData{ProcessID: s.who.ProcessID, SecretKey: s.who.SecretKey})
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	for {
		msg, err := s.wire.Receive()
		if err != nil {
			return receiveError(err)
		}
		if _, ok := msg.(*pgproto3.Terminate); ok {
			return nil
		}
		if err := s.handle(ctx, msg); err != nil {
			return err
		}
	}
}

// receiveError tells a broken connection (returned as it is) from a broken
// protocol (an *Error, which the client is told).
func receiveError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil // clients leave without Terminate too
	}
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		return fmt.Errorf("read from console client: %w", err)
	}
	if e, ok := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err); ok {
		return &Error{
			State:   stateProtocolViolation,
			Message: fmt.Sprintf("console message of %d bytes is longer than %d", e.ActualBodyLen, e.MaxExpectedBodyLen),
		}
	}
	return &Error{State: stateProtocolViolation, Message: err.Error()}
}

// handle answers one message. An error ends the session; what a client can
// survive is answered here.
func (s *session) handle(ctx context.Context, msg pgproto3.FrontendMessage) error {
	switch msg := msg.(type) {
	case *pgproto3.Query:
		s.extended.skipping = false
		s.extended.forgetUnnamed()
		s.simpleQuery(ctx, msg.String)
		return s.ready(ctx)
	case *pgproto3.FunctionCall:
		s.sendError(&Error{State: stateFeatureNotSupported, Message: "the console has no functions to call", Hint: helpHint})
		return s.ready(ctx)
	case *pgproto3.CopyData, *pgproto3.CopyDone, *pgproto3.CopyFail:
		return nil // stray ones are ignored, as PostgreSQL does
	case *pgproto3.Sync:
		s.extended.sync(s.txStatus)
		return s.ready(ctx)
	case *pgproto3.Flush:
		return s.flush(ctx)
	case *pgproto3.Parse, *pgproto3.Bind, *pgproto3.Describe, *pgproto3.Execute, *pgproto3.Close:
		if s.extended.skipping {
			return nil
		}
		if err := s.extendedMessage(ctx, msg); err != nil {
			s.sendError(err)
			s.extended.skipping = true
		}
		return s.flushIfLarge(ctx)
	default:
		return &Error{State: stateProtocolViolation, Message: fmt.Sprintf("unexpected message %T in a console session", msg)}
	}
}

// simpleQuery runs the statements of one Query message; the first error ends it.
func (s *session) simpleQuery(ctx context.Context, sql string) {
	statements, err := lex(sql)
	if err != nil {
		s.sendError(err)
		return
	}
	if len(statements) == 0 {
		s.wire.Send(&pgproto3.EmptyQueryResponse{})
		return
	}
	for _, stmt := range statements {
		a, err := s.console.resolve(stmt)
		if err != nil {
			s.sendError(err)
			return
		}
		rows, err := s.perform(ctx, a)
		if err != nil {
			s.sendError(err)
			return
		}
		if len(a.columns) > 0 {
			formats := make([]int16, len(a.columns))
			s.wire.Send(describe(a.columns, formats))
			if s.sendRows(ctx, formats, rows) != nil {
				return // the next flush reports it
			}
		}
		s.wire.Send(&pgproto3.CommandComplete{CommandTag: []byte(a.tag)})
	}
}

// perform runs an action and contains its panics: the session goes on, the
// process certainly does.
func (s *session) perform(ctx context.Context, a *action) (rows [][]Value, err error) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		s.contain(a.tag, r)
		rows, err = nil, &Error{State: stateInternal, Message: "the command failed inside multipooler", Hint: "The log has the details."}
	}()
	if a.notice != nil {
		s.wire.Send(a.notice())
	}
	rows, err = a.run(ctx, s)
	for _, row := range rows {
		if len(row) != len(a.columns) {
			panic(fmt.Sprintf("bug: console row of %d values in a table of %d columns", len(row), len(a.columns)))
		}
		for i, c := range a.columns {
			if !row[i].fits(c.Type) {
				panic(fmt.Sprintf("bug: console value %q does not have the type of column %s", row[i], c.Name))
			}
		}
	}
	return rows, err
}

// contain reports a recovered panic; where names what was running.
func (s *session) contain(where string, r any) {
	s.console.log.Error("console panicked",
		zap.String("in", where), zap.Uint64("client", s.who.ID), zap.Any("panic", r), zap.Stack("stack"))
	s.console.onPanic(r)
}

func (s *session) sendRows(ctx context.Context, formats []int16, rows [][]Value) error {
	var cells [][]byte
	for _, row := range rows {
		cells = cells[:0]
		for i, v := range row {
			cells = append(cells, v.encode(formats[i]))
			s.queued += len(cells[i]) + 4 // the length word
		}
		s.wire.Send(&pgproto3.DataRow{Values: cells})
		if err := s.flushIfLarge(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) sendError(err error) { s.wire.Send(response("ERROR", err)) }

// ready ends a reply.
func (s *session) ready(ctx context.Context) error {
	s.wire.Send(&pgproto3.ReadyForQuery{TxStatus: s.txStatus})
	return s.flush(ctx)
}

func (s *session) flushIfLarge(ctx context.Context) error {
	if s.queued < flushSize {
		return nil
	}
	return s.flush(ctx)
}

// flush writes what was sent. The order matters: a deadline set after ctx
// ended would undo the interruption.
func (s *session) flush(ctx context.Context) error {
	s.queued = 0
	_ = s.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if ctx.Err() != nil {
		s.broken = context.Cause(ctx)
	}
	if s.broken != nil {
		return s.broken
	}
	if err := s.wire.Flush(); err != nil {
		s.torn, s.broken = true, fmt.Errorf("write to console client: %w", err)
	}
	return s.broken
}
