// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bytes"
	"encoding/json"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// storeys is the order of the tree, the lowest first: a package imports its own storey and those
// below. The first pattern that matches counts; "x/..." means x and all below it.
var storeys = [][]string{
	generators, // nothing imports them
	{"internal/proto/...", "guest/..."},
	{"internal/fabric/..."},
	{"internal/verbs/..."},
	{"internal/mgmt/..."},
	{"internal/service/..."},
	{"internal/device/..."},
	{"internal/host/..."},
	{"internal/control/..."},
	{"internal/node/..."},
	{"cmd/...", "test/...", "bench/...", "docs/...", "shim/..."},
}

// generators write Go files of the package above them.
var generators = []string{"internal/proto/abi/gen", "internal/proto/mad/gen"}

// cores are the protocol cores: no goroutine, lock, clock, log or socket. A core imports
// internal/proto and its own parts, no other core.
var cores = []string{"internal/verbs/transport", "internal/fabric/vswitch", "internal/fabric/trunk/...",
	"internal/service/vnic/...",
	"internal/service/ipoib/...", "internal/service/cm", "internal/mgmt/sm/...", "internal/mgmt/umad",
	"internal/mgmt/member", "internal/mgmt/member/shape", "internal/mgmt/store/voters"}

// conditions is the package that skips tests and waits for them. Tests of all storeys call it, so it is in the lowest.
const conditions = "internal/proto/condtest"

// pure are the packages that know nothing of the world: the cores, and what they are made of.
func pure(rel string) bool {
	return matches(cores, rel) ||
		!matches(generators, rel) && rel != conditions && strings.HasPrefix(rel, "internal/proto/")
}

// mayCallSystem are the packages that may use golang.org/x/sys/unix; their
// files named *_unsafe.go may use unsafe. Package node may only do the former.
var mayCallSystem = []string{"internal/device/...", "internal/fabric/link/...", "internal/host/...",
	"internal/node/..."}

// pureForbidden are the imports of the world that pure packages must not know.
var pureForbidden = []string{"os", "os/exec", "net", "net/http", "log", "log/slog", "sync", "context", "io/fs",
	"syscall", "os/signal"}

// pureAllowed are the exceptions, with their reason.
var pureAllowed = map[string]string{
	"internal/fabric/trunk/handshake context": "tls.QUICConn.Start requires one; it is never cancelled",
	"internal/service/ipoib syscall":          "outcomes of get-path are syscall.Errno, as its callers compare them; nothing is called",
	"internal/proto/mem sync":                 "a slice has no atomic read-modify-write on bytes: a lock orders RDMA atomics of several lanes",
}

type pkg struct {
	ImportPath, Dir, Name                        string
	GoFiles, IgnoredGoFiles                      []string
	TestGoFiles, XTestGoFiles                    []string
	Imports, TestImports, XTestImports, CgoFiles []string
}

func (p pkg) rel() string { return strings.TrimPrefix(p.ImportPath, "weft/") }

func matches(patterns []string, rel string) bool {
	return slices.ContainsFunc(patterns, func(pat string) bool {
		base, tree := strings.CutSuffix(pat, "/...")
		return rel == base || tree && strings.HasPrefix(rel, base+"/")
	})
}

func storeyOf(rel string) int {
	return slices.IndexFunc(storeys, func(pats []string) bool { return matches(pats, rel) })
}

// family is the room of a storey, such as internal/mgmt/sm, that rel is, or is a part of.
func family(rel string) string {
	parts := strings.SplitN(rel, "/", 4)
	return strings.Join(parts[:min(3, len(parts))], "/")
}

func root(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

// listed keeps what go list said, by build tag: it is the slow part.
var listed = map[string][]pkg{}

func packages(t *testing.T) []pkg { return tagged(t, "") }

func tagged(t *testing.T, tag string) []pkg {
	t.Helper()
	if pkgs, ok := listed[tag]; ok {
		return pkgs
	}
	cmd := exec.Command("go", "list", "-json", "-tags="+tag, "./...")
	cmd.Dir = root(t)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 5 {
		t.Fatalf("go list found %d packages", len(pkgs))
	}
	listed[tag] = pkgs
	return pkgs
}

func TestStoreys(t *testing.T) {
	for _, p := range packages(t) {
		rel := p.rel()
		storey := storeyOf(rel)
		if storey < 0 {
			t.Errorf("%s is in no storey: add it to the table in test/arch and to ARCHITECTURE.md", rel)
			continue
		}
		for _, imp := range p.Imports {
			other, own := strings.CutPrefix(imp, "weft/")
			if !own {
				continue
			}
			product := strings.HasPrefix(rel, "internal/") || strings.HasPrefix(rel, "cmd/")
			switch {
			case storeyOf(other) > storey:
				t.Errorf("%s imports %s: imports point down only; declare an interface here and let the caller pass it in", rel, other)
			case matches(cores, rel) && matches(cores, other) && family(rel) != family(other):
				t.Errorf("%s imports %s: protocol cores do not import each other; move what both need to internal/proto", rel, other)
			case strings.HasPrefix(other, "cmd/") || strings.HasPrefix(other, "test/") &&
				!strings.HasPrefix(rel, "test/") || strings.HasSuffix(other, "test") &&
				!strings.HasSuffix(rel, "test") && product:
				t.Errorf("%s imports %s: only tests may", rel, other)
			}
		}
		if len(p.CgoFiles) > 0 {
			t.Errorf("%s uses cgo: the binary is built without; C lives in shim/", rel)
		}
	}
}

// rooms are the rooms of a node, each with the other rooms that it may import. None imports the node itself,
// which builds them.
var rooms = map[string][]string{
	"admission":  {},
	"loop":       {},
	"describe":   {},
	"stack":      {},
	"lane":       {"loop"},
	"session":    {"lane"},
	"subnet":     {"loop", "lane", "session"},
	"supervisor": {"loop"},
	"membership": {},
	"mesh":       {},
	"mgmt":       {"describe", "loop", "subnet"},
	"conn":       {"loop", "lane", "session", "subnet"},
	"intent":     {"mgmt", "subnet"},
	"control":    {"lane", "session"},
	"ipif":       {"conn", "describe", "intent", "lane", "loop", "session", "stack", "subnet", "supervisor"},
	"vesw":       {"describe", "intent", "lane", "loop", "stack", "subnet", "supervisor"},
	"vmcard":     {"intent", "lane", "mgmt", "vesw"},
}

// TestRoomsOfNode proves which room of the node imports which.
func TestRoomsOfNode(t *testing.T) {
	const node = "internal/node"
	for _, p := range packages(t) {
		room, ok := strings.CutPrefix(p.rel(), node+"/")
		if !ok {
			continue
		}
		may, known := rooms[room]
		if !known {
			t.Errorf("%s is not in the table of rooms: say in test/arch which rooms it may import", p.rel())
		}
		for _, imp := range p.Imports {
			switch other, inside := strings.CutPrefix(imp, "weft/"+node+"/"); {
			case imp == "weft/"+node:
				t.Errorf("%s imports %s: let the node pass in what the room needs", p.rel(), node)
			case inside && !slices.Contains(may, other):
				t.Errorf("%s imports %s: a room declares an interface for what it needs, and the node passes it in",
					p.rel(), imp)
			}
		}
	}
}

// TestEachStoreyHasAPage requires a README.md in each folder of internal/, with each of its rooms named.
func TestEachStoreyHasAPage(t *testing.T) {
	dir := root(t)
	for _, p := range packages(t) {
		rel := p.rel()
		parts := strings.SplitN(rel, "/", 4)
		if parts[0] != "internal" {
			continue
		}
		page := filepath.Join("internal", parts[1], "README.md")
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			t.Errorf("%s: %v: each storey has a page with its purpose and its rooms", rel, err)
			continue
		}
		if len(parts) > 2 && !bytes.Contains(text, []byte("`"+parts[2])) {
			t.Errorf("%s does not name %s", page, parts[2])
		}
	}
}

func TestPurePackagesKnowNoWorld(t *testing.T) {
	for _, p := range packages(t) {
		if !pure(p.rel()) {
			continue
		}
		for _, imp := range p.Imports {
			if slices.Contains(pureForbidden, imp) && pureAllowed[p.rel()+" "+imp] == "" {
				t.Errorf("%s imports %q: protocol cores have no goroutine, lock, clock, log or socket; let the caller pass in what it needs", p.rel(), imp)
			}
		}
	}
	// The clock and goroutines have no import of their own.
	clock := regexp.MustCompile(`\btime\.(Now|Since|Until|Sleep|After|AfterFunc|Tick|NewTimer|NewTicker)\(|^\s*go (func\b|\w+[.(])`)
	eachGoFile(t, func(p pkg, name string, src []byte) {
		if !pure(p.rel()) || strings.HasSuffix(name, "_test.go") {
			return
		}
		for i, line := range strings.Split(string(src), "\n") {
			if clock.MatchString(line) {
				t.Errorf("%s/%s:%d: protocol cores start no goroutine and read no clock: take now as an argument",
					p.rel(), name, i+1)
			}
		}
	})
}

// TestSkipsAreNamed: with REQUIRE_E2E=1 a test that cannot run fails, so only one package may skip one.
func TestSkipsAreNamed(t *testing.T) {
	skip := regexp.MustCompile(`\.Skip(f|Now)?\(`)
	for line, want := range map[string]bool{`t.Skip("x")`: true, `e.Skipf("%v", err)`: true, "tb.SkipNow()": true,
		"t.Skipped()": false, "list.SkipTo(3)": false} {
		if skip.MatchString(line) != want {
			t.Errorf("%s counts as a skip: %v", line, !want)
		}
	}
	eachGoFile(t, func(p pkg, name string, src []byte) {
		if p.rel() == conditions || p.rel() == "test/arch" {
			return
		}
		for i, line := range strings.Split(string(src), "\n") {
			if skip.MatchString(line) {
				t.Errorf("%s/%s:%d: call condtest.Lacks, which fails with REQUIRE_E2E=1, or condtest.Foregoes", p.rel(),
					name, i+1)
			}
		}
	})
}

func eachGoFile(t *testing.T, f func(p pkg, name string, src []byte)) {
	t.Helper()
	seen := map[string]bool{}
	for _, tag := range []string{"", "invariants"} {
		for _, p := range tagged(t, tag) {
			for _, name := range slices.Concat(p.GoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles) {
				full := filepath.Join(p.Dir, name)
				if seen[full] {
					continue
				}
				seen[full] = true
				src, err := os.ReadFile(full)
				if err != nil {
					t.Fatal(err)
				}
				f(p, name, src)
			}
		}
	}
}

func TestUnsafeAndSystemCalls(t *testing.T) {
	fset := token.NewFileSet()
	eachGoFile(t, func(p pkg, name string, src []byte) {
		file, err := parser.ParseFile(fset, name, src, parser.ImportsOnly)
		if err != nil {
			t.Errorf("%s/%s: %v", p.rel(), name, err)
			return
		}
		test := strings.HasSuffix(name, "_test.go")
		for _, imp := range file.Imports {
			switch imp.Path.Value {
			case `"unsafe"`:
				if !matches(mayCallSystem, p.rel()) || p.rel() == "internal/node" {
					t.Errorf("%s/%s imports unsafe: only internal/device, fabric/link and host may", p.rel(), name)
				} else if !strings.HasSuffix(strings.TrimSuffix(name, "_test.go"), "_unsafe") &&
					!strings.HasSuffix(name, "_unsafe.go") {
					t.Errorf("%s/%s imports unsafe: move it to a file named *_unsafe.go", p.rel(), name)
				}
			case `"golang.org/x/sys/unix"`:
				if !matches(mayCallSystem, p.rel()) && !test && strings.HasPrefix(p.rel(), "internal/") {
					t.Errorf("%s/%s imports x/sys/unix: only internal/device, fabric/link, host and node may; put the call where its edge is", p.rel(), name)
				}
			case `"C"`:
				t.Errorf("%s/%s uses cgo: C lives in shim/", p.rel(), name)
			}
		}
	})
}

func TestEachPackageHasOneComment(t *testing.T) {
	fset := token.NewFileSet()
	for _, p := range packages(t) {
		var with []string
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil,
				parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if file.Doc != nil {
				with = append(with, name)
			}
		}
		switch {
		case len(p.GoFiles) == 0: // tests only
		case len(with) == 0:
			t.Errorf("%s has no package comment: say what comes in, what goes out, who calls it and what it must never do", p.rel())
		case len(with) > 1:
			t.Errorf("%s has a package comment in %s: keep one", p.rel(), strings.Join(with, " and "))
		}
	}
}

func TestNoPackageIsCalledAfterNothing(t *testing.T) {
	for _, p := range packages(t) {
		switch path.Base(p.rel()) {
		case "util", "utils", "common", "helpers", "helper", "types", "base", "misc":
			t.Errorf("%s: name the package after what it does, or put its parts where their only caller is", p.rel())
		}
	}
}

// tracked returns the files of the repository that are in git, or would be.
func tracked(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v: the test needs a git checkout", err)
	}
	return strings.Fields(string(out))
}

// licenses are the licenses of the files under a directory, of which each file has one. The directory "" is the rest.
var licenses = []struct {
	dir   string
	names []string
}{
	{"guest/linux/module/", []string{"GPL-2.0 OR BSD-2-Clause", "(GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause"}},
	{"", []string{"Apache-2.0"}},
}

// licensesOf returns the lines of which a file has one.
func licensesOf(name string) []string {
	var lines []string
	for _, l := range licenses {
		if strings.HasPrefix(name, l.dir) {
			for _, n := range l.names {
				lines = append(lines, "SPDX-License-Identifier: "+n)
			}
			break
		}
	}
	return lines
}

func TestEachFileHasOneLicenseLine(t *testing.T) {
	dir := root(t)
	for _, name := range tracked(t) {
		shell := strings.HasPrefix(name, "scripts/") || strings.HasPrefix(name, ".ci/")
		if !slices.Contains([]string{".go", ".c", ".h"}, path.Ext(name)) && !shell {
			continue
		}
		src, err := os.ReadFile(filepath.Join(dir, name))
		if os.IsNotExist(err) {
			continue // deleted, not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		head := strings.Join(strings.SplitN(string(src), "\n", 4)[:min(3, bytes.Count(src, []byte("\n")))], "\n")
		found := 0
		for _, line := range licensesOf(name) {
			found += strings.Count(head, line)
		}
		if found != 1 {
			t.Errorf("%s: want one of %q once in its first three lines; found %d", name, licensesOf(name), found)
		}
	}
}

func TestNoForeignWords(t *testing.T) {
	dir := root(t)
	// Spelled in parts, so that this file does not match itself.
	forbidden := regexp.MustCompile(`(^|[^a-zA-Z0-9._-])/(work|farm|root)/|proxy\.golang` + `\.org|deb\.debian` +
		`\.org|registry\.npm` + `js|\bTO` + `DO\b|\bFIX` + `ME\b|fact ` + `sheet`)
	for _, name := range tracked(t) {
		if name == "go.sum" || strings.Contains(name, "/testdata/") || path.Ext(name) == ".pcapng" ||
			path.Ext(name) == ".json" {
			continue
		}
		src, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || bytes.IndexByte(src, 0) >= 0 {
			continue
		}
		for i, line := range strings.Split(string(src), "\n") {
			if m := forbidden.FindString(line); m != "" {
				t.Errorf("%s:%d: %q must not stand in the project", name, i+1, m)
			}
		}
	}
}
