package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// resolved are the fields that package config itself turns into others; dbname
// is accepted because URLs have one, and every client names its own.
var resolved = map[string]bool{
	"File": true, "Target": true, "TargetPasswordFile": true, "URL": true, "PasswordFile": true, "Database": true,
}

func TestEverySettingIsReadBySomebody(t *testing.T) {
	read := map[string]bool{}
	for _, folder := range []string{"pooler", "cmd/multipooler"} {
		for _, file := range parse(t, folder) {
			ast.Inspect(file, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok {
					read[sel.Sel.Name] = true
				}
				return true
			})
		}
	}
	settings := 0
	for _, file := range parse(t, "config") {
		ast.Inspect(file, func(n ast.Node) bool {
			f, ok := n.(*ast.Field)
			if !ok || f.Tag == nil || !strings.Contains(f.Tag.Value, `key:"`) {
				return true
			}
			settings++
			if name := f.Names[0].Name; !read[name] && !resolved[name] {
				t.Errorf("config.%s (%s) is read by nobody: a flag without an effect", name, f.Tag.Value)
			}
			return true
		})
	}
	if settings < 50 {
		t.Errorf("%d settings found", settings)
	}
}

// parse reads the files of a package, tests left out.
func parse(t *testing.T, folder string) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}
