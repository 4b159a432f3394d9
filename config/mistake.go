package config

import (
	"cmp"
	"errors"
	"fmt"
)

// SourceKind orders where a value can come from, by precedence.
type SourceKind uint8

// The kinds of source, lowest precedence first.
const (
	FromDefault SourceKind = iota
	FromFile
	FromSeedEnv
	FromEnv
	FromFlag
	FromArgument
)

// Source is where a value came from.
type Source struct {
	Kind SourceKind
	Name string // the flag, the variable, the file
	Line int    // in the file
}

func (s Source) String() string {
	switch s.Kind {
	case FromDefault:
		return "default"
	case FromFile:
		if s.Line == 0 {
			return s.Name
		}
		return fmt.Sprintf("%s:%d", s.Name, s.Line)
	case FromSeedEnv, FromEnv:
		return "env " + s.Name
	case FromFlag:
		return "flag --" + s.Name
	case FromArgument:
		return "argument"
	}
	panic(fmt.Sprintf("bug: source kind %d", s.Kind))
}

// Mistake is one thing that the operator has to change, with its place.
type Mistake struct {
	Source  Source
	Key     string // "" when it belongs to none
	Problem string
}

func (m *Mistake) Error() string {
	switch {
	case m.Key == "":
		return m.Source.String() + ": " + m.Problem
	case m.Source.Kind == FromDefault:
		return m.Key + ": " + m.Problem
	}
	return m.Source.String() + ": " + m.Key + ": " + m.Problem
}

// Mistakes lists what errors.Join joined.
func Mistakes(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range joined.Unwrap() {
			out = append(out, Mistakes(e)...)
		}
		return out
	}
	return []error{err}
}

// Note is a remark about something that works but that the operator may not
// want.
type Note struct {
	Warn   bool // else it is for information
	Source Source
	Key    string
	Text   string
}

func (n Note) String() string {
	return (&Mistake{Source: n.Source, Key: n.Key, Problem: n.Text}).Error()
}

// mistakes collects while configuration is read.
type mistakes []error

func (m *mistakes) add(src Source, key, format string, args ...any) {
	*m = append(*m, &Mistake{Source: src, Key: key, Problem: fmt.Sprintf(format, args...)})
}

// addErr adds each part of a joined error on its own.
func (m *mistakes) addErr(src Source, key string, err error) {
	for _, e := range Mistakes(err) {
		m.add(src, key, "%s", e.Error())
	}
}

func (m mistakes) join() error { return errors.Join(m...) }

// byPlace orders mistakes as a person works them off: command line,
// environment, file from top to bottom, and what is missing altogether.
func byPlace(a, b error) int {
	rank := func(e error) (kind, line int) {
		m, ok := errors.AsType[*Mistake](e)
		if !ok {
			return 0, 0
		}
		return -int(m.Source.Kind), m.Source.Line
	}
	ka, la := rank(a)
	kb, lb := rank(b)
	return cmp.Or(cmp.Compare(ka, kb), cmp.Compare(la, lb))
}
