package protocol

import "strings"

// SplitOptions reads the startup parameter "options" the way the server does:
// words separated by white space, a backslash takes the next character as it
// is, then switches. It understands -c name=value, -cname=value and
// --name=value, where dashes in the name mean underscores.
//
// opaque is true when anything else appears (other switches such as -B or -e,
// a missing value, a stray word): then only the server knows what the string
// means or what is wrong with it, and the settings returned are not all.
//
// The server applies these settings before the other startup parameters, which
// therefore win.
func SplitOptions(options string) (settings []Param, opaque bool) {
	words := splitWords(options)
	for i := 0; i < len(words); i++ {
		word := words[i]
		var setting string
		switch {
		case strings.HasPrefix(word, "--") && len(word) > len("--"):
			setting = word[len("--"):]
		case word == "-c" && i+1 < len(words):
			i++
			setting = words[i]
		case strings.HasPrefix(word, "-c") && len(word) > len("-c"):
			setting = word[len("-c"):]
		default:
			return settings, true
		}
		name, value, ok := strings.Cut(setting, "=")
		if !ok || name == "" {
			return settings, true
		}
		settings = append(settings, Param{strings.ReplaceAll(name, "-", "_"), value})
	}
	return settings, false
}

// splitWords is pg_split_opts of PostgreSQL.
func splitWords(s string) []string {
	var words []string
	for {
		s = strings.TrimLeft(s, optionSpace)
		if s == "" {
			return words
		}
		var word []byte
		escaped := false
		for s != "" && (escaped || !strings.Contains(optionSpace, s[:1])) {
			if !escaped && s[0] == '\\' {
				escaped = true
			} else {
				escaped = false
				word = append(word, s[0])
			}
			s = s[1:]
		}
		words = append(words, string(word))
	}
}

// optionSpace is isspace() in the C locale.
const optionSpace = " \t\n\v\f\r"

// JoinOptions is the inverse of SplitOptions: settings as a string for the
// startup parameter "options".
func JoinOptions(settings []Param) string {
	var b strings.Builder
	for _, s := range settings {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString("-c ")
		for _, part := range [...]string{s.Name, "=", s.Value} {
			for i := range len(part) {
				if part[i] == '\\' || strings.IndexByte(optionSpace, part[i]) >= 0 {
					b.WriteByte('\\')
				}
				b.WriteByte(part[i])
			}
		}
	}
	return b.String()
}
