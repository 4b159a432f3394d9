package layers

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/multipooler/multipooler/admin"
	"github.com/multipooler/multipooler/session"
)

// section is the part of docs/NAME between "## title" and the next one.
func section(t *testing.T, name, title string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "## "+title+"\n")
	if !ok {
		t.Fatalf("docs/%s has no section %q", name, title)
	}
	part, _, _ := strings.Cut(rest, "\n## ")
	return part
}

// rows are the cells of a section's table lines.
func rows(section string) (all [][]string) {
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		all = append(all, cells)
	}
	return all[1:] // the head
}

func TestTheMetricsInTheDocumentAreTheProgramsOwn(t *testing.T) {
	documented := map[string]string{}
	for _, cells := range rows(section(t, "operations.md", "Metrics")) {
		documented[strings.Trim(cells[0], "`")] = cells[1] + " " + cells[2]
	}
	for _, m := range admin.NewMetrics(admin.MetricsConfig{}).Catalogue() {
		want := m.Type + " " + strings.Join(m.Labels, ", ")
		if got, ok := documented[m.Name]; !ok {
			t.Errorf("docs/operations.md does not have %s", m.Name)
		} else if got != want {
			t.Errorf("%s: the document says %q, the program %q", m.Name, got, want)
		}
		delete(documented, m.Name)
	}
	for name := range documented {
		t.Errorf("docs/operations.md has %s, the program has not", name)
	}
}

func TestTheConsoleCommandsInTheDocumentAreTheProgramsOwn(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join(root, "admin", "testdata", "show_help.txt"))
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^([A-Z][A-Z_ ]+)\|`)
	var program, document []string
	for _, m := range command.FindAllStringSubmatch(string(golden), -1) {
		program = append(program, m[1])
	}
	for _, cells := range rows(section(t, "operations.md", "Console")) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
			document = append(document, m[1])
		}
	}
	slices.Sort(program)
	slices.Sort(document)
	if !slices.Equal(program, document) {
		t.Errorf("the document has\n%q, the program\n%q", document, program)
	}
}

func TestThePinsInTheDocumentAreTheProgramsOwn(t *testing.T) {
	var document []string
	for _, cells := range rows(section(t, "compatibility.md", "It works, but keeps a server connection (a pin)")) {
		for name := range strings.SplitSeq(cells[0], ",") {
			document = append(document, strings.Trim(name, "` "))
		}
	}
	slices.Sort(document)
	program := slices.Sorted(slices.Values(session.PinNames()))
	if !slices.Equal(program, document) {
		t.Errorf("the document has\n%q, the program\n%q", document, program)
	}
}

func TestTheLogEventsInTheDocumentExist(t *testing.T) {
	texts := literals(t, "pooler", "cmd/multipooler")
	for _, cells := range rows(section(t, "operations.md", "Log")) {
		if !texts[cells[0]] {
			t.Errorf("docs/operations.md has the event %q, no package logs it", cells[0])
		}
	}
}

// literals are the string literals of the packages, tests left out.
func literals(t *testing.T, folders ...string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, folder := range folders {
		for _, file := range parse(t, folder) {
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, err := strconv.Unquote(lit.Value); err == nil {
						found[text] = true
					}
				}
				return true
			})
		}
	}
	return found
}
