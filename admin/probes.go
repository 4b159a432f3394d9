package admin

import (
	"context"
	"strconv"
	"strings"
)

// What drivers and monitoring send before or between console commands: SELECT
// of a constant or of the version, SHOW and SET of session settings,
// transactions. The console answers what it can and does nothing else.

// sessionSettings are the settings a driver may ask for and set. Setting them
// has no effect. Values are those that ParameterStatus told, or PostgreSQL's
// defaults. Keys are in lower case.
var sessionSettings = map[string]string{
	"application_name":              "",
	"bytea_output":                  "hex",
	"client_encoding":               "UTF8",
	"client_min_messages":           "notice",
	"datestyle":                     "ISO",
	"default_transaction_isolation": "read committed",
	"default_transaction_read_only": "off",
	"extra_float_digits":            "1",
	"idle_session_timeout":          "0",
	"in_hot_standby":                "off",
	"integer_datetimes":             "on",
	"intervalstyle":                 "postgres",
	"is_superuser":                  "off",
	"jit":                           "off",
	"lock_timeout":                  "0",
	"max_identifier_length":         "63",
	"search_path":                   `"$user", public`,
	"server_encoding":               "UTF8",
	"standard_conforming_strings":   "on",
	"statement_timeout":             "0",
	"timezone":                      "GMT",
	"transaction_isolation":         "read committed",
	"transaction_read_only":         "off",
}

// resolveParameter answers SHOW setting, nil when it is none.
func (c *Console) resolveParameter(name statement) *action {
	var words []string
	for _, t := range name {
		if t.kind != tokWord && t.kind != tokQuoted {
			return nil
		}
		words = append(words, strings.ToLower(t.text))
	}
	key := strings.Join(words, " ")
	switch key { // the spellings of the SQL standard
	case "transaction isolation level":
		key = "transaction_isolation"
	case "time zone":
		key = "timezone"
	}
	value, ok := sessionSettings[key]
	switch key {
	case "server_version":
		value, ok = c.serverVersion, true
	case "server_version_num":
		value, ok = strconv.Itoa(versionNumber(c.serverVersion)), true
	}
	if !ok {
		return nil
	}
	return &action{columns: []Column{{Name: key}}, tag: "SHOW", run: func(context.Context, *session) ([][]Value, error) {
		return [][]Value{{Text(value)}}, nil
	}}
}

// versionNumber turns 1.2.3 into 10203, for clients that compare.
func versionNumber(version string) int {
	n := 0
	for i, part := range strings.SplitN(version, ".", 3) {
		v, _ := strconv.Atoi(part[:run(part, isDigit)])
		n += min(v, 99) * [...]int{10000, 100, 1}[i]
	}
	return n
}

func isTransactionWord(word string) bool {
	switch word {
	case "BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT":
		return true
	}
	return false
}

// resolveIgnored accepts what drivers send as a matter of course and what
// means nothing to the console; nil when the statement is something else.
func resolveIgnored(stmt statement) *action {
	nothing := func(tag string) *action {
		return &action{tag: tag, run: func(context.Context, *session) ([][]Value, error) { return nil, nil }}
	}
	transaction := func(tag string, status byte) *action {
		return &action{tag: tag, run: func(_ context.Context, s *session) ([][]Value, error) {
			s.txStatus = status
			return nil, nil
		}}
	}
	switch word := stmt.word(0); word {
	case "BEGIN":
		return transaction("BEGIN", txOpen)
	case "START":
		if stmt.word(1) == "TRANSACTION" {
			return transaction("START TRANSACTION", txOpen)
		}
	case "COMMIT", "END":
		return transaction("COMMIT", txIdle)
	case "ROLLBACK", "ABORT":
		if stmt.word(1) == "TO" {
			return nothing("ROLLBACK")
		}
		return transaction("ROLLBACK", txIdle)
	case "SAVEPOINT", "RELEASE":
		return nothing(word)
	case "DISCARD":
		return nothing("DISCARD " + stmt.word(1))
	case "DEALLOCATE", "UNLISTEN":
		return nothing(word)
	case "CLOSE":
		if stmt.word(1) == "ALL" {
			return nothing("CLOSE CURSOR ALL")
		}
	case "RESET":
		if _, ok := sessionSettings[strings.ToLower(stmt.word(1))]; ok || stmt.word(1) == "ALL" {
			return nothing("RESET")
		}
	case "SET":
		if ignoredSet(stmt[1:]) {
			return nothing("SET")
		}
	}
	return nil
}

// ignoredSet recognises SET [SESSION|LOCAL] of a session setting, NAMES, TIME
// ZONE, TRANSACTION and SESSION CHARACTERISTICS.
func ignoredSet(rest statement) bool {
	if w := rest.word(0); (w == "SESSION" || w == "LOCAL") && len(rest) > 1 {
		rest = rest[1:]
	}
	switch rest.word(0) {
	case "NAMES", "TIME", "TRANSACTION", "CHARACTERISTICS":
		return true
	}
	_, ok := sessionSettings[strings.ToLower(rest.word(0))]
	return ok
}

// resolveSelect answers a list of constants and of functions that ask who and
// where one is.
func resolveSelect(stmt statement) (*action, error) {
	p := selectParser{rest: stmt[1:]}
	var (
		columns []Column
		values  []selectValue
	)
	for ok := true; ok; ok = p.accept(",") {
		name, value, known := p.item()
		if !known {
			return nil, notSQL(stmt)
		}
		columns, values = append(columns, Column{name, value.typ}), append(values, value)
	}
	if len(p.rest) > 0 {
		return nil, notSQL(stmt)
	}
	return &action{columns: columns, tag: "SELECT 1", run: func(_ context.Context, s *session) ([][]Value, error) {
		row := make([]Value, len(values))
		for i, v := range values {
			row[i] = v.of(s)
		}
		return [][]Value{row}, nil
	}}, nil
}

func notSQL(stmt statement) *Error {
	return &Error{
		State:   stateFeatureNotSupported,
		Message: "the console cannot run \"" + stmt.String() + "\"",
		Detail:  "It answers its own commands, not SQL.",
		Hint:    helpHint,
	}
}

type selectValue struct {
	typ Type
	of  func(*session) Value
}

// selectParser reads items of a select list: literal | [pg_catalog.]function
// [()] with an optional alias.
type selectParser struct{ rest statement }

func (p *selectParser) accept(word string) bool {
	if len(p.rest) == 0 || !p.rest[0].is(word) {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

func (p *selectParser) item() (name string, v selectValue, ok bool) {
	if len(p.rest) == 0 {
		return "", v, false
	}
	if len(p.rest) > 1 && p.rest[0].is("pg_catalog") && p.rest[1].is(".") {
		p.rest = p.rest[2:]
		if len(p.rest) == 0 {
			return "", v, false
		}
	}
	t := p.rest[0]
	p.rest = p.rest[1:]
	switch t.kind {
	case tokNumber:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			return "", v, false
		}
		name, v = "?column?", selectValue{TypeInt, func(*session) Value { return Int(n) }}
	case tokString:
		name, v = "?column?", selectValue{TypeText, func(*session) Value { return Text(t.text) }}
	case tokWord:
		name = strings.ToLower(t.text)
		if v, ok = selectFunctions[name]; !ok {
			return "", v, false
		}
		if p.accept("(") && !p.accept(")") {
			return "", v, false
		}
	default:
		return "", v, false
	}
	if as := p.accept("AS"); as || len(p.rest) > 0 && p.rest.word(0) != "" && !p.rest[0].is("FROM") {
		if len(p.rest) == 0 || p.rest.word(0) == "" {
			return "", v, false
		}
		name, p.rest = p.rest[0].text, p.rest[1:]
	}
	return name, v, true
}

// selectFunctions are the functions and constants the console knows, in lower
// case, each without arguments.
var selectFunctions = map[string]selectValue{
	"version":           {TypeText, func(s *session) Value { return Text(s.console.versionText) }},
	"current_user":      {TypeText, func(s *session) Value { return Text(s.who.User) }},
	"session_user":      {TypeText, func(s *session) Value { return Text(s.who.User) }},
	"user":              {TypeText, func(s *session) Value { return Text(s.who.User) }},
	"current_database":  {TypeText, func(s *session) Value { return Text(s.who.Database) }},
	"current_catalog":   {TypeText, func(s *session) Value { return Text(s.who.Database) }},
	"current_schema":    {TypeText, func(*session) Value { return Text("public") }},
	"pg_backend_pid":    {TypeInt, func(s *session) Value { return Int(int64(s.who.ProcessID)) }},
	"pg_is_in_recovery": {TypeText, func(*session) Value { return Text("f") }},
	"null":              {TypeText, func(*session) Value { return Null() }},
}
