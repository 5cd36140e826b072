// SPDX-License-Identifier: Apache-2.0

package node

import "os"

// permissions are those of the node's sockets.
type permissions struct {
	shared bool // other users than the node's may connect: the server validates their credentials
}

// socket returns the permissions of sockets.
func (p permissions) socket() os.FileMode {
	if p.shared {
		return 0o666
	}
	return 0o600
}

// dir returns the permissions of directories with sockets.
func (p permissions) dir() os.FileMode {
	if p.shared {
		return 0o755
	}
	return 0o700
}
