// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
)

// cut shuts the connections between a node's process and the front-end of a machine's card down, as if either had: both
// see their end. There is one for the messages of the front-end, and one for those of the device, which QEMU makes and
// of which the descriptor in the node may be the lower one.
func cut(node, frontend int) error {
	pidfd, err := unix.PidfdOpen(node, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	list, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(node), "fd"))
	if err != nil {
		return err
	}
	cuts := 0
	for _, e := range list {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		fd, err := unix.PidfdGetfd(pidfd, n, 0)
		if err != nil {
			continue // closed meanwhile
		}
		peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil && int(peer.Pid) == frontend {
			if err := errors.Join(unix.Shutdown(fd, unix.SHUT_RDWR), unix.Close(fd)); err != nil {
				return err
			}
			cuts++
			continue
		}
		unix.Close(fd)
	}
	if cuts > 0 {
		return nil
	}
	return fmt.Errorf("process %d has no connection to process %d", node, frontend)
}

// reconnects ends the session of a machine's card at a node, and waits for the next.
func (f *fleet) reconnects(i int, v api.VM) {
	f.t.Helper()
	var was, is api.VM
	f.wait(v.Name+" has a front-end", func() bool {
		f.query(i, &was, "vm", "show", v.Name)
		return was.Guest && was.Running
	})
	if err := cut(f.nodes[i].Proc.PID(), was.PID); err != nil {
		f.t.Fatal(err)
	}
	f.wait(v.Name+" has a new session", func() bool {
		f.query(i, &is, "vm", "show", v.Name)
		return is.Sessions > was.Sessions && is.Guest && is.Running
	})
}
