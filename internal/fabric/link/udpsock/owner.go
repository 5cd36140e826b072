// SPDX-License-Identifier: Apache-2.0

package udpsock

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// PortOwner describes the process that holds a UDP port in this network namespace, from proc (usually
// /proc); "" if none is found.
func PortOwner(proc string, port uint16) string {
	inodes := map[string]bool{}
	for _, f := range []string{"thread-self/net/udp", "thread-self/net/udp6"} {
		addInodes(inodes, filepath.Join(proc, f), port)
	}
	if len(inodes) == 0 {
		return ""
	}
	fds, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/fd/*"))
	for _, fd := range fds {
		dst, err := os.Readlink(fd)
		if err != nil {
			continue // the process ended, or is another user's
		}
		inode, ok := strings.CutPrefix(dst, "socket:[")
		if !ok || !inodes[strings.TrimSuffix(inode, "]")] {
			continue
		}
		dir := filepath.Dir(filepath.Dir(fd))
		comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
		return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(comm)), filepath.Base(dir))
	}
	return "a socket without a visible process (the kernel's soft-RoCE driver, or another user's program)"
}

// addInodes adds the inodes of the sockets in file that are bound to port.
// Lines read "sl local_address rem_address st tx:rx tr:when retrnsmt uid
// timeout inode …", addresses as hexadecimal with ":port".
func addInodes(inodes map[string]bool, file string, port uint16) {
	f, err := os.Open(file)
	if err != nil {
		return
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		w := strings.Fields(s.Text())
		if len(w) < 10 {
			continue
		}
		_, hex, ok := strings.Cut(w[1], ":")
		if !ok {
			continue
		}
		if p, err := strconv.ParseUint(hex, 16, 16); err == nil && uint16(p) == port {
			inodes[w[9]] = true
		}
	}
}
