package hinit_test

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// TestLogsHaveOneReader checks that logs are opened only by logrotate.Read, whose caller must say for which user it
// reads. The agent owns the directory of the logs and can put links there, so any other way to open a log could show
// root's files.
func TestLogsHaveOneReader(t *testing.T) {
	openers := []string{
		"Open", "OpenFile", "ReadFile", "ReadDir", "OpenInRoot", "OpenRoot", "Openat", "Openat2", "OpenDir", "Stat", "Lstat", "Glob", "DirFS", "Readlink",
	}
	eachGoFile(t, func(file string, parsed *ast.File) {
		if strings.HasPrefix(file, "logrotate/") || strings.HasPrefix(file, "kanban/") || strings.HasPrefix(file, "test/") || strings.HasSuffix(file, "_test.go") {
			return
		}
		if imports(parsed, "hinit/logrotate/archive") {
			t.Errorf("%s imports logrotate/archive: read logs with logrotate.Read, which wants to know for whom", file)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is {
				return true
			}
			fn, is := call.Fun.(*ast.SelectorExpr)
			if !is || !slices.Contains(openers, fn.Sel.Name) {
				return true
			}
			if pkg, is := fn.X.(*ast.Ident); !is || !slices.Contains([]string{"os", "unix", "syscall", "filepath", "fsutil"}, pkg.Name) {
				return true
			}
			for _, arg := range call.Args {
				ast.Inspect(arg, func(n ast.Node) bool {
					if s, is := n.(*ast.SelectorExpr); is && isLogPath(s) {
						t.Errorf("%s opens a log file by itself: read it with logrotate.Read, which wants to know for whom", file)
					}
					return true
				})
			}
			return true
		})
	})
}

// isLogPath reports whether an expression is the path of a service's log, as the types of the status and of the
// configuration name it.
func isLogPath(s *ast.SelectorExpr) bool {
	if inner, is := s.X.(*ast.SelectorExpr); is {
		return s.Sel.Name == "Dir" && inner.Sel.Name == "Logs"
	}
	base, is := s.X.(*ast.Ident)
	return s.Sel.Name == "Log" && is || s.Sel.Name == "Current" && is && base.Name == "logrotate"
}

// TestAChoiceIsACondition checks that no product code chooses between two values with a map[bool]T literal that it
// indexes on the spot. An if is easier to read.
func TestAChoiceIsACondition(t *testing.T) {
	eachGoFile(t, func(file string, parsed *ast.File) {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "kubernetes/") {
			return
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if x, is := n.(*ast.IndexExpr); is {
				if table, is := x.X.(*ast.CompositeLit); is {
					if kind, is := table.Type.(*ast.MapType); is && functionName(kind.Key) == "bool" {
						t.Errorf("%s chooses with a map of bool: write it with if", file)
					}
				}
			}
			return true
		})
	})
}
