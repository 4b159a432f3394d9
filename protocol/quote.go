package protocol

import "strings"

// AppendLiteral appends s as an SQL string literal that means the same with
// standard_conforming_strings on and off: with a backslash inside, it becomes
// an E” literal with the backslashes doubled (as quote_literal does). s must
// be valid in the encoding of the connection and free of NUL.
func AppendLiteral(dst []byte, s string) []byte {
	if strings.IndexByte(s, '\\') >= 0 {
		dst = append(dst, 'E')
	}
	dst = append(dst, '\'')
	for i := range len(s) {
		if s[i] == '\'' || s[i] == '\\' {
			dst = append(dst, s[i])
		}
		dst = append(dst, s[i])
	}
	return append(dst, '\'')
}

// AppendIdentifier appends s as a quoted identifier. It always quotes, so that
// no list of key words can be out of date.
func AppendIdentifier(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		if s[i] == '"' {
			dst = append(dst, '"')
		}
		dst = append(dst, s[i])
	}
	return append(dst, '"')
}
