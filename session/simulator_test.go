package session

import (
	"bytes"
	"maps"
	"regexp"
	"strings"

	"github.com/multipooler/multipooler/protocol"
)

// simulator is a very small PostgreSQL: enough of the protocol and of the state
// that a connection keeps to tell whether every reply is the right one. It
// shares no code with the session but the framing. What it knows of SQL is in
// run; its rules are those of postgres.c.
type simulator struct {
	in, out []byte

	status   byte // I, T, E
	ignore   bool // till Sync
	copyIn   bool
	copied   int
	extended bool     // the message at hand is an extended one; the COPY's while copyIn
	rest     []string // statements of the simple Query behind its COPY
	open     bool     // an implicit transaction is open
	dead     bool

	state    memory
	saved    memory // at the start of the transaction
	defaults map[string]string
	texts    map[string]string // prepared statements
	portals  map[string]*simPortal
	told     map[string]string
}

// memory is what a ROLLBACK takes back.
type memory struct {
	set    map[string]string
	listen bool
}

func (m memory) clone() memory { return memory{maps.Clone(m.set), m.listen} }

type simPortal struct {
	sql  string
	rows []string // still to come
}

// newSimulator is a connection with the given startup settings.
func newSimulator(startup []Setting) *simulator {
	s := &simulator{
		status: 'I', defaults: map[string]string{"timezone": "UTC", "work_mem": "4MB", "application_name": ""},
		texts: map[string]string{}, portals: map[string]*simPortal{}, told: map[string]string{"timezone": "UTC"},
		state: memory{set: map[string]string{}},
	}
	for _, p := range startup {
		s.defaults[p.Name] = p.Value
	}
	s.told["timezone"] = s.defaults["timezone"]
	return s
}

func (s *simulator) value(name string) string {
	if v, ok := s.state.set[name]; ok {
		return v
	}
	return s.defaults[name]
}

// quiet tells whether nothing of a session is left, but for settings.
func (s *simulator) quiet() bool {
	return s.status == 'I' && !s.ignore && !s.copyIn && !s.open && !s.state.listen && !s.dead && len(s.out) == 0
}

// step processes the first whole message of its input; false: there is none.
func (s *simulator) step() bool {
	if s.dead {
		s.in = nil
		return false
	}
	if len(s.in) < protocol.HeaderLen {
		return false
	}
	typ, size, _, err := protocol.FrontendHeader(s.in)
	if err != nil {
		s.fatal("08P01", err.Error())
		return true
	}
	n := protocol.HeaderLen + size
	if len(s.in) < n {
		return false
	}
	body := bytes.Clone(s.in[protocol.HeaderLen:n])
	s.in = s.in[n:]
	s.message(typ, body)
	return true
}

func (s *simulator) message(typ protocol.Type, body []byte) {
	if s.copyIn {
		s.inCopy(typ, body)
		return
	}
	switch typ {
	case protocol.MsgSync:
		s.ignore = false
		s.end(true)
		s.ready()
		return
	case protocol.MsgTerminate:
		s.dead = true
		return
	case protocol.MsgCopyData, protocol.MsgCopyDone, protocol.MsgCopyFail, protocol.MsgFlush:
		return
	}
	if s.ignore {
		return
	}
	s.extended = typ != protocol.MsgQuery && typ != protocol.MsgFunctionCall
	switch typ {
	case protocol.MsgQuery:
		sql, err := protocol.ReadQuery(body)
		if err != nil {
			s.fail("08P01", err.Error())
			s.ready()
			return
		}
		delete(s.texts, "")
		delete(s.portals, "")
		list := strings.Split(string(sql), ";")
		if strings.TrimSpace(string(sql)) == "" {
			s.out = protocol.AppendEmptyQueryResponse(s.out)
			list = nil
		}
		s.script(list)
	case protocol.MsgFunctionCall:
		if s.status == 'E' {
			s.fail("25P02", "aborted")
		} else {
			s.out = protocol.AppendMessage(s.out, protocol.MsgFunctionCallResponse, []byte{255, 255, 255, 255})
			s.end(true)
		}
		s.ready()
	case protocol.MsgParse:
		m, err := protocol.ReadParse(body)
		name, sql := string(m.Name), string(m.Query)
		if err == nil && name == "" {
			delete(s.texts, "")
		}
		_, taken := s.texts[name]
		switch {
		case err != nil:
			s.fail("08P01", err.Error())
		case strings.HasPrefix(sql, "select syntax"):
			s.fail("42601", "syntax "+sql)
		case s.status == 'E' && sql != "rollback" && sql != "commit":
			s.fail("25P02", "aborted")
		case taken:
			s.fail("42P05", "exists")
		default:
			s.begin()
			s.texts[name] = sql
			s.out = protocol.AppendParseComplete(s.out)
		}
	case protocol.MsgBind:
		m, err := protocol.ReadBind(body)
		sql, ok := s.texts[string(m.Statement)]
		switch {
		case err != nil:
			s.fail("08P01", err.Error())
		case !ok:
			s.fail("26000", "no statement "+string(m.Statement))
		case s.status == 'E' && sql != "rollback" && sql != "commit":
			s.fail("25P02", "aborted")
		default:
			s.begin()
			s.portals[string(m.Portal)] = &simPortal{sql: sql, rows: s.rowsOf(sql)}
			s.out = protocol.AppendBindComplete(s.out)
		}
	case protocol.MsgDescribe:
		m, err := protocol.ReadDescribe(body)
		if err != nil {
			s.fail("08P01", err.Error())
			return
		}
		sql, ok := s.texts[string(m.Name)]
		code := "26000"
		if m.Kind == protocol.KindPortal {
			code, ok = "34000", false
			if p := s.portals[string(m.Name)]; p != nil {
				sql, ok = p.sql, true
			}
		}
		switch {
		case !ok:
			s.fail(code, "nothing to describe")
			return
		case s.status == 'E' && s.rowsOf(sql) != nil:
			s.fail("25P02", "aborted")
			return
		case m.Kind == protocol.KindStatement:
			s.out = protocol.AppendParameterDescription(s.out, nil)
		}
		s.begin()
		if s.rowsOf(sql) != nil {
			s.out = protocol.AppendRowDescription(s.out, protocol.Column{Name: "a"})
		} else {
			s.out = protocol.AppendNoData(s.out)
		}
	case protocol.MsgExecute:
		m, err := protocol.ReadExecute(body)
		p := s.portals[string(m.Portal)]
		switch {
		case err != nil:
			s.fail("08P01", err.Error())
		case p == nil:
			s.fail("34000", "no portal "+string(m.Portal))
		case p.sql == "":
			s.out = protocol.AppendEmptyQueryResponse(s.out)
		default:
			s.begin()
			s.run(p.sql, p, int(m.MaxRows))
		}
	case protocol.MsgClose:
		m, err := protocol.ReadClose(body)
		switch {
		case err != nil:
			s.fail("08P01", err.Error())
		case m.Kind == protocol.KindStatement:
			delete(s.texts, string(m.Name))
			s.out = protocol.AppendCloseComplete(s.out)
		default:
			delete(s.portals, string(m.Name))
			s.out = protocol.AppendCloseComplete(s.out)
		}
	}
}

// script runs the statements of a simple Query, up to a COPY.
func (s *simulator) script(list []string) {
	for len(list) > 0 {
		sql := strings.TrimSpace(list[0])
		list = list[1:]
		if sql == "" {
			continue
		}
		s.begin()
		if strings.HasPrefix(sql, "select syntax") {
			s.fail("42601", "syntax "+sql)
			break
		}
		if !s.run(sql, nil, 0) {
			break
		}
		if s.copyIn {
			s.rest = list
			return
		}
	}
	s.end(true)
	s.ready()
}

// inCopy takes a message in COPY mode.
func (s *simulator) inCopy(typ protocol.Type, body []byte) {
	failed := false
	switch typ {
	case protocol.MsgSync, protocol.MsgFlush:
		return
	case protocol.MsgCopyData:
		s.copied++
		if string(body) != "bad" {
			return
		}
		s.copyIn, failed = false, true
		s.fail("22P02", "bad data")
	case protocol.MsgCopyDone:
		s.copyIn = false
		s.out = protocol.AppendCommandComplete(s.out, "COPY "+string(rune('0'+s.copied%10)))
	case protocol.MsgCopyFail:
		s.copyIn, failed = false, true
		s.fail("57014", "COPY failed")
	default:
		s.fatal("08P01", "unexpected message during COPY")
		return
	}
	if s.extended {
		return
	}
	list := s.rest
	s.rest = nil
	if failed {
		list = nil
	}
	s.script(list)
}

// begin opens the implicit transaction.
func (s *simulator) begin() {
	if !s.open && s.status == 'I' {
		s.open = true
		s.saved = s.state.clone()
	}
}

// end ends the implicit transaction, if no BEGIN has made it a real one.
func (s *simulator) end(commit bool) {
	if s.status != 'I' {
		return
	}
	if s.open && !commit {
		s.state = s.saved
	}
	s.open = false
	clear(s.portals)
}

func (s *simulator) fail(code, message string) {
	s.out = protocol.AppendErrorResponse(s.out, &protocol.Error{Code: code, Message: message})
	if s.status == 'I' {
		s.end(false)
	} else {
		s.status = 'E'
		clear(s.portals)
	}
	s.ignore = s.extended
}

func (s *simulator) fatal(code, message string) {
	s.out = protocol.AppendErrorResponse(s.out, &protocol.Error{Severity: protocol.SeverityFatal, Code: code, Message: message})
	s.dead = true
}

func (s *simulator) ready() {
	if now := s.value("timezone"); now != s.told["timezone"] {
		s.told["timezone"] = now
		s.out = protocol.AppendParameterStatus(s.out, "TimeZone", now)
	}
	s.out = protocol.AppendReadyForQuery(s.out, protocol.TxStatus(s.status))
}

// rowsOf are the rows of a statement that returns some.
func (s *simulator) rowsOf(sql string) []string {
	if v, ok := strings.CutPrefix(sql, "select rows('"); ok {
		v = strings.TrimSuffix(v, "')")
		return []string{v + ".1", v + ".2", v + ".3"}
	}
	if v, ok := strings.CutPrefix(sql, "select '"); ok {
		return []string{strings.TrimSuffix(v, "'")}
	}
	if v, ok := strings.CutPrefix(sql, "show "); ok {
		if v == "listening" {
			if s.state.listen {
				return []string{"yes"}
			}
			return []string{"no"}
		}
		return []string{s.value(v)}
	}
	return nil
}

var (
	setStatement = regexp.MustCompile(`^(?:set|SET) (local )?(\w+) = '([^']*)'$`)
	setConfig    = regexp.MustCompile(`set_config\('([^']*)', '([^']*)', false\)`)
	realignPair  = regexp.MustCompile(`\('([^']*)', '([^']*)'\)`)
)

// run executes one statement; false: it has failed.
func (s *simulator) run(sql string, p *simPortal, limit int) bool {
	complete := func(tag string) bool {
		s.out = protocol.AppendCommandComplete(s.out, tag)
		return true
	}
	lower := strings.ToLower(sql)
	if s.status == 'E' && lower != "rollback" && lower != "commit" {
		s.fail("25P02", "aborted")
		return false
	}
	rows := s.rowsOf(sql)
	if p != nil && rows != nil {
		rows = p.rows
	}
	switch {
	case lower == "begin":
		if s.status == 'I' {
			s.begin()
			s.status = 'T'
		}
		return complete("BEGIN")
	case lower == "commit", lower == "rollback":
		commit := lower == "commit" && s.status != 'E'
		if s.status != 'I' || !s.open {
			s.status = 'I'
			s.end(commit)
		}
		if commit {
			return complete("COMMIT")
		}
		return complete("ROLLBACK")
	case strings.HasPrefix(sql, "select fail('"):
		s.fail("22012", sql)
		return false
	case strings.HasPrefix(lower, "copy "):
		s.copyIn, s.copied = true, 0
		s.out = protocol.AppendMessage(s.out, protocol.MsgCopyInResponse, []byte{0, 0, 0})
		return true
	case rows != nil || p != nil && s.rowsOf(sql) != nil:
		if p == nil {
			s.out = protocol.AppendRowDescription(s.out, protocol.Column{Name: "a"})
		}
		for n := 0; len(rows) > 0; n++ {
			if limit > 0 && n == limit {
				p.rows = rows
				s.out = protocol.AppendPortalSuspended(s.out)
				return true
			}
			s.out = protocol.AppendTextRow(s.out, rows[0])
			rows = rows[1:]
		}
		if p != nil {
			p.rows = []string{}
		}
		return complete("SELECT")
	case lower == "reset all", lower == "discard all":
		if lower == "discard all" {
			if s.status != 'I' {
				s.fail("25001", "DISCARD ALL cannot run inside a transaction block")
				return false
			}
			s.state.listen = false
			maps.DeleteFunc(s.texts, func(name, _ string) bool { return name != "" })
		}
		s.state.set = map[string]string{}
		if lower == "reset all" {
			return complete("RESET")
		}
		return complete("DISCARD ALL")
	case lower == "listen ch":
		s.state.listen = true
		return complete("LISTEN")
	case lower == "reset application_name":
		delete(s.state.set, "application_name")
		return complete("RESET")
	case strings.HasPrefix(lower, "reset "):
		delete(s.state.set, lower[len("reset "):])
		return complete("RESET")
	case strings.Contains(sql, "FROM (VALUES "):
		for _, m := range realignPair.FindAllStringSubmatch(sql, -1) {
			if _, set := s.state.set[m[1]]; !set {
				s.state.set[m[1]] = m[2]
			}
		}
		return complete("SELECT")
	case strings.HasPrefix(sql, "SELECT pg_catalog.set_config("):
		for _, m := range setConfig.FindAllStringSubmatch(sql, -1) {
			s.state.set[m[1]] = m[2]
		}
		return complete("SELECT")
	}
	if m := setStatement.FindStringSubmatch(sql); m != nil {
		s.state.set[m[2]] = m[3]
		return complete("SET")
	}
	return complete("OK")
}
