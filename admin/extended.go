package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"
)

// maxNamed bounds the prepared statements and the portals of a session, each.
const maxNamed = 256

// extended is the state of the extended protocol in one session.
type extended struct {
	statements map[string]*action // by name, "" is the unnamed one; nil action = empty query
	portals    map[string]*portal
	skipping   bool // after an error, until Sync
}

// portal is a bound statement. Its rows are taken when it is executed first
// and handed out in the portions the client asks for.
type portal struct {
	action  *action // nil = empty query
	formats []int16 // one per column
	started bool
	rows    [][]Value
}

// forgetUnnamed is what a simple query does to the unnamed statement and portal.
func (e *extended) forgetUnnamed() {
	delete(e.statements, "")
	delete(e.portals, "")
}

// sync ends the implicit transaction, and with it the portals.
func (e *extended) sync(txStatus byte) {
	e.skipping = false
	if txStatus == txIdle {
		clear(e.portals)
	}
}

// extendedMessage answers one message of the extended protocol; the error is
// the client's to read.
func (s *session) extendedMessage(ctx context.Context, msg pgproto3.FrontendMessage) error {
	switch msg := msg.(type) {
	case *pgproto3.Parse:
		return s.parse(msg)
	case *pgproto3.Bind:
		return s.bind(msg)
	case *pgproto3.Describe:
		return s.describe(msg)
	case *pgproto3.Execute:
		return s.execute(ctx, msg)
	case *pgproto3.Close:
		if msg.ObjectType == 'S' {
			delete(s.extended.statements, msg.Name)
		} else {
			delete(s.extended.portals, msg.Name)
		}
		s.wire.Send(&pgproto3.CloseComplete{})
		return nil
	default:
		panic(fmt.Sprintf("bug: %T is not a message of the extended protocol", msg))
	}
}

func (s *session) parse(msg *pgproto3.Parse) error {
	e := &s.extended
	if _, taken := e.statements[msg.Name]; taken && msg.Name != "" {
		return &Error{State: stateDuplicateStatement, Message: fmt.Sprintf("prepared statement \"%s\" already exists", msg.Name)}
	}
	if len(e.statements) >= maxNamed {
		return tooMany("prepared statements")
	}
	statements, err := lex(msg.Query)
	if err != nil {
		return err
	}
	var a *action
	switch len(statements) {
	case 0:
	case 1:
		if a, err = s.console.resolve(statements[0]); err != nil {
			return err
		}
	default:
		return syntaxError("cannot insert multiple commands into a prepared statement")
	}
	if e.statements == nil {
		e.statements = make(map[string]*action)
	}
	e.statements[msg.Name] = a
	s.wire.Send(&pgproto3.ParseComplete{})
	return nil
}

func tooMany(what string) *Error {
	return &Error{State: stateTooComplex, Message: fmt.Sprintf("a console session holds at most %d %s", maxNamed, what)}
}

func (s *session) statement(name string) (*action, error) {
	a, ok := s.extended.statements[name]
	if !ok {
		return nil, &Error{State: stateInvalidStatementName, Message: fmt.Sprintf("prepared statement \"%s\" does not exist", name)}
	}
	return a, nil
}

func (s *session) portal(name string) (*portal, error) {
	p, ok := s.extended.portals[name]
	if !ok {
		return nil, &Error{State: stateInvalidCursorName, Message: fmt.Sprintf("portal \"%s\" does not exist", name)}
	}
	return p, nil
}

func (s *session) bind(msg *pgproto3.Bind) error {
	e := &s.extended
	a, err := s.statement(msg.PreparedStatement)
	if err != nil {
		return err
	}
	if n := len(msg.Parameters); n > 0 {
		return &Error{
			State:   stateProtocolViolation,
			Message: fmt.Sprintf("bind message supplies %d parameters, but console commands take none", n),
		}
	}
	if _, taken := e.portals[msg.DestinationPortal]; taken && msg.DestinationPortal != "" {
		return &Error{State: stateDuplicateCursor, Message: fmt.Sprintf("cursor \"%s\" already exists", msg.DestinationPortal)}
	}
	if len(e.portals) >= maxNamed {
		return tooMany("portals")
	}
	p := &portal{action: a}
	if a != nil {
		if p.formats, err = resultFormats(msg.ResultFormatCodes, len(a.columns)); err != nil {
			return err
		}
	}
	if e.portals == nil {
		e.portals = make(map[string]*portal)
	}
	e.portals[msg.DestinationPortal] = p
	s.wire.Send(&pgproto3.BindComplete{})
	return nil
}

// resultFormats spreads Bind's format codes over the columns: none = all
// text, one = for all, else one each.
func resultFormats(codes []int16, columns int) ([]int16, error) {
	formats := make([]int16, columns)
	if len(codes) > 1 && len(codes) != columns {
		return nil, &Error{
			State:   stateProtocolViolation,
			Message: fmt.Sprintf("bind message has %d result formats but query has %d columns", len(codes), columns),
		}
	}
	for i := range formats {
		switch {
		case len(codes) == 1:
			formats[i] = codes[0]
		case len(codes) > 1:
			formats[i] = codes[i]
		}
		if formats[i] != formatText && formats[i] != formatBinary {
			return nil, &Error{State: stateProtocolViolation, Message: fmt.Sprintf("unsupported format code: %d", formats[i])}
		}
	}
	return formats, nil
}

func (s *session) describe(msg *pgproto3.Describe) error {
	var (
		a       *action
		formats []int16
	)
	if msg.ObjectType == 'S' {
		var err error
		if a, err = s.statement(msg.Name); err != nil {
			return err
		}
		s.wire.Send(&pgproto3.ParameterDescription{})
		if a != nil {
			formats = make([]int16, len(a.columns)) // not known before Bind
		}
	} else {
		p, err := s.portal(msg.Name)
		if err != nil {
			return err
		}
		a, formats = p.action, p.formats
	}
	if a == nil || len(a.columns) == 0 {
		s.wire.Send(&pgproto3.NoData{})
		return nil
	}
	s.wire.Send(describe(a.columns, formats))
	return nil
}

func (s *session) execute(ctx context.Context, msg *pgproto3.Execute) error {
	p, err := s.portal(msg.Portal)
	if err != nil {
		return err
	}
	if p.action == nil {
		s.wire.Send(&pgproto3.EmptyQueryResponse{})
		return nil
	}
	if !p.started {
		if p.rows, err = s.perform(ctx, p.action); err != nil {
			return err
		}
		p.started = true
	}
	portion := p.rows
	if limit := int(msg.MaxRows); limit > 0 && limit < len(portion) {
		portion = portion[:limit]
	}
	p.rows = p.rows[len(portion):]
	if err := s.sendRows(ctx, p.formats, portion); err != nil {
		return err
	}
	if len(p.rows) > 0 {
		s.wire.Send(&pgproto3.PortalSuspended{})
		return nil
	}
	s.wire.Send(&pgproto3.CommandComplete{CommandTag: []byte(p.action.tag)})
	return nil
}
