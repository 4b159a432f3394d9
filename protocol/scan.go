package protocol

import (
	"bytes"
	"math"
)

// ScanOptions are what the server's lexer depends on.
type ScanOptions struct {
	// StandardConforming is the setting standard_conforming_strings: whether a
	// backslash in '…' is an ordinary character.
	StandardConforming bool
}

// Verdict is what a text of SQL is, as far as words tell.
//
// Known limits: what functions, triggers, rules, views and DO blocks do inside
// the server cannot be seen (a serial column calls nextval unseen), nor what a
// string says that is run as SQL or that names pg_temp in a search_path.
type Verdict struct {
	// Statements counts those that are not empty; the count saturates, and it
	// is a lower bound when Effects has EffectUnknown.
	Statements int
	// First and Last are the classes of the first and the last of them.
	First, Last Class
	// Effects are those of all statements together.
	Effects Effects
	// Unterminated: the text ends inside a string, a quoted identifier or a
	// comment. The server refuses such a text as a whole, so nothing of it can
	// take effect; but we may only believe that as long as we cut the text as
	// the server does, and so it comes with EffectUnknown.
	Unterminated bool
	// Backslash: a plain '…' holds a backslash, so that the verdict depends on
	// StandardConforming. If the server's setting is in doubt (a SET is in
	// flight), so is the verdict.
	Backslash bool
}

// maxWord is the longest identifier that PostgreSQL tells apart, and the
// longest dollar tag that the scanner remembers.
const maxWord = maxIdentifier

// Scanner reads SQL in pieces of any size: Reset, Feed as often as there are
// bytes, Finish. It keeps nothing of the input but the word at hand; the value
// may be copied, and its zero value scans with StandardConforming off.
//
// The lexical rules are those of PostgreSQL's scan.l, cut down to what decides
// where tokens and statements end:
//
//	normal ──letter──▶ word ──'──▶ string (e'…' b'…' x'…'), ──&──▶ wordU ──'/"──▶ string/quoted
//	       ──digit───▶ number ──e──▶ numberE ──+/-──▶ numberSign ──digit──▶ exponent
//	       ──$───────▶ dollar ──digit──▶ param, ──letter──▶ tag ──$──▶ body
//	       ──'───────▶ string ──'──▶ stringEnd ──'/newline '──▶ string
//	       ──"───────▶ quoted ──"──▶ quotedEnd ──"──▶ quoted
//	       ──-───────▶ minus ── - ──▶ lineComment ──newline──▶ normal
//	       ──/───────▶ slash ── * ──▶ comment (nesting) ── */ ──▶ normal
//
// A state other than normal that cannot go on hands the byte back to normal.
type Scanner struct {
	buf   [maxWord]byte // of the word, the quoted identifier or the dollar tag
	n     uint8         // bytes in buf; maxWord+1: it was longer
	state lexState

	standard   bool  // ScanOptions.StandardConforming
	escapes    bool  // string: backslash escapes
	plain      bool  // string: opened by a bare quote
	bits       bool  // string: B'' or X'', where '' does not stand for a quote
	escaped    bool  // string: the byte before was an escaping backslash
	gap        bool  // stringEnd: white space was seen
	newline    bool  // stringEnd: … with a newline in it
	dot        bool  // number: has its decimal point
	unicode    bool  // quoted: U&"…"
	last       byte  // comment: the byte before, as far as it may pair up
	matched    uint8 // body: bytes matched of the closing $tag$
	ended      bool  // a NUL was read
	backslash  bool
	comments   uint32 // depth of /* */
	statement         // of the statement at hand
	statements uint32
	first      Class
	lastClass  Class
	effects    Effects
}

type lexState uint8

const (
	lexNormal lexState = iota
	lexWord
	lexWordU
	lexNumber
	lexNumberE
	lexNumberSign
	lexNumberUnderscore
	lexExponent
	lexDollar
	lexParam
	lexTag
	lexBody
	lexMinus
	lexSlash
	lexLineComment
	lexComment
	lexString
	lexStringEnd
	lexStringMinus
	lexStringComment
	lexQuoted
	lexQuotedEnd
	lexGivenUp
)

// Scan is the verdict over a whole text.
func Scan(sql []byte, opts ScanOptions) Verdict {
	var s Scanner
	s.Reset(opts)
	s.Feed(sql)
	return s.Finish()
}

// Reset starts a new text.
func (s *Scanner) Reset(opts ScanOptions) {
	*s = Scanner{standard: opts.StandardConforming}
}

// Feed scans the next bytes of the text. A NUL ends the text, as it does in
// the messages, and may be fed; bytes behind it are an EffectUnknown.
func (s *Scanner) Feed(p []byte) {
	if s.ended {
		if len(p) > 0 {
			s.effects |= EffectUnknown
		}
		return
	}
	if i := bytes.IndexByte(p, 0); i >= 0 {
		s.ended = true
		if i+1 < len(p) {
			s.effects |= EffectUnknown
		}
		p = p[:i]
	}
	for i := 0; i < len(p); {
		switch s.state {
		case lexNormal:
			i = s.normal(p, i)
		case lexWord:
			i = s.word(p, i)
		case lexWordU:
			i = s.wordU(p, i)
		case lexNumber, lexNumberE, lexNumberSign, lexNumberUnderscore, lexExponent:
			i = s.number(p, i)
		case lexDollar, lexParam, lexTag:
			i = s.dollar(p, i)
		case lexBody:
			i = s.body(p, i)
		case lexMinus:
			i = s.pair(p, i, '-', lexLineComment)
		case lexSlash:
			i = s.pair(p, i, '*', lexComment)
		case lexLineComment, lexStringComment:
			i = s.lineComment(p, i)
		case lexComment:
			i = s.comment(p, i)
		case lexString:
			i = s.string(p, i)
		case lexStringEnd:
			i = s.stringEnd(p, i)
		case lexStringMinus:
			i = s.pair(p, i, '-', lexStringComment)
		case lexQuoted, lexQuotedEnd:
			i = s.quoted(p, i)
		case lexGivenUp:
			return
		}
	}
}

// Finish ends the text. The scanner must be Reset before it is used again.
func (s *Scanner) Finish() Verdict {
	unterminated := false
	switch s.state {
	case lexWord:
		s.endWord()
	case lexWordU:
		s.endWord()
		s.token(symOther)
	case lexNumberE, lexNumberUnderscore:
		s.endWord()
	case lexNumberSign:
		s.n = 1
		s.endWord()
		s.token(symOther)
	case lexDollar:
		s.badDollar()
	case lexTag:
		s.badDollar()
		s.endWord()
	case lexMinus, lexSlash, lexStringMinus:
		s.token(symOther)
	case lexQuotedEnd:
		s.endQuoted()
	case lexString, lexQuoted, lexComment, lexBody:
		unterminated = true
		s.effects |= EffectUnknown
	}
	s.state = lexGivenUp
	s.endStatement()
	return Verdict{
		Statements:   int(s.statements),
		First:        s.first,
		Last:         s.lastClass,
		Effects:      s.effects,
		Unterminated: unterminated,
		Backslash:    s.backslash,
	}
}

// endStatement adds the statement at hand to the verdict, unless it is empty.
func (s *Scanner) endStatement() {
	if !s.begun {
		return
	}
	s.endClassification()
	s.effects |= s.now
	if s.class == ClassNone {
		s.class = ClassUnknown
	}
	if s.statements == 0 {
		s.first = s.class
	}
	s.lastClass = s.class
	if s.statements < math.MaxUint32 {
		s.statements++
	}
	s.statement = statement{}
}
