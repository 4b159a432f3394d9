package session

import (
	"github.com/multipooler/multipooler/protocol"
)

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
