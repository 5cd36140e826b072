// SPDX-License-Identifier: Apache-2.0

package sysclass

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Program is what replaces this process.
type Program struct {
	Path string
	Args []string
	Env  []string
	// Tree is the tree of files of the node, as an absolute path.
	Tree string
	// NodeUID is the user of the node.
	NodeUID int
	// Stage is a command that calls Stage in a process of its own.
	Stage []string
}

// ErrNodeUser is the error for a program that would run in a user namespace and could not identify its node: the
// namespace has only the user of the program.
var ErrNodeUser = errors.New("the node runs as another user")

// refusedError is an error of Exec before it executes the program.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// Refused reports whether err, of Exec, is that no namespace with Overlay could be made, which Refusal explains. Other
// errors but ErrNodeUser are of the program.
func Refused(err error) bool {
	var r *refusedError
	return errors.As(err, &r)
}

// Exec replaces this process by the program, in a mount namespace with Overlay. The process keeps its id, its parent,
// its user and group, its directory and its descriptors. It returns only with an error.
//
// A process with several threads cannot enter a user namespace, and each Go program has several. So a process of its
// own makes the namespaces (Stage). This process then executes an image of one thread (entry) that enters them and
// executes the program.
func Exec(p *Program) error {
	runtime.LockOSThread() // the namespace is one of this thread, which execve leaves as the only one
	defer runtime.UnlockOSThread()
	err := unix.Unshare(unix.CLONE_NEWNS)
	if errors.Is(err, unix.EPERM) {
		if p.NodeUID != os.Geteuid() {
			return ErrNodeUser
		}
		image, err := p.prepare()
		if err != nil {
			return &refusedError{err}
		}
		return syscall.Exec(image, p.Args, p.Env)
	}
	if err != nil {
		return &refusedError{fmt.Errorf("make a mount namespace: %w", err)}
	}
	if err := separate(); err != nil {
		return &refusedError{fmt.Errorf("separate the mounts of the program: %w", err)}
	}
	if err := Overlay(p.Tree); err != nil {
		return &refusedError{err}
	}
	return syscall.Exec(p.Path, p.Args, p.Env)
}

// separate keeps what is mounted below /sys in this namespace. Below chroot the root directory is no mount.
func separate() (err error) {
	for _, at := range []string{"/", "/sys"} {
		err = unix.Mount("", at, "", unix.MS_SLAVE|unix.MS_REC, "")
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return err
}

// ready is what Stage prints once the namespaces are complete.
const ready = "ready"

// Stage is the process that makes the namespaces of a program. It prepares the mount namespace that it runs in, prints
// "ready" or an error, and holds the namespaces until in ends.
func Stage(in io.Reader, out io.Writer, tree string) error {
	err := Overlay(tree)
	if err != nil {
		fmt.Fprintln(out, err)
		return err
	}
	fmt.Fprintln(out, ready)
	_, err = io.Copy(io.Discard, in)
	return err
}

// prepare makes the namespaces of a user, and returns the path of an executable image that enters them and executes the
// program.
func (p *Program) prepare() (string, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the current directory: %w", err)
	}
	path, err := filepath.Abs(p.Path)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(p.Stage[0], p.Stage[1:]...)
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN}, // to mount, after the stage was executed
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("make a user namespace: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line = strings.TrimSpace(line); line != ready {
		in.Close()
		err = errors.Join(err, cmd.Wait())
		for _, errno := range []unix.Errno{unix.EPERM, unix.EACCES} {
			if what, ok := strings.CutSuffix(line, ": "+errno.Error()); ok {
				return "", fmt.Errorf("%s: %w", what, errno)
			}
		}
		if line != "" {
			return "", errors.New(line)
		}
		return "", fmt.Errorf("prepare the namespaces: %w", err)
	}
	var fds [2]int
	for i, kind := range []string{"user", "mnt"} {
		if fds[i], err = openNamespace(cmd.Process.Pid, kind); err != nil {
			return "", err
		}
	}
	in.Close() // the descriptors keep the namespaces
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("prepare the namespaces: %w", err)
	}
	image, err := entry(fds[0], fds[1], cwd, path)
	if err != nil {
		return "", err
	}
	fd, err := executable(image)
	if err != nil {
		return "", err
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), nil
}

// openNamespace opens a namespace of a process. The descriptor stays open in what this process executes, which closes
// it.
func openNamespace(pid int, kind string) (int, error) {
	name := fmt.Sprintf("/proc/%d/ns/%s", pid, kind)
	fd, err := unix.Open(name, unix.O_RDONLY, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", name, err)
	}
	return fd, nil
}

// executable returns a descriptor of a file in memory that can be executed.
func executable(image []byte) (int, error) {
	const exec = 0x10 // MFD_EXEC, since Linux 6.3
	fd, err := unix.MemfdCreate("weft-entry", unix.MFD_CLOEXEC|exec)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("weft-entry", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return -1, fmt.Errorf("make an executable file in memory: %w", err)
	}
	if _, err := unix.Write(fd, image); err != nil {
		return -1, fmt.Errorf("write an executable file in memory: %w", err)
	}
	return fd, nil
}
