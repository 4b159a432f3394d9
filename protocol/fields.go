package protocol

// Field codes of ErrorResponse and NoticeResponse (PostgreSQL manual, "Error
// and Notice Message Fields"); those that somebody here reads or writes.
const (
	FieldSeverity        byte = 'S' // localised
	FieldSeverityUnlocal byte = 'V' // never localised, since 9.6
	FieldCode            byte = 'C'
	FieldMessage         byte = 'M'
	FieldDetail          byte = 'D'
	FieldHint            byte = 'H'
	FieldPosition        byte = 'P'
	FieldWhere           byte = 'W'
	FieldSchema          byte = 's'
	FieldTable           byte = 't'
	FieldRoutine         byte = 'R'
	endOfFields          byte = 0
)

// Fields is the view of an ErrorResponse or NoticeResponse body.
type Fields []byte

// ReadFields checks the body: fields of a code and a string, then a NUL.
func ReadFields(body []byte) (Fields, error) {
	r := reader{p: body}
	for {
		code := r.byte()
		if r.bad != "" || code == endOfFields {
			break
		}
		r.string()
	}
	return Fields(body[:len(body):len(body)]), r.end()
}

// Next takes the first field off. ok is false at the end, and where the body
// is malformed.
func (f Fields) Next() (code byte, value []byte, rest Fields, ok bool) {
	if len(f) == 0 || f[0] == endOfFields {
		return 0, nil, nil, false
	}
	value, tail, ok := CString(f[1:])
	return f[0], value, tail, ok
}

// Get returns the value of the first field with this code, nil when there is
// none.
func (f Fields) Get(code byte) []byte {
	for {
		c, value, rest, ok := f.Next()
		if !ok {
			return nil
		}
		if c == code {
			return value
		}
		f = rest
	}
}

// Severity is the severity that is never localised; servers before 9.6 send
// only the localised one.
func (f Fields) Severity() []byte {
	if v := f.Get(FieldSeverityUnlocal); v != nil {
		return v
	}
	return f.Get(FieldSeverity)
}

// ToError copies the fields that an Error has.
func (f Fields) ToError() *Error {
	return &Error{
		Severity: string(f.Severity()),
		Code:     string(f.Get(FieldCode)),
		Message:  string(f.Get(FieldMessage)),
		Detail:   string(f.Get(FieldDetail)),
		Hint:     string(f.Get(FieldHint)),
	}
}
