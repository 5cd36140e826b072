// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net"
	"slices"
	"syscall"

	"weft/internal/device/unixsock"
)

// PeerAccess returns the function of NewServer: root and the node's own user may do
// everything, those that may use devices may read, others nothing.
func PeerAccess(self int, allow []int) func(net.Conn) (Access, error) {
	return func(c net.Conn) (Access, error) {
		p, err := peerOf(c)
		if err != nil {
			return NoAccess, err
		}
		return accessOf(p.UID, self, allow)
	}
}

// peerOf returns the process at the other end of a Unix socket.
func peerOf(c net.Conn) (unixsock.Peer, error) {
	u, ok := c.(syscall.Conn)
	if !ok || c.LocalAddr().Network() != "unix" {
		return unixsock.Peer{}, fmt.Errorf("%s is no Unix socket", c.LocalAddr().Network())
	}
	return unixsock.PeerOf(u)
}

func accessOf(uid, self int, allow []int) (Access, error) {
	switch {
	case uid == 0 || uid == self:
		return FullAccess, nil
	case slices.Contains(allow, uid):
		return ReadAccess, nil
	}
	return NoAccess, &Error{Code: CodeRefused, Why: fmt.Sprintf("the node does not serve uid %d", uid),
		Fix: fmt.Sprintf("as its user, weft up --allow-uid %d", uid)}
}
