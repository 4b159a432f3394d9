package differential

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// step is sent in one go and its replies are read before the next one.
type step struct {
	messages []pgproto3.FrontendMessage
	pieces   int // number of writes
}

// section is a run of steps that starts and ends outside a transaction and
// without session state.
type section struct {
	steps []step
	holds bool // keeps session state between transactions
}

type script []section

func (s step) String() string {
	parts := make([]string, len(s.messages))
	for i, m := range s.messages {
		parts[i] = describe(m)
	}
	return strings.Join(parts, " ")
}

func describe(m pgproto3.FrontendMessage) string {
	const most = 300
	text := ""
	switch m := m.(type) {
	case *pgproto3.Query:
		text = fmt.Sprintf("Query(%q)", m.String)
	case *pgproto3.Parse:
		text = fmt.Sprintf("Parse(%q, %q, %v)", m.Name, m.Query, m.ParameterOIDs)
	case *pgproto3.Bind:
		text = fmt.Sprintf("Bind(%q, %q, %q, %v, %v)", m.DestinationPortal, m.PreparedStatement, m.Parameters, m.ParameterFormatCodes, m.ResultFormatCodes)
	case *pgproto3.Describe:
		text = fmt.Sprintf("Describe(%c %q)", m.ObjectType, m.Name)
	case *pgproto3.Execute:
		text = fmt.Sprintf("Execute(%q, %d)", m.Portal, m.MaxRows)
	case *pgproto3.Close:
		text = fmt.Sprintf("Close(%c %q)", m.ObjectType, m.Name)
	case *pgproto3.CopyData:
		text = fmt.Sprintf("CopyData(%q)", m.Data)
	case *pgproto3.CopyFail:
		text = fmt.Sprintf("CopyFail(%q)", m.Message)
	case *pgproto3.FunctionCall:
		text = fmt.Sprintf("FunctionCall(%d, %q)", m.Function, m.Arguments)
	default:
		text = strings.TrimPrefix(fmt.Sprintf("%T", m), "*pgproto3.")
	}
	if len(text) > most {
		text = fmt.Sprintf("%s… (%d bytes)", text[:most], len(text))
	}
	return text
}
