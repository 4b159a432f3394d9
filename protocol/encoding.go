package protocol

import "strings"

// safeEncodings are the client encodings in which no byte below 0x80 is ever
// part of a longer character, under all names that PostgreSQL has for them
// (encnames.c), normalised.
var safeEncodings = map[string]bool{
	"abc": true, "alt": true, "euccn": true, "eucjis2004": true, "eucjp": true, "euckr": true, "euctw": true,
	"iso88591": true, "iso885910": true, "iso885913": true, "iso885914": true, "iso885915": true,
	"iso885916": true, "iso88592": true, "iso88593": true, "iso88594": true, "iso88595": true, "iso88596": true,
	"iso88597": true, "iso88598": true, "iso88599": true, "koi8": true, "koi8r": true, "koi8u": true,
	"latin1": true, "latin10": true, "latin2": true, "latin3": true, "latin4": true, "latin5": true,
	"latin6": true, "latin7": true, "latin8": true, "latin9": true, "muleinternal": true, "sqlascii": true,
	"tcvn": true, "tcvn5712": true, "unicode": true, "utf8": true, "vscii": true, "win": true,
	"win1250": true, "win1251": true, "win1252": true, "win1253": true, "win1254": true, "win1255": true,
	"win1256": true, "win1257": true, "win1258": true, "win866": true, "win874": true, "windows1250": true,
	"windows1251": true, "windows1252": true, "windows1253": true, "windows1254": true, "windows1255": true,
	"windows1256": true, "windows1257": true, "windows1258": true, "windows866": true, "windows874": true,
}

// ClientEncodingSafe reports whether the scanner understands SQL in this
// client encoding. In SJIS, SHIFT_JIS_2004, BIG5, GBK, UHC, GB18030 and JOHAB
// the second byte of a character can look like a quote or a backslash; texts
// in these, and in encodings that we do not know, must count as
// EffectUnknown.
func ClientEncodingSafe(name string) bool {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return -1
	}, name)
	return safeEncodings[clean]
}
