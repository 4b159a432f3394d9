package admin

import (
	"encoding/binary"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Type is the PostgreSQL type of a console column. The console has only the
// two that every driver decodes.
type Type uint8

// Column types.
const (
	TypeText Type = iota
	TypeInt       // int8
)

// Object ids from pg_type.dat.
const (
	oidInt8 = 20
	oidText = 25
)

// Column is one column of a console table.
type Column struct {
	Name string
	Type Type
}

// Wire formats of a value, as in Bind.
const (
	formatText   = 0
	formatBinary = 1
)

// Value is one cell: text, an integer, or NULL (the zero Value).
type Value struct {
	kind valueKind
	num  int64
	str  string
}

type valueKind uint8

const (
	kindNull valueKind = iota
	kindText
	kindInt
)

// Null is the SQL NULL.
func Null() Value { return Value{} }

// Text is a text cell. Bytes that are not UTF-8 (a client may send any as its
// application_name) and NULs are replaced: the console promises UTF8.
func Text(s string) Value {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	}
	return Value{kind: kindText, str: s}
}

// textOrNull is NULL for the empty string.
func textOrNull(s string) Value {
	if s == "" {
		return Null()
	}
	return Text(s)
}

// Int is an int8 cell.
func Int(n int64) Value { return Value{kind: kindInt, num: n} }

// count is an int8 cell for counters, which do not reach 2^63.
func count(n uint64) Value { return Int(int64(n)) }

// boolean is 1 or 0, PgBouncer's booleans.
func boolean(b bool) Value {
	if b {
		return Int(1)
	}
	return Int(0)
}

// micros is a duration in microseconds, PgBouncer's unit.
func micros(d time.Duration) Value { return Int(d.Microseconds()) }

// timestamp is PgBouncer's notation for points in time; zero is NULL.
func timestamp(t time.Time) Value {
	if t.IsZero() {
		return Null()
	}
	return Text(t.UTC().Format("2006-01-02 15:04:05 MST"))
}

// String is the text representation; NULL is the empty string.
func (v Value) String() string {
	if v.kind == kindInt {
		return strconv.FormatInt(v.num, 10)
	}
	return v.str
}

// fits reports whether the value may stand in a column of type t.
func (v Value) fits(t Type) bool {
	return v.kind == kindNull || (v.kind == kindInt) == (t == TypeInt)
}

// encode gives the wire form; nil is NULL. Text is the same in both formats.
func (v Value) encode(format int16) []byte {
	switch {
	case v.kind == kindNull:
		return nil
	case v.kind == kindInt && format == formatBinary:
		return binary.BigEndian.AppendUint64(make([]byte, 0, 8), uint64(v.num))
	default:
		return append(make([]byte, 0, 8), v.String()...)
	}
}

// describe builds the RowDescription; formats has one entry per column.
func describe(columns []Column, formats []int16) *pgproto3.RowDescription {
	fields := make([]pgproto3.FieldDescription, len(columns))
	for i, c := range columns {
		fields[i] = pgproto3.FieldDescription{
			Name:         []byte(c.Name),
			DataTypeOID:  oidText,
			DataTypeSize: -1,
			TypeModifier: -1,
			Format:       formats[i],
		}
		if c.Type == TypeInt {
			fields[i].DataTypeOID, fields[i].DataTypeSize = oidInt8, 8
		}
	}
	return &pgproto3.RowDescription{Fields: fields}
}
