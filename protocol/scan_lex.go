package protocol

import "bytes"

// Kinds of bytes, as in PostgreSQL's scan.l. Vertical tab is white space since
// PostgreSQL 16 and an error before.
const (
	kindOther byte = iota
	kindSpace
	kindQuote
	kindDoubleQuote
	kindMinus
	kindSlash
	kindPunctuation // single bytes that the classifier tells apart

	// Those that go on an identifier come last.
	kindLetter // starts one, too: letters, _, bytes of 0x80 and above
	kindDigit
	kindDollar
)

// byteKinds, and folded: ASCII lower case of each byte.
var byteKinds, folded = newByteTables()

func newByteTables() (kinds, lower [256]byte) {
	for i := range 256 {
		c := byte(i)
		lower[c] = c
		switch {
		case c >= 'A' && c <= 'Z':
			lower[c] = c + 'a' - 'A'
			kinds[c] = kindLetter
		case c >= 'a' && c <= 'z', c == '_', c >= 0x80:
			kinds[c] = kindLetter
		case c >= '0' && c <= '9':
			kinds[c] = kindDigit
		case c == ' ', c == '\t', c == '\n', c == '\r', c == '\f', c == '\v':
			kinds[c] = kindSpace
		}
	}
	for c, kind := range map[byte]byte{
		'$': kindDollar, '\'': kindQuote, '"': kindDoubleQuote, '-': kindMinus, '/': kindSlash,
		'(': kindPunctuation, ')': kindPunctuation, ';': kindPunctuation,
		'.': kindPunctuation, '*': kindPunctuation, '=': kindPunctuation,
	} {
		kinds[c] = kind
	}
	return kinds, lower
}

// inWord reports whether c goes on an identifier.
func inWord(c byte) bool { return byteKinds[c] >= kindLetter }

// normal reads between tokens. It returns when the state changes or the input
// ends, with the offset of the next unread byte, as all states do.
func (s *Scanner) normal(p []byte, i int) int {
	for i < len(p) {
		c := p[i]
		switch byteKinds[c] {
		case kindSpace:
			i++
		case kindLetter:
			j := i + 1
			for j < len(p) && inWord(p[j]) {
				j++
			}
			if j == len(p) || j == i+1 && (p[j] == '\'' || p[j] == '&') {
				s.n = 0
				s.keep(p[i:j])
				s.state = lexWord
				return j
			}
			s.identifier(lookup(p[i:j]), false)
			i = j
		case kindDigit:
			s.token(symOperand)
			for i++; i < len(p) && byteKinds[p[i]] == kindDigit; i++ {
			}
			if i < len(p) && byteKinds[p[i]] < kindLetter && p[i] != '.' {
				continue // an integer
			}
			s.state, s.dot = lexNumber, false
			return i
		case kindQuote:
			s.openString(!s.standard)
			s.plain = true
			return i + 1
		case kindDoubleQuote:
			if j := shortQuoted(p, i+1); j > 0 {
				s.identifier(lookup(p[i+1:j]), true)
				i = j + 1
				continue
			}
			s.state, s.n, s.unicode = lexQuoted, 0, false
			return i + 1
		case kindDollar:
			s.state = lexDollar
			return i + 1
		case kindMinus:
			s.state = lexMinus
			return i + 1
		case kindSlash:
			s.state = lexSlash
			return i + 1
		case kindPunctuation:
			i++
			switch c {
			case '.':
				s.token(symDot)
			case '*':
				s.token(symStar)
			case '=':
				s.token(symEqual)
			default:
				s.punctuation(c)
			}
		default:
			s.token(symOther)
			i++
		}
	}
	return i
}

// shortQuoted finds the end of a quoted identifier that starts at i, when it
// is short, whole and without quotes inside; else 0.
func shortQuoted(p []byte, i int) int {
	for j := i; j < min(len(p)-1, i+maxWord); j++ {
		if p[j] == '"' {
			if p[j+1] == '"' {
				return 0
			}
			return j
		}
	}
	return 0
}

func (s *Scanner) punctuation(c byte) {
	switch c {
	case '(':
		s.token(symOpen)
	case ')':
		s.token(symClose)
	case ';':
		s.semicolon()
	}
}

// pair is behind a byte that starts a comment together with next, and is an
// operator without it.
func (s *Scanner) pair(p []byte, i int, next byte, comment lexState) int {
	if p[i] != next {
		s.token(symOther)
		s.state = lexNormal
		return i
	}
	s.state = comment
	s.comments, s.last = 1, 0
	return i + 1
}

// keep adds to buf, noting when it does not fit.
func (s *Scanner) keep(w []byte) {
	if int(s.n)+len(w) > maxWord {
		if s.n < maxWord {
			copy(s.buf[s.n:], w)
		}
		s.n = maxWord + 1
		return
	}
	copy(s.buf[s.n:], w)
	s.n += uint8(len(w))
}

// kept looks buf up. What did not fit is longer than any word of ours, but its
// beginning is there.
func (s *Scanner) kept() symbol {
	if s.n > maxWord {
		if sym := lookup(s.buf[:]); sym == symTempNS {
			return sym
		}
		return symWord
	}
	return lookup(s.buf[:s.n])
}

func (s *Scanner) endWord() { s.identifier(s.kept(), false) }

func (s *Scanner) endQuoted() {
	s.identifier(s.kept(), true)
	if s.unicode {
		s.now |= EffectUnknown // its escapes can spell any name
	}
}

// word goes on an identifier that a piece of input ended in, or that is a
// single letter before a quote or an ampersand.
func (s *Scanner) word(p []byte, i int) int {
	j := i
	for j < len(p) && inWord(p[j]) {
		j++
	}
	s.keep(p[i:j])
	if j == len(p) {
		return j
	}
	if s.n == 1 {
		switch letter := folded[s.buf[0]]; {
		case p[j] == '\'' && letter == 'e':
			s.openString(true)
			return j + 1
		case p[j] == '\'' && (letter == 'b' || letter == 'x'):
			s.openString(false)
			s.bits = true
			return j + 1
		case p[j] == '&' && letter == 'u':
			s.state = lexWordU
			return j + 1
		}
	}
	s.endWord()
	s.state = lexNormal
	return j
}

// wordU is behind u&.
func (s *Scanner) wordU(p []byte, i int) int {
	switch p[i] {
	case '\'':
		s.openString(false)
		return i + 1
	case '"':
		s.state, s.n, s.unicode = lexQuoted, 0, true
		return i + 1
	}
	s.endWord()
	s.token(symOther)
	s.state = lexNormal
	return i
}

// number is behind the first digit. Up to PostgreSQL 14, what cannot belong to
// the number starts the next token (1into is 1 INTO); later it is an error.
func (s *Scanner) number(p []byte, i int) int {
	for ; i < len(p); i++ {
		c := p[i]
		digit := byteKinds[c] == kindDigit
		switch s.state {
		case lexNumber:
			switch {
			case digit:
			case c == '.' && !s.dot:
				s.dot = true
			case c == 'e' || c == 'E':
				s.n = 0
				s.keep(p[i : i+1])
				s.state = lexNumberE
			case c == '_':
				s.n = 0
				s.keep(p[i : i+1])
				s.state = lexNumberUnderscore
			default:
				s.state = lexNormal
				return i
			}
		case lexNumberUnderscore:
			if !digit {
				s.state = lexWord
				return i
			}
			s.state = lexNumber
		case lexNumberE:
			switch {
			case digit:
				s.state = lexExponent
			case c == '+' || c == '-':
				s.keep(p[i : i+1])
				s.state = lexNumberSign
			default:
				s.state = lexWord
				return i
			}
		case lexNumberSign:
			if digit {
				s.state = lexExponent
				continue
			}
			s.n = 1
			s.endWord()
			s.state = lexMinus
			if s.buf[1] == '+' {
				s.token(symOther)
				s.state = lexNormal
			}
			return i
		case lexExponent:
			if !digit {
				s.state = lexNormal
				return i
			}
		}
	}
	return i
}

// dollar is behind a $ that does not belong to an identifier: a parameter, or
// the opening tag of a dollar-quoted string.
func (s *Scanner) dollar(p []byte, i int) int {
	for ; i < len(p); i++ {
		c, kind := p[i], byteKinds[p[i]]
		switch s.state {
		case lexDollar:
			s.n = 0
			switch kind {
			case kindDigit:
				s.token(symOperand)
				s.state = lexParam
			case kindDollar:
				s.openBody()
				return i + 1
			case kindLetter:
				s.state = lexTag
				s.keep(p[i : i+1])
			default:
				s.badDollar()
				s.state = lexNormal
				return i
			}
		case lexParam:
			if kind != kindDigit {
				s.state = lexNormal
				return i
			}
		case lexTag:
			switch {
			case c == '$':
				s.openBody()
				return i + 1
			case kind == kindLetter || kind == kindDigit:
				s.keep(p[i : i+1])
			default: // not a tag: a stray $ and an identifier
				s.badDollar()
				s.state = lexWord
				return i
			}
		}
	}
	return i
}

// badDollar is a $ that the server's grammar has no use for.
func (s *Scanner) badDollar() {
	s.token(symOther)
	s.now |= EffectUnknown
}

func (s *Scanner) openBody() {
	s.token(symString)
	s.state, s.matched = lexBody, 0
	if s.n > maxWord {
		// We could not tell where it ends.
		s.effects |= EffectUnknown
		s.state = lexGivenUp
	}
}

// body looks for $tag$. Only its two dollars are dollars, so after a mismatch
// the search goes on at the mismatch.
func (s *Scanner) body(p []byte, i int) int {
	for i < len(p) {
		if s.matched == 0 {
			j := bytes.IndexByte(p[i:], '$')
			if j < 0 {
				return len(p)
			}
			s.matched = 1
			i += j + 1
			continue
		}
		c := p[i]
		i++
		switch {
		case c == '$' && s.matched == s.n+1:
			s.state = lexNormal
			return i
		case c == '$':
			s.matched = 1
		case s.matched <= s.n && c == s.buf[s.matched-1]:
			s.matched++
		default:
			s.matched = 0
		}
	}
	return i
}

func (s *Scanner) lineComment(p []byte, i int) int {
	for ; i < len(p); i++ {
		if p[i] != '\n' && p[i] != '\r' {
			continue
		}
		if s.state == lexStringComment {
			s.state, s.gap, s.newline = lexStringEnd, true, true
		} else {
			s.state = lexNormal
		}
		return i + 1
	}
	return i
}

func (s *Scanner) comment(p []byte, i int) int {
	for ; i < len(p); i++ {
		c := p[i]
		switch {
		case c == '/' && s.last == '*':
			s.last = 0
			if s.comments--; s.comments == 0 {
				s.state = lexNormal
				return i + 1
			}
		case c == '*' && s.last == '/':
			s.last = 0
			s.comments++ // at most half the bytes of a message: fits
		default:
			s.last = c
		}
	}
	return i
}

func (s *Scanner) openString(escapes bool) {
	s.token(symString)
	s.state, s.escapes = lexString, escapes
	s.plain, s.bits, s.escaped = false, false, false
}

func (s *Scanner) string(p []byte, i int) int {
	if !s.escapes {
		end := bytes.IndexByte(p[i:], '\'')
		text := p[i:]
		if end >= 0 {
			text = p[i : i+end]
			s.state, s.gap, s.newline = lexStringEnd, false, false
		}
		if s.plain && !s.backslash && bytes.IndexByte(text, '\\') >= 0 {
			s.backslash = true
		}
		if end < 0 {
			return len(p)
		}
		return i + end + 1
	}
	for ; i < len(p); i++ {
		switch c := p[i]; {
		case s.escaped:
			s.escaped = false
		case c == '\\':
			s.escaped = true
			s.backslash = s.backslash || s.plain
		case c == '\'':
			s.state, s.gap, s.newline = lexStringEnd, false, false
			return i + 1
		}
	}
	return i
}

// stringEnd is behind a quote that may end a string: another quote right
// behind is a quote inside; one behind white space with a newline in it goes
// on the same string, with the same rules for its backslashes.
func (s *Scanner) stringEnd(p []byte, i int) int {
	for ; i < len(p); i++ {
		switch c := p[i]; {
		case c == '\'' && (s.newline || !s.gap && !s.bits):
			s.state = lexString
			return i + 1
		case c == '\n' || c == '\r':
			s.gap, s.newline = true, true
		case byteKinds[c] == kindSpace:
			s.gap = true
		case c == '-':
			s.state = lexStringMinus
			return i + 1
		default:
			s.state = lexNormal
			return i
		}
	}
	return i
}

func (s *Scanner) quoted(p []byte, i int) int {
	if s.state == lexQuotedEnd {
		if p[i] != '"' {
			s.endQuoted()
			s.state = lexNormal
			return i
		}
		s.keep(p[i : i+1])
		s.state = lexQuoted
		return i + 1
	}
	end := bytes.IndexByte(p[i:], '"')
	if end < 0 {
		s.keep(p[i:])
		return len(p)
	}
	s.keep(p[i : i+end])
	s.state = lexQuotedEnd
	return i + end + 1
}
