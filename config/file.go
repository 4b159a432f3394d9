package config

import (
	"errors"
	"fmt"
	"regexp"

	"go.yaml.in/yaml/v4"
)

const maxFile = 1 << 20 // bytes of a configuration file

// raw is a value before it is parsed.
type raw struct {
	texts []string
	src   Source
}

// document is the file: raw values, checked for shape and names only.
type document struct {
	values    map[string]raw
	targets   []section
	broken    bool // not readable as a whole, reported
	databases map[string]section
	users     map[string]section
}

// section is one target, database or user of the file.
type section struct {
	values map[string]raw
	src    Source
	broken bool // no mapping at all, reported
}

// fileReader turns YAML into a document and collects every mistake with its
// line. The YAML library only builds nodes; the walk here is strict, knows the
// names from the struct tags, and never quotes a value.
type fileReader struct {
	name string
	mistakes
}

// readDocument reads the file's text. The document is usable as far as it is
// right.
func readDocument(name string, data []byte) (document, mistakes) {
	r := &fileReader{name: name}
	doc := document{values: map[string]raw{}, broken: true}
	if len(data) > maxFile {
		r.add(r.at(nil), "", "the file has %d bytes, the limit is %d", len(data), maxFile)
		return doc, r.mistakes
	}
	var nodes []yaml.Node
	if err := yaml.Load(data, &nodes, yaml.WithAllDocuments()); err != nil {
		r.syntax(err)
		return doc, r.mistakes
	}
	switch len(nodes) {
	case 0: // only comments
		doc.broken = false
		return doc, nil
	case 1:
	default:
		r.add(r.at(&nodes[1]), "", "a second YAML document starts here; one is expected")
		return doc, r.mistakes
	}
	root := &nodes[0]
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		root = root.Content[0]
	}
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		doc.broken = false
		return doc, nil
	}
	known := fields(&Config{})
	doc.broken = !r.mapping(root, "", func(key string, k, v *yaml.Node) {
		switch key {
		case "targets":
			doc.targets = r.targets(v)
		case "databases":
			doc.databases = r.named(v, key)
		case "users":
			doc.users = r.named(v, key)
		default:
			r.value(doc.values, known, "", key, k, v)
		}
	})
	return doc, r.mistakes
}

func (r *fileReader) at(n *yaml.Node) Source {
	src := Source{Kind: FromFile, Name: r.name}
	if n != nil {
		src.Line = n.Line
	}
	return src
}

// syntax reports what the YAML library found. Its scanner and parser give fixed
// phrases; the messages of its later stages can quote the file, so they are
// replaced.
func (r *fileReader) syntax(err error) {
	le, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		r.add(r.at(nil), "", "not YAML")
		return
	}
	src := r.at(nil)
	src.Line = le.Mark.Line
	msg := "not YAML"
	switch le.Stage {
	case yaml.ScannerStage, yaml.ParserStage:
		msg += ": " + le.Message
		if le.ContextMsg != "" {
			msg += fmt.Sprintf(" (%s that began in line %d)", le.ContextMsg, le.ContextMark.Line)
		}
	case yaml.ComposerStage:
		msg = "a value that starts with '*' or '&' must be quoted (YAML aliases are not supported)"
	}
	r.add(src, "", "%s", msg)
}

// plainName is what may be quoted as a name in a message.
var plainName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,40}$`)

// mapping calls f for each entry of a mapping, and says whether n is one.
func (r *fileReader) mapping(n *yaml.Node, key string, f func(key string, k, v *yaml.Node)) bool {
	if n.Kind != yaml.MappingNode {
		r.add(r.at(n), key, "a mapping (name: value) is expected here")
		return false
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			r.add(r.at(k), key, "a name must be a single word")
			continue
		}
		if line, ok := seen[k.Value]; ok {
			r.add(r.at(k), key, "the same name as in line %d", line)
			continue
		}
		seen[k.Value] = k.Line
		f(k.Value, k, v)
	}
	return true
}

// value stores one scalar or list of scalars under its key.
func (r *fileReader) value(into map[string]raw, known []field, path, key string, k, v *yaml.Node) {
	f, ok := find(known, key)
	if !ok {
		r.unknown(known, path, key, k)
		return
	}
	if f.noFile {
		r.add(r.at(k), path+key, "cannot be set in the file itself, only as --%s or %s", flagName(key), envName(key))
		return
	}
	out := raw{src: r.at(k), texts: []string{}}
	switch {
	case v.Kind == yaml.ScalarNode:
		if text, ok := r.scalar(v, path+key); ok {
			out.texts = append(out.texts, text)
		} else {
			return
		}
	case v.Kind == yaml.SequenceNode && f.list():
		for _, e := range v.Content {
			text, ok := r.scalar(e, path+key)
			if !ok {
				return
			}
			out.texts = append(out.texts, text)
		}
	case v.Kind == yaml.AliasNode:
		r.add(r.at(v), path+key, "YAML aliases are not supported: write the value out")
		return
	case f.list():
		r.add(r.at(v), path+key, "a list of values is expected")
		return
	default:
		r.add(r.at(v), path+key, "one value is expected, not a list or mapping")
		return
	}
	into[key] = out
}

// scalar is the text of a plain value; numbers keep their spelling, so that
// 0770 and 100000000 arrive as they were written.
func (r *fileReader) scalar(n *yaml.Node, key string) (string, bool) {
	switch {
	case n.Kind == yaml.AliasNode:
		r.add(r.at(n), key, "YAML aliases are not supported: write the value out")
	case n.Kind != yaml.ScalarNode:
		r.add(r.at(n), key, "one value is expected, not a list or mapping")
	case n.ShortTag() == "!!null":
		r.add(r.at(n), key, "there is no value; remove the line, or write \"\" for an empty one")
	default:
		return n.Value, true
	}
	return "", false
}

func (r *fileReader) unknown(known []field, path, key string, k *yaml.Node) {
	if !plainName.MatchString(key) {
		r.add(r.at(k), "", "an unknown name")
		return
	}
	names := make([]string, 0, len(known))
	for _, f := range known {
		names = append(names, f.key)
	}
	r.add(r.at(k), "", "unknown name %q%s", path+key, suggest(key, names))
}

func (r *fileReader) targets(n *yaml.Node) (out []section) {
	if n.Kind != yaml.SequenceNode {
		r.add(r.at(n), "targets", "a list is expected: each entry starts with \"- name: …\"")
		return nil
	}
	known := fields(&Target{})
	for i, e := range n.Content {
		path := fmt.Sprintf("targets[%d].", i)
		s := section{values: map[string]raw{}, src: r.at(e)}
		s.broken = !r.mapping(e, path[:len(path)-1], func(key string, k, v *yaml.Node) {
			r.value(s.values, known, path, key, k, v)
		})
		out = append(out, s)
	}
	return out
}

// named reads databases: and users:, mappings from a name to overrides.
func (r *fileReader) named(n *yaml.Node, what string) map[string]section {
	out := map[string]section{}
	known := fields(&Override{})
	r.mapping(n, what, func(name string, k, v *yaml.Node) {
		path := what + "." + name + "."
		s := section{values: map[string]raw{}, src: r.at(k)}
		r.mapping(v, path[:len(path)-1], func(key string, k, v *yaml.Node) {
			r.value(s.values, known, path, key, k, v)
		})
		out[name] = s
	})
	return out
}

// suggest names the nearest known name, when one is near.
func suggest(name string, known []string) string {
	best, least := "", len(name)/3+1
	for _, k := range known {
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost = 1 + min(diagonal, row[j], row[j-1])
			}
			diagonal, row[j] = row[j], cost
		}
	}
	return row[len(b)]
}
