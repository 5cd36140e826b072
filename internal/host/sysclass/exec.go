// SPDX-License-Identifier: Apache-2.0

package sysclass

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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

// refusedError is the cause of each error of Exec that Refusal explains.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return "make a namespace: " + e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// Refused reports whether err, of Exec, is that the kernel makes no namespace for this process.
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
	if err == nil {
		if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("separate the mounts of this process: %w", err)
		}
		if err := Overlay(p.Tree); err != nil {
			return err
		}
		return syscall.Exec(p.Path, p.Args, p.Env)
	}
	if !errors.Is(err, unix.EPERM) {
		return &refusedError{err}
	}
	return p.execAsUser()
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

// execAsUser is Exec in a user namespace.
func (p *Program) execAsUser() error {
	if p.NodeUID != os.Geteuid() {
		return ErrNodeUser
	}
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the current directory: %w", err)
	}
	if p.Path, err = absolute(cwd, p.Path); err != nil {
		return err
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
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) {
			return &refusedError{errno}
		}
		return &refusedError{err}
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line = strings.TrimSpace(line); line != ready {
		in.Close()
		err = errors.Join(err, cmd.Wait())
		if line == "" {
			return fmt.Errorf("prepare the namespaces: %w", err)
		}
		return &refusedError{errors.New(line)}
	}
	user, err := p.namespace(cmd.Process.Pid, "user")
	if err != nil {
		return err
	}
	mnt, err := p.namespace(cmd.Process.Pid, "mnt")
	if err != nil {
		return err
	}
	in.Close() // the descriptors keep the namespaces
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("prepare the namespaces: %w", err)
	}
	image, err := entry(user, mnt, cwd, p.Path)
	if err != nil {
		return err
	}
	fd, err := executable(image)
	if err != nil {
		return err
	}
	for _, n := range []int{user, mnt} { // the image closes them
		if _, err := unix.FcntlInt(uintptr(n), unix.F_SETFD, 0); err != nil {
			return err
		}
	}
	return syscall.Exec("/proc/self/fd/"+strconv.Itoa(fd), p.Args, p.Env)
}

func absolute(cwd, path string) (string, error) {
	if strings.HasPrefix(path, "/") {
		return path, nil
	}
	if !strings.HasPrefix(cwd, "/") {
		return "", fmt.Errorf("the current directory %q has no path", cwd)
	}
	return cwd + "/" + path, nil
}

// namespace opens a namespace of a process.
func (p *Program) namespace(pid int, kind string) (int, error) {
	name := fmt.Sprintf("/proc/%d/ns/%s", pid, kind)
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
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
