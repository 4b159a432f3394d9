package layers

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/multipooler/multipooler/config"
)

// flagWord finds --some-flag in prose and in YAML.
var flagWord = regexp.MustCompile(`(?:^|[\s` + "`" + `"(])--([a-z][a-z-]+)`)

func TestDocumentsNameOnlyFlagsThatExist(t *testing.T) {
	known := map[string]bool{"help": true, "bindir": true} // pg_config has the second
	for _, m := range flagWord.FindAllStringSubmatch(config.Help(), -1) {
		known[m[1]] = true
	}
	for path, text := range documents(t) {
		for _, m := range flagWord.FindAllStringSubmatch(text, -1) {
			if !known[m[1]] {
				t.Errorf("%s: there is no flag --%s", path, m[1])
			}
		}
	}
}

// link finds the target of a relative Markdown link.
var link = regexp.MustCompile(`\]\(([^)#:]+)\)`)

func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	for path, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

// documents are the texts that people read and apply.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	add := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = string(text)
	}
	add(filepath.Join(root, "README.md"))
	add(filepath.Join(root, "CONTRIBUTING.md"))
	for _, dir := range []string{"docs", "deploy"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && (strings.HasSuffix(path, ".md") || strings.HasSuffix(path, ".yaml")) {
				add(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return texts
}
