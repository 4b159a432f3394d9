package protocol

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The naive twin cuts a whole text into tokens with regular expressions, one
// per rule of PostgreSQL's lexer, longest match first as flex does, and hands
// them to the same classifier. It shares no lexical code with the scanner.

type naiveRule struct {
	name string
	re   *regexp.Regexp
}

func rule(name, re string) naiveRule {
	re = strings.NewReplacer(
		"{ws}", `(?:[ \t\n\r\f\v]|--[^\n\r]*)`,
		"{cont}", `(?:(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*')`,
		"{op}", "[~!@#^&|`?+\\-*/%<>=]",
		"{start}", `[A-Za-z_\x80-\xff]`,
		"{digits}", `[0-9]+(?:_[0-9]+)*`,
	).Replace(re)
	return naiveRule{name, regexp.MustCompile(`^(?s:` + re + `)`)}
}

var naiveRules = []naiveRule{
	rule("space", `{ws}+`),
	rule("comment", `/\*`),
	rule("e", `[eE]'`),
	rule("bits", `[bBxX]'`),
	rule("us", `[uU]&'`),
	rule("ui", `[uU]&"`),
	rule("q", `'`),
	rule("d", `"`),
	rule("body", `\$(?:{start}[A-Za-z_0-9\x80-\xff]*)?\$`),
	rule("param", `\$[0-9]+`),
	rule("number", `(?:{digits}(?:\.(?:{digits})?)?)(?:[eE][-+]?[0-9]+)?`),
	rule("word", `{start}[A-Za-z_0-9$\x80-\xff]*`),
	rule("op", `{op}`),
	rule("any", `.`),
}

var (
	naiveContinued = rule("", `{cont}`).re
	naiveDoubled   = map[string]*regexp.Regexp{
		"e":  rule("", `(?:[^\\']|\\.|'')*`).re,
		"q":  rule("", `(?:[^']|'')*`).re,
		"us": rule("", `(?:[^']|'')*`).re,
		"b":  rule("", `[^']*`).re,
		"d":  rule("", `(?:[^"]|"")*`).re,
	}
)

// latin turns bytes into runes of the same value, so that regular expressions
// can speak of bytes.
func latin(b []byte) string {
	r := make([]rune, len(b))
	for i, c := range b {
		r[i] = rune(c)
	}
	return string(r)
}

func bytesOf(s string) []byte {
	var b []byte
	for _, r := range s {
		b = append(b, byte(r))
	}
	return b
}

func naiveVerdict(sql []byte, opts ScanOptions) Verdict {
	var s Scanner
	s.Reset(opts)
	if i := bytes.IndexByte(sql, 0); i >= 0 {
		if i+1 < len(sql) {
			s.effects |= EffectUnknown
		}
		sql = sql[:i]
	}
	text, unterminated := latin(sql), false
	for text != "" && !unterminated {
		var name, token string
		for _, r := range naiveRules {
			if m := r.re.FindString(text); len(m) > len(token) {
				name, token = r.name, m
			}
		}
		if name == "word" && strings.HasPrefix(text[len(token):], "'") && len(token) == 1 && strings.ContainsAny(token, "eEbBxX") {
			panic("bug: the prefix of a string is longer")
		}
		text = text[len(token):]
		switch name {
		case "comment":
			text, unterminated = naiveComment(text)
		case "e", "bits", "us", "q":
			s.token(symString)
			if name == "bits" {
				name = "b"
			}
			plain := name == "q"
			if plain && !opts.StandardConforming {
				name = "e"
			}
			for {
				inside := naiveDoubled[name].FindString(text)
				s.backslash = s.backslash || plain && strings.Contains(inside, `\`)
				text = text[len(inside):]
				if unterminated = !strings.HasPrefix(text, "'"); unterminated {
					s.backslash = s.backslash || plain && strings.Contains(text, `\`)
					break
				}
				text = text[1:]
				again := naiveContinued.FindString(text)
				if again == "" {
					break
				}
				text = text[len(again):]
			}
		case "d", "ui":
			inside := naiveDoubled["d"].FindString(text)
			text = text[len(inside):]
			if unterminated = !strings.HasPrefix(text, `"`); unterminated {
				break
			}
			text = text[1:]
			s.n = 0
			s.keep(bytesOf(strings.ReplaceAll(inside, `""`, `"`)))
			s.unicode = name == "ui"
			s.endQuoted()
		case "body":
			s.token(symString)
			if len(bytesOf(token)) > maxWord+2 {
				s.effects |= EffectUnknown
				text = ""
				break
			}
			_, after, ok := strings.Cut(text, token)
			text, unterminated = after, !ok
		case "param", "number":
			s.token(symOperand)
		case "word":
			s.n = 0
			s.keep(bytesOf(token))
			s.endWord()
		case "op", "any":
			if token == "$" {
				s.badDollar()
			} else if sym, ok := map[string]symbol{".": symDot, "*": symStar, "=": symEqual}[token]; ok {
				s.token(sym)
			} else if slices.Contains([]string{"(", ")", ";"}, token) {
				s.punctuation(token[0])
			} else {
				s.token(symOther)
			}
		}
	}
	if unterminated {
		s.effects |= EffectUnknown
	}
	s.endStatement()
	return Verdict{int(s.statements), s.first, s.lastClass, s.effects, unterminated, s.backslash}
}

func naiveComment(text string) (rest string, unterminated bool) {
	for depth := 1; depth > 0; {
		i := strings.IndexAny(text, "*/")
		if i < 0 || i+1 == len(text) {
			return "", true
		}
		switch text[i : i+2] {
		case "/*":
			depth++
		case "*/":
			depth--
		default:
			text = text[i+1:]
			continue
		}
		text = text[i+2:]
	}
	return text, false
}

func TestTheScannerAgreesWithANaiveTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sql := drawSQL(t)
		opts := ScanOptions{StandardConforming: rapid.Bool().Draw(t, "standard")}
		if got, want := Scan(sql, opts), naiveVerdict(sql, opts); got != want {
			t.Fatalf("%q: %+v, naive: %+v", sql, got, want)
		}
	})
}
