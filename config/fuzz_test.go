package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzFile: whatever the file holds, reading it ends without a panic, every
// mistake in it names a line or the whole file, and a secret that stands where
// secrets belong is in no message.
func FuzzFile(f *testing.F) {
	files, _ := filepath.Glob("testdata/mistakes/*.yaml")
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data), "hunter2hunter2")
	}
	for _, secret := range []string{"*hunter2", "%hunter2", "{hunter2: [", "!hunter2 x", "!a!hunter2 x", "|hunter2", "hunter2: x: y", "\"\\hunter2\"", "hun#ter2", "&hunter2 x"} {
		f.Add("targets:\n- name: a\n  password: ", secret)
		f.Add("target: postgres://u:", secret+"@h/d")
	}
	f.Add(rich, "")
	f.Fuzz(func(t *testing.T, text, secret string) {
		all := text + secret
		doc, bad := readDocument("mp.yaml", []byte(all))
		messages := bad.join()
		l := &loader{conf: Default(), document: doc, env: map[string]string{}}
		l.conf.sources = map[string]Source{}
		l.fields = fields(l.conf)
		for _, fd := range l.fields {
			if v, ok := doc.values[fd.key]; ok && !strings.Contains(fd.key, "file") {
				l.apply(fd, v)
			}
		}
		// Paths that the fuzzer makes up are not for reading.
		for _, s := range doc.targets {
			delete(s.values, "password_file")
		}
		l.conf.TargetPasswordFile = ""
		l.resolve()
		err := l.conf.validate(false, l.broken)
		password, found := passwordOf(text, secret)
		if !found || len(password) < 7 || strings.Count(all, password) != 1 {
			return
		}
		for _, e := range []error{messages, l.join(), err} {
			if e != nil && strings.Contains(e.Error(), password) {
				t.Fatalf("shown: %v", e)
			}
		}
		var b strings.Builder
		_ = l.conf.WriteEffective(&b)
		if strings.Contains(b.String(), password) {
			t.Fatalf("shown: %s", b.String())
		}
	})
}

// passwordOf says what of the secret is a password, going by the text before it.
func passwordOf(text, secret string) (string, bool) {
	if strings.HasSuffix("\n"+text, "\ntarget: postgres://u:") {
		return strings.CutSuffix(secret, "@h/d")
	}
	return secret, strings.HasSuffix(text, "\n  password: ")
}
