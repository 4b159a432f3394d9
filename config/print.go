package config

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Entry is one effective value.
type Entry struct {
	Key     string // as in the file; "targets.NAME.key" inside a target
	Value   string // secrets masked
	Source  Source
	Restart bool // only a restart changes it
}

// indexed is an Entry with what only a comparison needs; it is never printed.
type indexed struct {
	Entry
	exact  string // the value with secrets
	target string // the target it belongs to, "" = none
}

// Source is where the value of a key came from. Keys inside a target are
// "targets.NAME.key".
func (c *Config) Source(key string) Source { return c.sources[key] }

// Explicit says whether anybody set the key; false means that it holds its
// default.
func (c *Config) Explicit(key string) bool { return c.sources[key].Kind != FromDefault }

// Entries lists the effective values in the manual's order, then targets,
// databases and users: what SHOW CONFIG and `multipooler config` show.
func (c *Config) Entries() []Entry {
	var out []Entry
	for _, e := range c.entries() {
		out = append(out, e.Entry)
	}
	return out
}

func (c *Config) entries() []indexed {
	var out []indexed
	target := ""
	add := func(path string, f field) {
		out = append(out, indexed{
			Entry:  Entry{Key: path + f.key, Value: f.text(), Source: c.sources[path+f.key], Restart: f.restart},
			exact:  f.exact(),
			target: target,
		})
	}
	own := fields(c)
	for _, s := range manual {
		for _, o := range s.options {
			f, ok := find(own, o.key)
			if !ok {
				panic("bug: the manual describes a key that does not exist: " + o.key)
			}
			add("", f)
		}
	}
	for i := range c.Targets {
		target = c.Targets[i].Name
		for _, f := range fields(&c.Targets[i]) {
			if f.key != "name" {
				add("targets."+target+".", f)
			}
		}
	}
	target = ""
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) {
		o := c.Databases[name]
		for _, f := range fields(&o) {
			add("databases."+name+".", f)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Users)) {
		o := c.Users[name]
		for _, f := range fields(&o) {
			add("users."+name+".", f)
		}
	}
	return out
}

// exact is the value with secrets.
func (f field) exact() string {
	switch v := f.value.Interface().(type) {
	case Secret:
		return v.Reveal()
	case URL:
		return v.Reveal()
	}
	return f.text()
}

// WriteEffective prints the configuration as a file that Load accepts (apart
// from masked secrets), with the source of each value as a comment. Lines that
// the file cannot hold, and the targets' effective settings, are comments.
func (c *Config) WriteEffective(w io.Writer) error {
	var b strings.Builder
	own := fields(c)
	for _, s := range manual {
		fmt.Fprintf(&b, "# %s\n", s.title)
		for _, o := range s.options {
			f, _ := find(own, o.key)
			prefix := ""
			if f.noFile || o.key == "target" && c.Target == "" {
				prefix = "# "
			}
			line(&b, prefix, f, c.sources[f.key])
		}
		b.WriteByte('\n')
	}
	c.writeTargets(&b)
	writeOverrides(&b, c, "databases", c.Databases)
	writeOverrides(&b, c, "users", c.Users)
	_, err := io.WriteString(w, b.String())
	return err
}

func (c *Config) writeTargets(b *strings.Builder) {
	listed := false
	for i := range c.Targets {
		t := &c.Targets[i]
		sole := t.Name == soleTarget && c.sources["targets."+t.Name].Kind == FromDefault
		first, prefix := "  - ", "    "
		if sole {
			fmt.Fprintf(b, "# what this makes of target, under the name %q:\n", t.Name)
			first, prefix = "#   ", "#   "
		} else if !listed {
			b.WriteString("targets:\n")
			listed = true
		}
		for j, f := range fields(t) {
			if f.text() == "" || f.key == "url" {
				continue
			}
			if j == 0 {
				line(b, first, f, c.sources["targets."+t.Name+"."+f.key])
				continue
			}
			line(b, prefix, f, c.sources["targets."+t.Name+"."+f.key])
		}
	}
}

func writeOverrides(b *strings.Builder, c *Config, what string, in map[string]Override) {
	if len(in) == 0 {
		return
	}
	fmt.Fprintf(b, "%s:\n", what)
	for _, name := range slices.Sorted(maps.Keys(in)) {
		fmt.Fprintf(b, "  %s:\n", strconv.Quote(name))
		o := in[name]
		for _, f := range fields(&o) {
			if f.text() != "" {
				line(b, "    ", f, c.sources[what+"."+name+"."+f.key])
			}
		}
	}
}

// line prints `key: value  # source`.
func line(b *strings.Builder, prefix string, f field, src Source) {
	values := f.texts()
	for i, v := range values {
		values[i] = quote(v)
	}
	value := strings.Join(values, ", ")
	if f.list() {
		value = "[" + value + "]"
	}
	fmt.Fprintf(b, "%s%s: %s  # %s\n", prefix, f.key, value, src)
}

// quote gives a YAML scalar; what is not plain for certain is quoted, and Go's
// quoting is valid in YAML's double quotes for printable text and \xNN, \uNNNN.
func quote(s string) string {
	if s == "" {
		return `""`
	}
	for _, r := range s {
		plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-", r)
		if !plain {
			return strconv.QuoteToASCII(s)
		}
	}
	if s[0] == '-' || s[0] == '.' {
		return strconv.QuoteToASCII(s)
	}
	return s
}
