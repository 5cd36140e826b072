// SPDX-License-Identifier: Apache-2.0

package userland

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// limit bounds a program, also on a machine that does much else.
const limit = time.Minute

// home is the directory of the user in a host, and weft there the only file of Weft.
const (
	path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
	home = "/home/user"
	weft = home + "/weft"
)

// hostname is the name of each host, and wired the address that a host has if it has a network card.
const (
	hostname = "userland"
	wired    = "10.79.0.1"
)

// host is a userland with a network, processes and mounts of its own. It has the loopback interface alone.
type host struct {
	*userland
	init *lab.Proc // waits in the namespaces; they end with it
	pid  int       // the number of the first process of the namespaces, as this machine has it
}

// enter is the script of the first process of a host. What the userland has stays as it is; what programs write is in
// memory.
const enter = `
hostname "$3"
ip link set lo up
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
mount -t proc proc "$1/proc"
mount -t sysfs -o ro sysfs "$1/sys"
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
for d in null zero full random urandom; do : >"$1/dev/$d"; mount --bind /dev/$d "$1/dev/$d"; done
mkdir -m 1777 "$1/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
mount -t tmpfs -o mode=755 tmpfs "$1/run"
mount -t tmpfs -o mode=755 tmpfs "$1/home"
mkdir "$1/home/user"
chown "$2:$2" "$1/home/user"
echo entered
exec sleep infinity`

// start makes a host of the userland, which ends with the test.
func (u *userland) start(t testing.TB) *host {
	t.Helper()
	init, err := lab.Start(lab.Cmd{Args: []string{"unshare", "--net", "--ipc", "--uts", "--mount", "--pid",
		"--fork", "--kill-child", "sh", "-ec", enter, "sh", u.dir, strconv.Itoa(lab.Nobody), hostname}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(init.Kill)
	if _, err := init.Expect("entered", limit); err != nil {
		t.Fatal(err)
	}
	h := &host{userland: u, init: init}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", init.PID()))
	if err == nil {
		h.pid, err = strconv.Atoi(strings.TrimSpace(string(children)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// command returns a command in the host. Its user has no capability and can get none. The only environment is env.
func (h *host) command(env []string, args ...string) lab.Cmd {
	id := strconv.Itoa(lab.Nobody)
	v := append([]string{"env", "-i", "PATH=" + path, "HOME=" + home}, env...)
	v = append(v, "nsenter", "--target="+strconv.Itoa(h.pid), "--net", "--ipc", "--uts", "--mount", "--pid", "chroot",
		h.dir, "setpriv", "--reuid="+id, "--regid="+id, "--clear-groups", "--bounding-set=-all", "--inh-caps=-all",
		"--no-new-privs", "--")
	return lab.Cmd{Args: append(v, args...), Peers: []lab.Peer{h.init}}
}

// program returns the command that runs a program on the host's node, which the first of them starts. Words before
// "--" are flags of weft run.
func (h *host) program(args ...string) lab.Cmd {
	if !slices.Contains(args, "--") {
		args = append([]string{"--"}, args...)
	}
	return h.command(nil, append([]string{weft, "run"}, args...)...)
}

// install copies the file weft into the host.
func (h *host) install() error {
	to := filepath.Join("/proc", strconv.Itoa(h.pid), "root", h.dir, home)
	_, err := lab.Run(lab.Cmd{Args: []string{"cp", lab.Bin("weft"), to}}, limit)
	return err
}

// pair runs a program as server and, when that listens on the TCP port, as client, and returns what the client printed.
func pair(port int, server, client lab.Cmd) (string, error) {
	p, err := lab.StartPair(port, server, client)
	defer p.Kill()
	if err == nil {
		c, s := p.Wait(limit)
		err = errors.Join(c, s)
	}
	if err != nil {
		return "", fmt.Errorf("%w%s", err, p.Outputs())
	}
	return p.Client.Output(), nil
}
