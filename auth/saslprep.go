package auth

import (
	"strings"
	"unicode/utf8"

	"github.com/xdg-go/stringprep"
	"golang.org/x/text/unicode/norm"
)

// prohibited is RFC 4013 section 2.3 with the unassigned code points of section
// 2.5. C.1.2 is mapped to a space before.
var prohibited = []stringprep.Set{
	stringprep.TableA1,
	stringprep.TableC1_2,
	stringprep.TableC2_1,
	stringprep.TableC2_2,
	stringprep.TableC3,
	stringprep.TableC4,
	stringprep.TableC5,
	stringprep.TableC6,
	stringprep.TableC7,
	stringprep.TableC8,
	stringprep.TableC9,
}

// saslprep normalises a password as PostgreSQL's pg_saslprep and its callers do:
// what is not valid UTF-8, holds prohibited characters or vanishes is used as it
// is. Two points differ from RFC 4013, and we must match PostgreSQL, since the
// client or server at the other end derives its keys that way: the characters
// are checked after the mapping but before the normalisation, and U+200B, which
// two tables map, becomes a space. (So stringprep.SASLprep does not fit.)
func saslprep(password string) string {
	if isASCII(password) || !utf8.ValidString(password) {
		return password
	}
	mapped := make([]rune, 0, len(password))
	for _, r := range password {
		if stringprep.TableC1_2.Contains(r) {
			mapped = append(mapped, ' ')
		} else if _, gone := stringprep.TableB1.Map(r); !gone {
			mapped = append(mapped, r)
		}
	}
	if len(mapped) == 0 || !permitted(mapped) || !bidiOK(mapped) {
		return password
	}
	return norm.NFKC.String(string(mapped))
}

func permitted(runes []rune) bool {
	for _, r := range runes {
		for _, set := range prohibited {
			if set.Contains(r) {
				return false
			}
		}
	}
	return true
}

// bidiOK is RFC 3454 section 6: text with right-to-left characters begins and
// ends with one and has no left-to-right characters.
func bidiOK(runes []rune) bool {
	rtl, ltr := false, false
	for _, r := range runes {
		rtl = rtl || stringprep.TableD1.Contains(r)
		ltr = ltr || stringprep.TableD2.Contains(r)
	}
	if !rtl {
		return true
	}
	return !ltr && stringprep.TableD1.Contains(runes[0]) && stringprep.TableD1.Contains(runes[len(runes)-1])
}

// isASCII is PostgreSQL's pg_is_ascii: such a password is taken as it is, with
// its control characters.
func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}
