// SPDX-License-Identifier: Apache-2.0

// Package rundir is a node's directory: its place, its permissions, the process that owns it, and the peers of its
// sockets.
//
// What comes in: a path, or none; what goes out: a locked Dir for the node and small queries for the command line.
// Called by node and cli. It must never kill a process or remove what another node owns. The files below the directory
// are listed in docs/notes/abi.md.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weft/internal/device/unixsock"
)

// Names below a node's directory.
const (
	LockFile    = "lock"
	ControlSock = "control.sock"
	UmadSock    = "umad.sock"
	CMSock      = "rdmacm.sock"
	SocketDir   = "door"
	TreeDir     = "tree"
	LogFile     = "node.log"
	StoreDir    = "store"
)

// Default returns the directory of the node that needs no name: /run/weft for
// root, $XDG_RUNTIME_DIR/weft, else /tmp/weft-<uid>.
func Default(uid int, getenv func(string) string) string {
	if uid == 0 {
		return "/run/weft"
	}
	if x := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(x) {
		return filepath.Join(x, "weft")
	}
	return "/tmp/weft-" + strconv.Itoa(uid)
}

// LockedError reports that another process owns the directory.
type LockedError struct {
	Dir string
	PID int // 0 when the owner did not write it yet
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("another process owns %s", e.Dir)
	}
	return fmt.Sprintf("process %d already runs a node in %s", e.PID, e.Dir)
}

// PlaceError reports that a path cannot be a node's directory for this user.
type PlaceError struct{ Path, Why string }

func (e *PlaceError) Error() string { return e.Path + " " + e.Why }

// Dir is a directory owned by this process until Close.
type Dir struct {
	path string
	lock *os.File
}

// Ensure creates path with the given permissions if it is missing and checks that it belongs to this
// user; an existing one gets the permissions. A path that cannot be used is a *PlaceError.
func Ensure(path string, perm fs.FileMode) error {
	if !filepath.IsAbs(path) {
		return &PlaceError{path, "is not an absolute path"}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := os.Mkdir(path, perm)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	switch uid := os.Geteuid(); {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return &PlaceError{path, "is not a directory"}
	case int(st.Uid) != uid && st.Uid == 0:
		return &PlaceError{path, "belongs to root"}
	case int(st.Uid) != uid:
		return &PlaceError{path, fmt.Sprintf("belongs to uid %d", st.Uid)}
	}
	return os.Chmod(path, perm) // umask, or an earlier node's choice
}

// Acquire makes the directory, takes its lock and writes this process's pid
// into it. The lock ends with the process, so a dead owner never blocks. The
// error is a *LockedError when another process has it.
func Acquire(path string, perm fs.FileMode) (*Dir, error) {
	if err := Ensure(path, perm); err != nil {
		return nil, err
	}
	name := filepath.Join(path, LockFile)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &fs.PathError{Op: "flock", Path: name, Err: err}
		}
		buf := make([]byte, 16)
		n, _ := f.ReadAt(buf, 0) // a short or empty file leaves the pid unknown
		pid, _ := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
		return nil, &LockedError{Dir: path, PID: pid}
	}
	var held, there unix.Stat_t
	err = errors.Join(unix.Fstat(int(f.Fd()), &held), unix.Stat(name, &there))
	if err != nil || held.Ino != there.Ino || held.Dev != there.Dev { // Discard removed it before the lock was taken
		f.Close()
		return nil, fmt.Errorf("%s was removed meanwhile: repeat the command", name)
	}
	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		f.Close()
		return nil, err
	}
	return &Dir{path: path, lock: f}, nil
}

// Path returns the directory.
func (d *Dir) Path() string { return d.path }

// Close releases the directory. The lock file stays: removing it would allow two processes to hold two locks of one
// name.
func (d *Dir) Close() error { return d.lock.Close() }

// Discard removes the lock file, and the directory if nothing else is in it. The caller made the directory, does not
// keep it, and calls Close next: the lock is held until then.
func (d *Dir) Discard() error {
	err := os.Remove(filepath.Join(d.path, LockFile))
	os.Remove(d.path) // if nothing else is in it
	return err
}

// Listen opens the stream socket name below the directory. g may be nil.
func (d *Dir) Listen(g *unixsock.Guard, name string, o unixsock.Options) (*unixsock.Listener, error) {
	return g.Listen("unix", filepath.Join(d.path, name), o)
}

// ListenRecords is Listen for a socket of records (SOCK_SEQPACKET).
func (d *Dir) ListenRecords(g *unixsock.Guard, name string, o unixsock.Options) (*unixsock.Listener, error) {
	return g.Listen("unixpacket", filepath.Join(d.path, name), o)
}

// Stopped reports whether a process is stopped, by a signal or a debugger: it does nothing until it is continued.
func Stopped(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// "pid (name) state …"; the name may hold anything.
	s := string(b)
	s = s[strings.LastIndexByte(s, ')')+1:]
	return len(s) > 1 && (s[1] == 'T' || s[1] == 't')
}

// OpenProcess returns a descriptor that becomes readable when the process
// ends. The caller closes it.
func OpenProcess(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// WaitProcess waits until the process behind f (from OpenProcess) ended, or
// for at most millis milliseconds, and reports whether it ended.
func WaitProcess(f *os.File, millis int) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, millis)
		if errors.Is(err, unix.EINTR) {
			continue // restarts the full wait: an upper bound for people, not a deadline
		}
		return n > 0, err
	}
}
