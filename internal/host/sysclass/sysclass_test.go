// SPDX-License-Identifier: Apache-2.0

package sysclass

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
)

// TestMain shows a tree in a directory of classes and lists it, if the test below executes it in namespaces.
func TestMain(m *testing.M) {
	class, tree := os.Getenv("TEST_CLASS"), os.Getenv("TEST_TREE")
	if class == "" {
		os.Exit(m.Run())
	}
	if err := (&view{class, tree}).overlay(); err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	filepath.WalkDir(class, func(path string, d fs.DirEntry, err error) error {
		line := strings.TrimPrefix(path, class)
		if err != nil {
			line += " " + err.Error()
		} else if d.Type()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(path)
			line += " -> " + strings.Replace(target, tree, "TREE", 1)
			if _, err := os.Stat(path); err != nil {
				line += " dangling"
			}
		} else if b, err := os.ReadFile(path); err == nil {
			line += " = " + strings.TrimSpace(string(b))
		}
		os.Stdout.WriteString(line + "\n")
		return nil
	})
	if err := os.WriteFile(filepath.Join(class, "x"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		os.Stdout.WriteString("it can be written\n")
	}
	os.Exit(0)
}

// TestOverlay: classes of the kernel stay, and those of a node are added, beside devices of the kernel.
func TestOverlay(t *testing.T) {
	base := t.TempDir()
	class, tree := filepath.Join(base, "sys/class"), filepath.Join(base, "tree")
	for name, content := range map[string]string{
		"sys/devices/lo/address":                 "0",
		"sys/devices/mlx5_0/node_type":           "1: CA",
		"sys/class/infiniband_verbs/abi_version": "6",
		"sys/class/net/lo":                       "-> ../../devices/lo",
		"sys/class/infiniband/mlx5_0":            "-> ../../devices/mlx5_0",
		"sys/class/infiniband/weft9":             "-> ../../devices/mlx5_0",
		"tree/infiniband/weft0/node_type":        "1: CA",
		"tree/infiniband/weft9/node_type":        "1: CA",
		"tree/infiniband_verbs/abi_version":      "6",
		"tree/infiniband_verbs/uverbs0/ibdev":    "weft0",
		"tree/infiniband_mad/umad0/ibdev":        "weft_ib0",
		"sys/class/file":                         "a file",
		"sys/class/link":                         "-> net",
	} {
		path := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		target, link := strings.CutPrefix(content, "-> ")
		err := os.WriteFile(path, []byte(content), 0o644)
		if link {
			err = errors.Join(os.Remove(path), os.Symlink(target, path))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"TEST_CLASS=" + class, "TEST_TREE=" + tree}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC) {
		condtest.Lacks(t, "needs a user namespace: %v", err)
	}
	want := `
/file = a file
/infiniband
/infiniband/mlx5_0 -> ../../devices/mlx5_0
/infiniband/weft0 -> TREE/infiniband/weft0
/infiniband/weft9 -> ../../devices/mlx5_0
/infiniband_mad -> TREE/infiniband_mad
/infiniband_verbs -> TREE/infiniband_verbs
/link -> net
/net
/net/lo -> ../../devices/lo
`
	if diff := cmp.Diff(want, string(out)); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

// TestEntry: the image is one that the kernel executes, and it reports that a namespace cannot be entered.
func TestEntry(t *testing.T) {
	image, err := entry(98, 99, "/", "/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "entry")
	if err := os.WriteFile(name, image, 0o755); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(name, "a", "b")
	cmd.Stderr = &stderr
	err = cmd.Run()
	const want = "weft: cannot run /bin/true: its namespace was made, and cannot be entered, or the program not be " +
		"executed there. fix: weft run -- PROGRAM, without --mount\n"
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 126 || stderr.String() != want {
		t.Errorf("%v, %q", err, stderr.String())
	}
}

func TestRefusal(t *testing.T) {
	for err, want := range map[error]string{
		unix.EINVAL: "weft run -- PROGRAM, without --mount",
		unix.ENOSPC: "as root, sysctl -w user.max_user_namespaces=10000; then the same again",
	} {
		if why, fix := Refusal(&refusedError{err}); fix != want || why == "" {
			t.Errorf("%v: %s, %s", err, why, fix)
		}
	}
	if !Refused(&refusedError{unix.EPERM}) || Refused(ErrNodeUser) || Refused(unix.ENOENT) {
		t.Error("errors are taken for others")
	}
}
