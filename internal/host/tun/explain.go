// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// explain says what of making an interface failed, why, and what to do.
func explain(what string, err error) error {
	fix := ""
	switch {
	case strings.HasPrefix(what, "open") && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)):
		fix = "the kernel's TUN driver is missing. fix: modprobe tun; in a container add --device /dev/net/tun; or use weft ipoib netstack, which needs neither"
	case strings.HasPrefix(what, "open") && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)):
		fix = "not allowed. fix: chmod 666 /dev/net/tun; in a container add --device /dev/net/tun; or use weft ipoib netstack, which needs no privilege"
	case errors.Is(err, unix.EPERM):
		fix = "it needs CAP_NET_ADMIN. fix: run as root, or setcap cap_net_admin+ep on the program; or use weft ipoib netstack, which needs no privilege"
	case errors.Is(err, unix.EBUSY):
		fix = "an interface of that name exists. fix: ip link delete it, or choose another name"
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %s", what, err, fix)
}
