package admin

import "strings"

// tokenKind tells the lexer's tokens apart.
type tokenKind uint8

const (
	tokWord   tokenKind = iota // unquoted identifier or keyword
	tokQuoted                  // "identifier", quotes removed
	tokString                  // 'literal', quotes removed
	tokNumber                  // digits and dots
	tokSymbol                  // one character
)

type token struct {
	kind tokenKind
	text string
}

// is reports whether the token is the keyword or symbol, in any case.
func (t token) is(word string) bool {
	return (t.kind == tokWord || t.kind == tokSymbol) && strings.EqualFold(t.text, word)
}

// statement is one command of a query string: its tokens without comments.
type statement []token

// word is the i-th token in upper case when it can be a name, else "".
func (s statement) word(i int) string {
	if i >= len(s) || s[i].kind != tokWord && s[i].kind != tokQuoted {
		return ""
	}
	return strings.ToUpper(s[i].text)
}

// String gives the statement back in one line, for error messages, cut to a
// length that fits one.
func (s statement) String() string {
	const most = 64
	var b strings.Builder
	for i, t := range s {
		if i > 0 && t.kind != tokSymbol {
			b.WriteByte(' ')
		}
		switch t.kind {
		case tokQuoted:
			b.WriteString(`"` + strings.ReplaceAll(t.text, `"`, `""`) + `"`)
		case tokString:
			b.WriteString(`'` + strings.ReplaceAll(t.text, `'`, `''`) + `'`)
		default:
			b.WriteString(t.text)
		}
		if b.Len() > most {
			return strings.ToValidUTF8(b.String()[:most], "") + "..."
		}
	}
	return b.String()
}

// lex splits a query string into statements at its semicolons. Empty ones are
// dropped, so the empty query gives none. Comments (-- and nested /* */) count
// as white space; quotes double inside quotes; backslashes mean nothing
// (standard_conforming_strings is on).
func lex(sql string) ([]statement, error) {
	var (
		all []statement
		cur statement
	)
	for i := 0; i < len(sql); {
		c := sql[i]
		switch {
		case isSpace(c):
			i++
		case strings.HasPrefix(sql[i:], "--"):
			end := strings.IndexAny(sql[i:], "\r\n")
			if end < 0 {
				end = len(sql) - i
			}
			i += end
		case strings.HasPrefix(sql[i:], "/*"):
			n := commentLen(sql[i:])
			if n == 0 {
				return nil, syntaxError("unterminated /* comment")
			}
			i += n
		case c == ';':
			if len(cur) > 0 {
				all, cur = append(all, cur), nil
			}
			i++
		case c == '\'' || c == '"':
			text, n := quoted(sql[i:], c)
			if n == 0 {
				return nil, syntaxError("unterminated quoted string")
			}
			kind := tokString
			if c == '"' {
				kind = tokQuoted
			}
			cur = append(cur, token{kind, text})
			i += n
		case isDigit(c):
			n := run(sql[i:], func(b byte) bool { return isDigit(b) || b == '.' })
			cur = append(cur, token{tokNumber, sql[i : i+n]})
			i += n
		case isWord(c):
			n := run(sql[i:], func(b byte) bool { return isWord(b) || isDigit(b) || b == '$' })
			cur = append(cur, token{tokWord, sql[i : i+n]})
			i += n
		default:
			cur = append(cur, token{tokSymbol, sql[i : i+1]})
			i++
		}
	}
	if len(cur) > 0 {
		all = append(all, cur)
	}
	return all, nil
}

// commentLen is the length of the comment that s starts with, nested ones
// included; 0 when it does not end.
func commentLen(s string) int {
	depth := 0
	for i := 0; i+1 < len(s); i++ {
		switch s[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

// quoted reads the quoted text that s starts with; n = 0 when it does not end.
func quoted(s string, quote byte) (text string, n int) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] != quote {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == quote {
			b.WriteByte(quote)
			i++
			continue
		}
		return b.String(), i + 1
	}
	return "", 0
}

// run is the length of the longest prefix of s whose bytes satisfy in.
func run(s string, in func(byte) bool) int {
	i := 0
	for i < len(s) && in(s[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// isWord: bytes above ASCII belong to words, as in PostgreSQL's scanner.
func isWord(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}
