package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Command is a table: SHOW Name prints it.
type Command struct {
	Name    string // one word, upper case
	Help    string // half a sentence for SHOW HELP
	Columns []Column
	// Rows takes the snapshot. It runs on the goroutine of a console session
	// and should return when ctx ends.
	Rows func(ctx context.Context) ([][]Value, error)
}

// Verb is a command that does something, PAUSE for example.
type Verb struct {
	Name  string // one word, upper case
	Usage string // "PAUSE [database]"
	Help  string
	// ReadOnly verbs are open to sessions that are not Admin.
	ReadOnly bool
	// Run does it and returns when it is done; args are the words after the
	// name, unquoted, symbols as words of their own. The tag of the reply is
	// Name. It runs on the goroutine of the console session and must return
	// soon after ctx ended; ctx ends when the session is closed by the process,
	// not when the client goes away.
	Run func(ctx context.Context, s ConsoleSession, args []string) error
}

// Register adds a table. Register before the first Serve; a name that is
// taken is a bug.
func (c *Console) Register(cmd Command) {
	checkName(cmd.Name)
	if _, taken := c.tables[cmd.Name]; taken {
		panic("bug: console table " + cmd.Name + " is registered twice")
	}
	if len(cmd.Columns) == 0 || cmd.Rows == nil {
		panic("bug: console table " + cmd.Name + " has no columns or no rows")
	}
	c.tables[cmd.Name] = cmd
}

// RegisterVerb adds a verb, under the same rule. A verb named SET gets only
// the settings that are not a driver's (client_encoding, DateStyle, ...).
func (c *Console) RegisterVerb(v Verb) {
	checkName(v.Name)
	if _, taken := c.verbs[v.Name]; taken || v.Name == "SHOW" || v.Name == "SELECT" || isTransactionWord(v.Name) {
		panic("bug: console verb " + v.Name + " is registered twice or belongs to the console")
	}
	if v.Run == nil {
		panic("bug: console verb " + v.Name + " does nothing")
	}
	c.verbs[v.Name] = v
}

func checkName(name string) {
	stmts, err := lex(name)
	if err != nil || len(stmts) != 1 || len(stmts[0]) != 1 || stmts[0].word(0) != name {
		panic(fmt.Sprintf("bug: console command %q is not one word in upper case", name))
	}
}

// action is a statement that was understood and not yet run.
type action struct {
	columns []Column // none: it returns no rows
	tag     string   // of CommandComplete
	run     func(ctx context.Context, s *session) ([][]Value, error)
	notice  func() *pgproto3.NoticeResponse // nil: none
}

// resolve finds what a statement means to the console. It has no effects.
func (c *Console) resolve(stmt statement) (*action, error) {
	switch verb := stmt.word(0); verb {
	case "SHOW":
		return c.resolveShow(stmt)
	case "SELECT":
		if len(stmt) == 2 { // SELECT POOLS: PgBouncer's other spelling of SHOW
			if t, ok := c.tables[stmt.word(1)]; ok {
				return c.tableAction(t), nil
			}
		}
		return resolveSelect(stmt)
	default:
		if a := resolveIgnored(stmt); a != nil {
			return a, nil
		}
		if v, ok := c.verbs[verb]; ok {
			return verbAction(v, stmt[1:]), nil
		}
		if verb == "SET" || verb == "RESET" {
			return nil, &Error{State: stateUndefinedObject, Message: "unknown setting in \"" + stmt.String() + "\"", Hint: helpHint}
		}
		return nil, syntaxError("unknown command \"%s\"", stmt)
	}
}

func (c *Console) resolveShow(stmt statement) (*action, error) {
	if len(stmt) == 2 {
		if t, ok := c.tables[stmt.word(1)]; ok {
			return c.tableAction(t), nil
		}
	}
	if a := c.resolveParameter(stmt[1:]); a != nil {
		return a, nil
	}
	return nil, syntaxError("unknown command \"%s\"", stmt)
}

func (c *Console) tableAction(t Command) *action {
	a := &action{columns: t.Columns, tag: "SHOW", run: func(ctx context.Context, _ *session) ([][]Value, error) {
		return t.Rows(ctx)
	}}
	if t.Name == "HELP" {
		a.notice = func() *pgproto3.NoticeResponse {
			return &pgproto3.NoticeResponse{
				Severity: "NOTICE", SeverityUnlocalized: "NOTICE", Code: "00000",
				Message: "Console usage", Detail: c.helpText(),
			}
		}
	}
	return a
}

func verbAction(v Verb, rest statement) *action {
	args := make([]string, len(rest))
	for i, t := range rest {
		args[i] = t.text
	}
	return &action{tag: v.Name, run: func(ctx context.Context, s *session) ([][]Value, error) {
		if !v.ReadOnly && !s.who.Admin {
			return nil, &Error{
				State:   stateInsufficientPrivilege,
				Message: v.Name + " needs an administrator",
				Detail:  fmt.Sprintf("User \"%s\" may only read.", s.who.User),
				Hint:    "Add the user to --admin-users.",
			}
		}
		return nil, v.Run(ctx, s.who, args)
	}}
}

// helpText is the notice of SHOW HELP.
func (c *Console) helpText() string {
	var b strings.Builder
	b.WriteString("\n  SHOW " + strings.Join(slices.Sorted(maps.Keys(c.tables)), "|"))
	for _, name := range slices.Sorted(maps.Keys(c.verbs)) {
		b.WriteString("\n  " + c.verbs[name].Usage)
	}
	return b.String()
}

// helpRows are the rows of SHOW HELP.
func (c *Console) helpRows(context.Context) ([][]Value, error) {
	var rows [][]Value
	for _, name := range slices.Sorted(maps.Keys(c.tables)) {
		rows = append(rows, []Value{Text("SHOW " + name), Text(c.tables[name].Help)})
	}
	for _, name := range slices.Sorted(maps.Keys(c.verbs)) {
		rows = append(rows, []Value{Text(c.verbs[name].Usage), Text(c.verbs[name].Help)})
	}
	return rows, nil
}
