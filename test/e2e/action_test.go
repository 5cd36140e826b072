// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"weft/test/lab"
)

// action is an action.yml of GitHub, as far as a runner needs it.
type action struct {
	Inputs map[string]struct {
		Default string
	}
	Runs struct {
		Using string
		Steps []struct {
			Name, ID, Shell, Run, Uses string
			Env                        map[string]string
		}
	}
}

// actionLimit bounds the steps of an action.
const actionLimit = time.Minute

// runnerScript is what a runner is to its steps: the environment, and the files by which a step sets it for the next.
const runnerScript = `set -eu
export RUNNER_TEMP=$1/temp GITHUB_ACTION_PATH=$2 HOME=$1
export GITHUB_ENV=$1/env GITHUB_PATH=$1/path GITHUB_OUTPUT=$1/output
mkdir -p "$RUNNER_TEMP"
: >"$GITHUB_OUTPUT"
step() {
	: >"$GITHUB_ENV"; : >"$GITHUB_PATH"
	echo "step $1"
	script=$1; shift
	env "$@" bash --noprofile --norc -eo pipefail "$script" || return
	while read -r line; do export "${line%%=*}=${line#*=}"; done <"$GITHUB_ENV"
	while read -r line; do PATH=$line:$PATH; done <"$GITHUB_PATH"
}
`

// inputPattern matches the expression of an input.
var inputPattern = regexp.MustCompile(`^\$\{\{ inputs\.([a-z0-9]+) \}\}$`)

// actionSteps returns the lines of a runner that execute the steps of an action, with inputs. Their scripts are written
// to dir. A step of another action has no line.
func actionSteps(t *testing.T, name, dir string, inputs map[string]string) (lines string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(lab.Root(), name))
	if err != nil {
		t.Fatal(err)
	}
	var a action
	if err := yaml.Unmarshal(raw, &a); err != nil || a.Runs.Using != "composite" {
		t.Fatalf("%s: %q, %v", name, a.Runs.Using, err)
	}
	for i, s := range a.Runs.Steps {
		if s.Uses != "" {
			continue
		}
		if s.Shell != "bash" || strings.Contains(s.Run, "${{") {
			t.Errorf("%s, step %q: its shell is %q, and its script %q", name, s.Name, s.Shell, s.Run)
		}
		script := filepath.Join(dir, fmt.Sprintf("%s-%d.sh", strings.ReplaceAll(name, "/", "-"), i))
		if err := os.WriteFile(script, []byte(s.Run+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		var env []string
		for _, k := range slices.Sorted(maps.Keys(s.Env)) {
			m := inputPattern.FindStringSubmatch(s.Env[k])
			if m == nil {
				t.Fatalf("%s: %s is %q", name, k, s.Env[k])
			}
			in, is := a.Inputs[m[1]]
			if !is {
				t.Fatalf("%s has no input %s", name, m[1])
			}
			value := in.Default
			if v, is := inputs[m[1]]; is {
				value = v
			}
			env = append(env, "'"+k+"="+value+"'") // no test has a quote in a value
		}
		lines += fmt.Sprintf("step %s %s\n", script, strings.Join(env, " "))
	}
	return lines
}

// runAction runs lines as an ordinary user on a runner of their own, which ends with all its processes. $1 in lines is
// the runner's directory.
func runAction(t *testing.T, source, dir, lines string) (string, error) {
	t.Helper()
	id := fmt.Sprint(lab.Nobody)
	return lab.Run(lab.Cmd{Args: []string{"unshare", "--net", "--mount", "--pid", "--fork", "--kill-child",
		"--mount-proc", "sh", "-euc", `ip link set lo up; exec "$@"`, "sh", "setpriv", "--reuid=" + id, "--regid=" + id,
		"--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "bash", "-c",
		runnerScript + lines, "bash", dir, source}}, actionLimit)
}

// readableDir returns a temporary directory that ordinary users can read.
func readableDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAction runs the steps of the actions as a runner does: the first installs weft and starts a node, programs of
// later steps use it, and after a step that failed the other one collects the packets.
func TestAction(t *testing.T) {
	t.Parallel()
	lab.NeedNetNS(t)
	needs(t, "capinfos", "ibv_rc_pingpong")
	source := readableDir(t)
	if err := os.CopyFS(filepath.Join(source, "packaging/action"),
		os.DirFS(filepath.Join(lab.Root(), "packaging/action"))); err != nil {
		t.Fatal(err)
	}
	weft, err := os.ReadFile(lab.Bin("weft"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(weft)
	digest := hex.EncodeToString(sum[:])
	newRunner := func(t *testing.T) string {
		t.Helper()
		dir := readableDir(t)
		if err := os.Chown(dir, lab.Nobody, lab.Nobody); err != nil {
			t.Fatal(err)
		}
		return dir
	}

	t.Run("works", func(t *testing.T) {
		dir := newRunner(t)
		lines := `(cd "$1" && exec python3 -m http.server --bind 127.0.0.1 18080) >"$1/served" 2>&1 &
until curl -s http://127.0.0.1:18080/ >"$1/listing"; do sleep 0.1; done
`
		if err := os.WriteFile(filepath.Join(dir, "weft"), weft, 0o644); err != nil {
			t.Fatal(err)
		}
		// Another digest first: the step fails, and nothing is installed.
		url := map[string]string{"url": "http://127.0.0.1:18080/weft", "sha256": strings.Repeat("0", 64)}
		install, _, _ := strings.Cut(actionSteps(t, "action.yml", readableDir(t), url), "\n")
		lines += "if (" + install + "); then exit 1; fi\n"
		lines += "[ ! -e $RUNNER_TEMP/weft/bin/weft ]\n"
		lines += actionSteps(t, "action.yml", source, map[string]string{"url": url["url"], "sha256": digest,
			"preload": "true"})
		lines += `ibv_devinfo -d weft0 | grep PORT_ACTIVE
ibv_rc_pingpong -d weft0 -g 1 >"$1/server" &
until ibv_rc_pingpong -d weft0 -g 1 127.0.0.1; do sleep 0.1; done
wait $!
weft run -- ibv_devinfo -d weft0 | grep PORT_ACTIVE
cat "$GITHUB_OUTPUT"
echo 'ibv_rc_pingpong -d weft0 -g 1 127.0.0.1' >"$1/failing"
if (step "$1/failing"); then echo "a client without a server succeeded"; exit 1; fi
export GITHUB_ACTION_PATH=$GITHUB_ACTION_PATH/collect
mkdir -p "$1/collect"
`
		lines += actionSteps(t, "collect/action.yml", source, nil)
		lines += "weft down\n"
		if err := os.Mkdir(filepath.Join(source, "collect"), 0o755); err != nil {
			t.Fatal(err)
		}
		out, err := runAction(t, source, dir, lines)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, want := range []string{"1000 iters in ", "device=weft0\n", "dir=" + dir + "/temp/weft/node\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
		collected := filepath.Join(dir, "temp/weft/collected")
		for _, name := range []string{"node.log", "status.txt", "doctor.txt", "version.txt"} {
			if st, err := os.Stat(filepath.Join(collected, name)); err != nil || st.Size() == 0 {
				t.Errorf("%s: %v", name, err)
			}
		}
		packets, err := exec.Command("capinfos", "-c", "-M", "-T", "-r", filepath.Join(collected, "0.pcapng")).Output()
		var n int
		if f := strings.Fields(string(packets)); err == nil && len(f) > 0 {
			fmt.Sscan(f[len(f)-1], &n)
		}
		if n < 2000 { // a thousand messages each way, and their acknowledgements
			t.Errorf("%d packets of the pingpong are collected: %v: %s", n, err, packets)
		}
	})

	const install, start = "::error::cannot install weft: ", "::error::cannot start weft: "
	const download = "http://127.0.0.1:1/weft"
	for name, x := range map[string]struct {
		inputs map[string]string
		want   string
	}{
		"nothing":   {nil, install + "there is neither a file nor a url. fix: "},
		"both":      {map[string]string{"file": "a", "url": "b"}, install + "there is a file and a url. fix: "},
		"no file":   {map[string]string{"file": "none"}, install + "there is no file none. fix: "},
		"no digest": {map[string]string{"url": download}, install + "the url has no sha256. fix: "},
		"no server": {map[string]string{"url": download, "sha256": digest}, install + "the download failed. fix: "},
		"other digest": {map[string]string{"file": lab.Bin("weft"), "sha256": strings.Repeat("0", 64)},
			install + "its SHA-256 is " + digest},
		"no program": {map[string]string{"file": "/etc/hostname"}, install + "it does not run here. fix: "},
		"an option":  {map[string]string{"file": "-weft"}, install + "there is no file -weft. fix: "},
		"a url that is an option": {map[string]string{"url": "-Kx", "sha256": digest},
			install + "the download failed. fix: "},
		"a command": {map[string]string{"file": "x\n::set-env name=A::b"},
			install + "there is no file x%0A::set-env name=A::b. fix: "},
		"mistyped": {map[string]string{"file": lab.Bin("weft"), "preload": "yes"},
			start + "the input preload is neither true nor false. fix: "},
	} {
		t.Run(name, func(t *testing.T) {
			steps := readableDir(t)
			out, err := runAction(t, source, newRunner(t), actionSteps(t, "action.yml", steps, x.inputs))
			if err == nil || !strings.Contains(out, x.want) {
				t.Errorf("%v, want %q in\n%s", err, x.want, out)
			}
		})
	}
}

// TestActionTwice: what weft prints about a node that cannot start is the error of the step.
func TestActionTwice(t *testing.T) {
	t.Parallel()
	lab.NeedNetNS(t)
	source, dir := readableDir(t), readableDir(t)
	if err := os.Chown(dir, lab.Nobody, lab.Nobody); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(source, "packaging/action"),
		os.DirFS(filepath.Join(lab.Root(), "packaging/action"))); err != nil {
		t.Fatal(err)
	}
	lines := actionSteps(t, "action.yml", source, map[string]string{"file": lab.Bin("weft"), "capture": "false"})
	out, err := runAction(t, source, dir, lines+lines)
	if err == nil || !strings.Contains(out, "\n::error::weft: cannot start ") || !strings.Contains(out, ". fix: ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestActionLint: actionlint knows the actions, and shellcheck finds nothing in the scripts of steps and of packages.
func TestActionLint(t *testing.T) {
	t.Parallel()
	needs(t, "shellcheck")
	tools := filepath.Join(lab.Root(), "packaging/tools")
	linter := filepath.Join(t.TempDir(), "actionlint")
	build := exec.Command("go", "build", "-C", tools, "-o", linter, "github.com/rhysd/actionlint/cmd/actionlint")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// It looks for the actions from the directory with .git.
	root := t.TempDir()
	for to, from := range map[string]string{"action.yml": "action.yml", "collect/action.yml": "collect/action.yml",
		".github/workflows/test.yml": "test/e2e/action/workflow.yml"} {
		raw, err := os.ReadFile(filepath.Join(lab.Root(), from))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(root, to)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(root, to), raw, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
	lint := exec.Command(linter, "-no-color")
	lint.Dir = root
	if out, err := lint.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	scripts, err := fs.Glob(os.DirFS(lab.Root()), "packaging/action/*.sh")
	if err != nil || len(scripts) == 0 {
		t.Fatal(scripts, err)
	}
	scripts = append(scripts, "packaging/stage", "packaging/version", "packaging/deb/postinst", "packaging/deb/postrm",
		"packaging/deb/prerm", "scripts/sysroot", "shim/check-glibc.sh")
	check := exec.Command("shellcheck", append([]string{"--severity=warning"}, scripts...)...)
	check.Dir = lab.Root()
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
