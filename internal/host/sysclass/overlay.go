// SPDX-License-Identifier: Apache-2.0

// Package sysclass gives a program a /sys/class with the devices of a node, for programs that read /sys without libc:
// nothing can be preloaded into them.
//
// What comes in: the tree of files that a node keeps (package sysfs), and a program to run; what goes out: the program
// in place of this process, in a mount namespace of its own. A user who may not make one gets it in a user namespace,
// where the program keeps its user and group. Called by the command line. It never changes what other processes see.
package sysclass

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// classes are the entries of /sys/class that a node has.
var classes = []string{"infiniband", "infiniband_verbs", "infiniband_mad"}

const sysClass = "/sys/class"

// view is the directory of classes and the tree that is shown in it.
type view struct{ class, tree string }

// Overlay puts a file system in memory over /sys/class, for the whole mount namespace: with every class of the kernel,
// each at its place, and the classes of a node as links into its tree. Relative links of the kernel's classes lead where
// they led. A class of the kernel's that appears later is not there; devices in the others are.
//
// If the kernel has devices in one of the classes, the directory has those, and those of the tree that exist now.
func Overlay(tree string) error {
	return (&view{sysClass, filepath.Join(tree, sysClass)}).overlay()
}

func (v *view) overlay() error {
	real, err := unix.Open(v.class, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", v.class, err)
	}
	defer unix.Close(real)
	under := "/proc/self/fd/" + strconv.Itoa(real)
	entries, err := os.ReadDir(under)
	if err != nil {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("weft", v.class, "tmpfs", flags, "mode=755"); err != nil {
		return fmt.Errorf("mount a file system over %s: %w", v.class, err)
	}
	for _, e := range entries {
		if err := v.show(under, v.class, e); err != nil {
			return err
		}
	}
	for _, c := range classes {
		err := os.Symlink(filepath.Join(v.tree, c), filepath.Join(v.class, c))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// As the user cannot write to /sys, nor here.
	if err := unix.Mount("", v.class, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", v.class, err)
	}
	return nil
}

// show makes an entry of the directory under appear in the directory over.
func (v *view) show(under, over string, e fs.DirEntry) error {
	from, to := filepath.Join(under, e.Name()), filepath.Join(over, e.Name())
	ours := over == v.class && slices.Contains(classes, e.Name())
	switch {
	case e.Type()&fs.ModeSymlink != 0:
		if ours {
			return nil // of weft run within weft run
		}
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case ours:
		return v.join(from, to, filepath.Join(v.tree, e.Name()))
	case e.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	default:
		if err := os.WriteFile(to, nil, 0o444); err != nil {
			return err
		}
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s again: %w", to, err)
	}
	return nil
}

// join makes the directory to, of what the kernel has in from and the tree has in own. It makes none if the kernel has
// no device there.
func (v *view) join(from, to, own string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	devices := false
	for _, e := range entries {
		devices = devices || !e.Type().IsRegular()
	}
	if !devices {
		return nil
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		if err := v.show(from, to, e); err != nil {
			return err
		}
	}
	added, err := os.ReadDir(own)
	if err != nil {
		return err
	}
	for _, e := range added {
		err := os.Symlink(filepath.Join(own, e.Name()), filepath.Join(to, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrExist) { // the kernel's device keeps its name
			return err
		}
	}
	return nil
}

// Refusal explains an error of Exec for which Refused is true, and how to avoid it.
func Refusal(err error) (why, fix string) {
	const again = "; then the same again"
	full, denied := errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
	switch {
	case denied && sysctl("kernel/unprivileged_userns_clone") == "0":
		return "the kernel makes no user namespace for users (kernel.unprivileged_userns_clone is 0)",
			"as root, sysctl -w kernel.unprivileged_userns_clone=1" + again
	case full && sysctl("user/max_user_namespaces") == "0":
		return "the kernel makes no user namespace (user.max_user_namespaces is 0)",
			"as root, sysctl -w user.max_user_namespaces=10000" + again
	case denied && sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "AppArmor forbids user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1)",
			"as root, sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" + again
	case full:
		return "the kernel makes no further namespace (user.max_user_namespaces, user.max_mnt_namespaces)",
			"as root, sysctl -w user.max_user_namespaces=10000" + again
	case denied:
		return fmt.Sprintf("%v, as in a container or below chroot", err),
			"weft run -- PROGRAM, without --mount; or give the container the capability SYS_ADMIN"
	}
	return err.Error(), "weft run -- PROGRAM, without --mount"
}

func sysctl(name string) string {
	b, _ := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(b))
}
