// SPDX-License-Identifier: Apache-2.0

package rundir

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"weft/internal/device/unixsock"
	"weft/internal/proto/condtest"
)

func TestDefault(t *testing.T) {
	for _, x := range []struct {
		uid       int
		xdg, want string
	}{
		{0, "/run/user/0", "/run/weft"},
		{1000, "/run/user/1000", "/run/user/1000/weft"},
		{1000, "", "/tmp/weft-1000"},
		{1000, "relative", "/tmp/weft-1000"},
	} {
		if got := Default(x.uid, func(string) string { return x.xdg }); got != x.want {
			t.Errorf("uid %d, %q: want %s, got %s", x.uid, x.xdg, x.want, got)
		}
	}
}

func TestSecondOwnerIsToldTheFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "weft")
	d, err := Acquire(path, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v", st, err)
	}
	_, err = Acquire(path, 0o700)
	var locked *LockedError
	if !errors.As(err, &locked) || locked.PID != os.Getpid() || locked.Dir != path {
		t.Errorf("want the owner's pid, got %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	d, err = Acquire(path, 0o755) // the file stays, the lock does not
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("directory: %v %v", st, err)
	}
}

func TestEnsureRefusesForeignPlaces(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{name: "is not a directory", link: "is not a directory",
		"rel": "is not an absolute path"} {
		if err := Ensure(path, 0o700); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q, got %v", path, want, err)
		}
	}
	condtest.NeedRoot(t, "to give a directory to another user")
	other := filepath.Join(dir, "other")
	if err := os.Mkdir(other, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(other, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if err := Ensure(other, 0o700); err == nil || !strings.Contains(err.Error(), "belongs to uid 1000") {
		t.Errorf("another user's directory: %v", err)
	}
}

func TestListen(t *testing.T) {
	d, err := Acquire(filepath.Join(t.TempDir(), "w"), 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	name := filepath.Join(d.Path(), ControlSock)
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	l, err := d.Listen(nil, ControlSock, unixsock.Options{Mode: 0o666})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(name); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("socket: %v %v", st, err)
	}
	l.Close()
	if _, err := os.Stat(name); !os.IsNotExist(err) {
		t.Errorf("the socket outlived its listener: %v", err)
	}
}

func TestWaitProcess(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := OpenProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ended, err := WaitProcess(f, 1); ended || err != nil {
		t.Errorf("a running process: %v %v", ended, err)
	}
	in.Close()
	if ended, err := WaitProcess(f, 10000); !ended || err != nil {
		t.Errorf("an ended process: %v %v", ended, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestStopped(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	pid := cmd.Process.Pid
	for _, c := range []struct {
		sig  os.Signal
		want bool
	}{{syscall.SIGSTOP, true}, {syscall.SIGCONT, false}} {
		if err := cmd.Process.Signal(c.sig); err != nil {
			t.Fatal(err)
		}
		condtest.Until(t, fmt.Sprintf("after %v: stopped %v", c.sig, c.want), func() bool {
			return Stopped(pid) == c.want
		})
	}
	if Stopped(os.Getpid()) {
		t.Error("this process is stopped")
	}
}
