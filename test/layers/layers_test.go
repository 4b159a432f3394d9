// Package layers holds the rules that a compiler does not check: which package
// may import which, and that tests do not sleep.
package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/multipooler/multipooler/"
)

// mayImport is the drawing of CONTRIBUTING.md: what each package may import of
// ours, directly. A package that is missing here may import nothing of ours,
// and everything under test, bench and scripts may import everything but is
// imported by no product package.
var mayImport = map[string][]string{
	"eventloop":       {},
	"protocol":        {},
	"certs":           {},
	"connpool":        {},
	"config":          {},
	"auth":            {"protocol"},
	"session":         {"protocol", "connpool"},
	"admin":           {"protocol", "config"},
	"pooler":          {"admin", "auth", "certs", "config", "connpool", "eventloop", "protocol", "session"},
	"cmd/multipooler": {"admin", "config", "pooler"},
}

func TestImportsGoOneWay(t *testing.T) {
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range forbidden(string(out)) {
		t.Error(wrong)
	}
}

// forbidden reads lines "package import import …" and returns what breaks
// mayImport.
func forbidden(list string) (wrong []string) {
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		from := strings.TrimPrefix(fields[0], module)
		if outside(from) {
			continue
		}
		for _, path := range fields[1:] {
			to, ours := strings.CutPrefix(path, module)
			if ours && !slices.Contains(mayImport[from], to) {
				wrong = append(wrong, from+" imports "+to+": the layers in CONTRIBUTING.md and test/layers do not allow it")
			}
		}
	}
	return wrong
}

// outside the product.
func outside(pkg string) bool {
	top, _, _ := strings.Cut(pkg, "/")
	return top == "test" || top == "bench" || top == "scripts"
}

func TestTheRuleFindsWhatItForbids(t *testing.T) {
	list := module + "session " + module + "protocol fmt\n" +
		module + "protocol " + module + "session\n" +
		module + "newcomer " + module + "protocol\n" +
		module + "pooler " + module + "test/pgtest\n" +
		module + "test/e2e " + module + "pooler\n"
	got := forbidden(list)
	if len(got) != 3 {
		t.Errorf("got %q", got)
	}
}

func TestTheLayersHaveNoCycle(t *testing.T) {
	var walk func(path []string)
	walk = func(path []string) {
		at := path[len(path)-1]
		if slices.Contains(path[:len(path)-1], at) {
			t.Fatalf("%v", path)
		}
		for _, next := range mayImport[at] {
			walk(append(slices.Clone(path), next))
		}
	}
	for pkg := range mayImport {
		walk([]string{pkg})
	}
}

func TestTestsDoNotSleep(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() != ".." && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, pos := range sleeps(files, file) {
			t.Errorf("%v: time.Sleep in a test: use testing/synctest or wait for the event; where neither is possible, say why in a comment `// sleep: …` on the line", pos)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sleeps are the calls of time.Sleep without a reason on their line. Inside
// testing/synctest sleeping costs nothing and is exact, so there it is free.
func sleeps(files *token.FileSet, file *ast.File) (found []token.Position) {
	reasons := map[int]bool{}
	for _, group := range file.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "// sleep: ") {
				reasons[files.Position(c.Pos()).Line] = true
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch called(call) {
		case "synctest.Test":
			return false
		case "time.Sleep":
			if pos := files.Position(call.Pos()); !reasons[pos.Line] {
				found = append(found, pos)
			}
		}
		return true
	})
	return found
}

// called is "pkg.Func" of a call through a package's own name.
func called(call *ast.CallExpr) string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	pkg, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return pkg.Name + "." + sel.Sel.Name
}

func TestSleepsAreFoundUnlessTheySayWhy(t *testing.T) {
	const source = `package x
import ("testing"; "testing/synctest"; "time")
func TestA(t *testing.T) {
	time.Sleep(1)
	time.Sleep(1) // sleep: the kernel's clock is what is tested
	time.Sleep(1) // just so
	synctest.Test(t, func(t *testing.T) { time.Sleep(1) })
}
`
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "x_test.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var lines []int
	for _, pos := range sleeps(files, file) {
		lines = append(lines, pos.Line)
	}
	if !slices.Equal(lines, []int{4, 6}) {
		t.Errorf("lines %v, want 4 and 6", lines)
	}
}
