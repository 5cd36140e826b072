// SPDX-License-Identifier: Apache-2.0

package userland

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// suites are the releases of Debian, with their versions of rdma-core: 33, 44, 56, and the newest.
var suites = []string{"bullseye", "bookworm", "trixie", "sid"}

// freshEnv is the environment variable that unpacks every userland again if it is 1: the suite may have newer packages
// than the cache.
const freshEnv = "WEFT_FRESH_USERLANDS"

// unusedFor is how long the cache keeps a userland after its last use: other trees may need it.
const unusedFor = 24 * time.Hour

// userland is the root of a release with packages and what they depend on.
type userland struct {
	suite   string
	dir     string            // shared with other tests, not to be changed
	lacking map[string]string // packages that the suite cannot give now, with what apt printed
}

// extracted has mmdebstrap unpack the packages without the essential ones and without their scripts; installed has it
// install them, with the essential ones. The first takes seconds.
const (
	extracted = "extract"
	installed = "minbase"
)

// unpack returns the userland of a suite with packages, from the cache if that has it. A package that the suite lacks
// is left out, and fails only those that need it.
func unpack(t testing.TB, suite, variant string, packages ...string) *userland {
	t.Helper()
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		lab.Lacks(t, errors.New("a release of Debian needs mmdebstrap. fix: apt-get install mmdebstrap"))
	}
	packages = slices.Clone(packages)
	slices.Sort(packages)
	packages = slices.Compact(packages)
	sum := sha256.Sum256([]byte(variant + " " + strings.Join(packages, " ")))
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	base = filepath.Join(base, "weft-userland")
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	removeUnused(base)
	// Names of one userland end with the time of their making, so that the newest is the last.
	prefix := filepath.Join(base, suite+"-"+hex.EncodeToString(sum[:8])+"-")
	if list, _ := filepath.Glob(prefix + "*"); len(list) > 0 && os.Getenv(freshEnv) != "1" {
		dir := slices.Max(list)
		now := time.Now()
		if err := os.Chtimes(dir, now, now); err == nil {
			return &userland{suite: suite, dir: dir}
		} // else it was removed just now
	}
	tmp, err := os.MkdirTemp(base, ".new-"+suite+"-")
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(tmp, "root")
	lacking, err := bootstrap(root, suite, variant, packages)
	if err == nil {
		names := "127.0.0.1 localhost\n" + wired + " " + hostname + "\n"
		err = os.WriteFile(filepath.Join(root, "etc/hosts"), []byte(names), 0o644)
	}
	if err != nil {
		os.RemoveAll(tmp)
		t.Fatalf("%s: %v", suite, err)
	}
	if len(lacking) > 0 { // the suite may have all of them tomorrow
		t.Cleanup(func() { os.RemoveAll(tmp) })
		return &userland{suite, root, lacking}
	}
	defer os.RemoveAll(tmp)
	dir := prefix + strconv.FormatInt(time.Now().UnixNano(), 10)
	if err := os.Rename(root, dir); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := os.Chtimes(dir, now, now); err != nil {
		t.Fatal(err)
	}
	return &userland{suite: suite, dir: dir}
}

// removeUnused removes the userlands of the cache that no test has used for long, and what killed tests left.
func removeUnused(base string) {
	for _, pattern := range []string{"*", ".new-*"} {
		list, _ := filepath.Glob(filepath.Join(base, pattern))
		for _, dir := range list {
			if st, err := os.Stat(dir); err == nil && time.Since(st.ModTime()) > unusedFor {
				os.RemoveAll(dir)
			}
		}
	}
}

// bootstrap unpacks a suite with packages into dir. It returns the packages that the suite lacks, which are not there.
func bootstrap(dir, suite, variant string, packages []string) (lacking map[string]string, err error) {
	lacking = map[string]string{}
	for {
		out, err := lab.Run(lab.Cmd{Args: []string{"mmdebstrap", "--variant=" + variant,
			`--aptopt=Acquire::Check-Valid-Until "false"`, `--aptopt=Acquire::Retries "3"`,
			"--include=" + strings.Join(packages, ","), suite, dir}},
			15*time.Minute)
		if err == nil {
			return lacking, nil
		}
		more := lackingIn(out, packages)
		if len(more) == 0 {
			return nil, fmt.Errorf("%w\n%s", err, lab.Tail(out, 30))
		}
		maps.Copy(lacking, more)
		packages = slices.DeleteFunc(slices.Clone(packages), func(p string) bool { return more[p] != "" })
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
	}
}

// apt's words for a package that it does not know, that has no version in the suite, or that cannot be installed
// because of its dependencies.
var aptLacks = []*regexp.Regexp{
	regexp.MustCompile(`(?m)^(?:E|Error): Unable to locate package (\S+)$`),
	regexp.MustCompile(`(?m)^(?:E|Error): Package '([^']+)' has no installation candidate$`),
	regexp.MustCompile(`(?m)^ (\S+) : (?:Pre)?Depends: .*$`),
}

// lackingIn returns those of the packages that apt could not give, each with the line that says so.
func lackingIn(out string, packages []string) map[string]string {
	lacking := map[string]string{}
	for _, re := range aptLacks {
		for _, m := range re.FindAllStringSubmatch(out, -1) {
			if slices.Contains(packages, m[1]) {
				lacking[m[1]] = strings.TrimSpace(m[0])
			}
		}
	}
	return lacking
}

// need fails a row if the suite lacks a package that the row needs.
func (u *userland) need(t *testing.T, packages ...string) {
	t.Helper()
	for _, p := range packages {
		if why := u.lacking[p]; why != "" {
			t.Fatalf("%s has no package %s: %s", u.suite, p, why)
		}
	}
}

// TestLacking reads what apt prints of packages that it cannot give.
func TestLacking(t *testing.T) {
	const out = `Reading package lists...
Some packages could not be installed. This may mean that you have
requested an impossible situation.

The following packages have unmet dependencies:
 ucx-utils : Depends: libucx0 (>= 1.19) but it is not going to be installed
 libfoo : Depends: libbar but it is not installable
E: Unable to locate package gone
E: Package 'virtual' has no installation candidate
E: apt download failed`
	packages := []string{"ucx-utils", "gone", "virtual", "perftest"}
	got := slices.Sorted(maps.Keys(lackingIn(out, packages)))
	if want := []string{"gone", "ucx-utils", "virtual"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestPackageGone: a package that a suite lacks fails those that need it, by name, and nothing else.
func TestPackageGone(t *testing.T) {
	t.Parallel()
	lab.NeedNetNS(t)
	lab.OnlySoak(t)
	u := unpack(t, "sid", extracted, "base-files", "weft-has-no-such-package")
	if _, err := os.Stat(filepath.Join(u.dir, "etc/os-release")); err != nil {
		t.Error(err)
	}
	if why := u.lacking["weft-has-no-such-package"]; len(u.lacking) != 1 || !strings.Contains(why, "Unable to locate") {
		t.Errorf("%q", u.lacking)
	}
}
