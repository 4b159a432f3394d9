package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Input is what a process was started with.
type Input struct {
	Args []string // flags and at most one target URL, without the program's name
	Env  []string // NAME=value, as os.Environ gives it

	// NoTarget allows a configuration without a target (multipooler wait).
	NoTarget bool
}

// Load reads every source, resolves and validates. The Config is returned in
// any case, as far as it could be read; with an error it must not be run. The
// error joins one *Mistake per thing to change; Mistakes lists them. Load reads
// files (the configuration, passwords, certificates) and nothing else.
func Load(in Input) (*Config, error) {
	l := &loader{
		in:   in,
		env:  environment(in.Env),
		conf: Default(),
	}
	l.conf.sources = map[string]Source{}
	l.fields = fields(l.conf)

	flags := l.flags()
	l.document = l.file(flags)
	for _, f := range l.fields {
		if v, ok := l.document.values[f.key]; ok {
			l.apply(f, v)
		}
	}
	l.seedEnv()
	l.ownEnv()
	for _, f := range l.fields {
		if v, ok := flags[f.key]; ok {
			l.apply(f, v)
		}
	}
	l.seedConflicts()
	l.resolve()
	l.mistakes = append(l.mistakes, Mistakes(l.conf.validate(in.NoTarget, l.broken))...)
	l.checkFiles()
	slices.SortStableFunc(l.mistakes, byPlace)
	return l.conf, l.join()
}

// loader carries the intermediate results of one Load.
type loader struct {
	in       Input
	env      map[string]string
	conf     *Config
	fields   []field
	document document
	seeds    []seedUse
	badFlags bool            // the command line was not understood: what is missing may be in it
	broken   map[string]bool // keys whose text did not parse; they hold a default, not what was meant. "targets": not all are known
	mistakes
}

type seedUse struct {
	name string
	f    field
	text string
}

// note adds a remark.
func (l *loader) note(warn bool, src Source, key, format string, args ...any) {
	l.conf.Notes = append(l.conf.Notes, Note{Warn: warn, Source: src, Key: key, Text: fmt.Sprintf(format, args...)})
}

// apply parses a value into its field; a later call overrides an earlier one.
func (l *loader) apply(f field, v raw) {
	if err := f.set(v.texts); err != nil {
		l.addErr(v.src, f.key, err)
		l.markBroken(f.key)
		return
	}
	l.conf.sources[f.key] = v.src
}

func (l *loader) markBroken(key string) {
	if l.broken == nil {
		l.broken = map[string]bool{}
	}
	l.broken[key] = true
}

func environment(env []string) map[string]string {
	out := make(map[string]string, len(env))
	for _, e := range env {
		if name, value, ok := strings.Cut(e, "="); ok {
			out[name] = value
		}
	}
	return out
}

// ownEnv applies MULTIPOOLER_*. An empty variable counts as not set, since
// templates leave such behind.
func (l *loader) ownEnv() {
	for _, f := range l.fields {
		name := envName(f.key)
		if text := l.env[name]; text != "" {
			l.apply(f, raw{texts: []string{text}, src: Source{Kind: FromEnv, Name: name}})
		}
	}
	known := make([]string, 0, len(l.fields))
	for _, f := range l.fields {
		known = append(known, envName(f.key))
	}
	var unknown []string
	for name := range l.env {
		if strings.HasPrefix(name, ownEnv) && !slices.Contains(known, name) && !serviceLink(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		l.note(true, Source{Kind: FromEnv, Name: name}, "", "not a setting of multipooler, ignored%s", suggest(name, known))
	}
}

// serviceLink recognises the variables that Kubernetes puts into every
// container of a namespace with a Service named multipooler.
func serviceLink(name string) bool {
	return strings.HasPrefix(name, ownEnv+"SERVICE_HOST") ||
		strings.HasPrefix(name, ownEnv+"SERVICE_PORT") ||
		name == ownEnv+"PORT" || strings.HasPrefix(name, ownEnv+"PORT_")
}

// seedEnv applies the names of predecessors.
func (l *loader) seedEnv() {
	for _, f := range l.fields {
		for _, name := range f.seeds {
			text := l.env[name]
			if text == "" {
				continue
			}
			src := Source{Kind: FromSeedEnv, Name: name}
			if before, ok := l.conf.sources[f.key]; ok && f.text() != text {
				l.note(true, src, f.key, "overrides %s of %s", f.text(), before)
			}
			l.apply(f, raw{texts: []string{text}, src: src})
			l.seeds = append(l.seeds, seedUse{name, f, f.text()})
		}
	}
}

// seedConflicts reports the use of predecessors' names, and warns where another
// source had the last word and said something else.
func (l *loader) seedConflicts() {
	for _, s := range l.seeds {
		src := Source{Kind: FromSeedEnv, Name: s.name}
		won := l.conf.sources[s.f.key]
		switch {
		case l.broken[s.f.key]:
		case won == src:
			l.note(false, src, s.f.key, "set to %s by a name from before multipooler; its own is %s", s.text, envName(s.f.key))
		case s.f.text() != s.text:
			l.note(true, src, s.f.key, "%s is overridden by %s of %s", s.text, s.f.text(), won)
		}
	}
}

// file reads the configuration file that the flags or the environment name.
func (l *loader) file(flags map[string]raw) document {
	path, src := "", Source{}
	if v, ok := flags["config"]; ok {
		path, src = v.texts[len(v.texts)-1], v.src
	} else if p := l.env[envName("config")]; p != "" {
		path, src = p, Source{Kind: FromEnv, Name: envName("config")}
	}
	if path == "" {
		return document{}
	}
	data, err := readBounded(path, maxFile+1)
	if err != nil {
		l.addErr(src, "config", err)
		l.markBroken("targets")
		return document{}
	}
	doc, bad := readDocument(path, data)
	l.mistakes = append(l.mistakes, bad...)
	if doc.broken {
		l.markBroken("targets")
	}
	return doc
}

// readBounded reads at most limit bytes, so that a wrong path (a device, a
// dump) does not fill the memory.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// texts collects what a flag was given, unparsed, so that one wrong value does
// not hide the next.
type texts struct {
	got  []string
	list bool
}

func (t *texts) Set(s string) error { t.got = append(t.got, s); return nil }
func (t *texts) String() string     { return strings.Join(t.got, ",") }
func (t *texts) Type() string       { return "text" }

// flags reads the command line into raw values by key.
func (l *loader) flags() map[string]raw {
	args := slices.Clone(l.in.Args)
	for {
		set := pflag.NewFlagSet("multipooler", pflag.ContinueOnError)
		set.SetOutput(io.Discard)
		set.Usage = func() {}
		got := map[string]*texts{}
		for _, f := range l.fields {
			t := &texts{list: f.list()}
			got[f.key] = t
			set.Var(t, flagName(f.key), "")
		}
		err := set.Parse(args)
		if err != nil {
			l.badFlags = true
			l.markBroken("targets")
			i := l.flagMistake(err, args)
			if i >= 0 {
				args = slices.Delete(args, i, i+1)
				continue // look for more mistakes without this one
			}
		}
		out := map[string]raw{}
		for key, t := range got {
			if len(t.got) > 0 {
				out[key] = raw{texts: t.got, src: Source{Kind: FromFlag, Name: flagName(key)}}
			}
		}
		l.argument(set.Args(), out)
		return out
	}
}

// flagMistake reports what pflag did not understand and says which argument it
// was (-1: not known). It quotes names only, never values.
func (l *loader) flagMistake(err error, args []string) int {
	src := Source{Kind: FromArgument}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok && e.GetSpecifiedShortnames() == "" {
		name := e.GetSpecifiedName()
		known := make([]string, 0, len(l.fields))
		for _, f := range l.fields {
			known = append(known, flagName(f.key))
		}
		hint := ""
		if s := suggest(strings.ReplaceAll(name, "_", "-"), known); s != "" {
			hint = strings.Replace(s, `"`, `"--`, 1)
		}
		if !plainName.MatchString(name) {
			l.add(src, "", "an unknown flag")
		} else {
			l.add(src, "", "unknown flag --%s%s", name, hint)
		}
		return slices.IndexFunc(args, func(a string) bool {
			return a == "--"+name || strings.HasPrefix(a, "--"+name+"=")
		})
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		l.add(Source{Kind: FromFlag, Name: e.GetSpecifiedName()}, "", "its value is missing")
		return -1
	}
	l.add(src, "", "flags are written --name=value or --name value (one-letter flags do not exist)")
	return -1
}

// argument takes the target URL that stands without a flag.
func (l *loader) argument(args []string, out map[string]raw) {
	if l.badFlags {
		return // what looks like an argument can be the value of an unknown flag
	}
	src := Source{Kind: FromArgument}
	if len(args) > 1 {
		l.add(src, "target", "%d arguments are given, one target URL is expected", len(args))
		l.markBroken("targets")
		return
	}
	if len(args) == 0 {
		return
	}
	if v, ok := out["target"]; ok && !slices.Equal(v.texts, args) {
		l.add(src, "target", "the target is given twice, here and as --target, and they differ")
		return
	}
	out["target"] = raw{texts: args, src: src}
}
