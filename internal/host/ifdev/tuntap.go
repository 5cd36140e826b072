// SPDX-License-Identifier: Apache-2.0

package ifdev

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"weft/internal/proto/ether"
	"weft/internal/proto/problem"
)

// Mode is the kind of a device of the TUN driver.
type Mode uint16

// Modes (linux/if_tun.h).
const (
	TUN Mode = unix.IFF_TUN // IP packets
	TAP Mode = unix.IFF_TAP // Ethernet frames
)

// unprivileged is the command that does without such a device.
func (m Mode) unprivileged() string {
	if m == TUN {
		return "weft ipoib netstack DEVICE --addr ADDRESS/LENGTH"
	}
	return "weft vesw netstack DEVICE --vesw ID --addr ADDRESS/LENGTH"
}

// CreateTUN makes an interface of a mode without carrier, and returns its descriptor, which blocks. Each packet has a
// header of ether.OffloadLen octets in front, little-endian. features are the offloads that the kernel accepts in what
// is written. The interface exists as long as the descriptor is open. configure, unless nil, makes further ioctls.
func CreateTUN(name string, mode Mode, configure func(fd int) error) (fd int, features ether.Features, err error) {
	const path = "/dev/net/tun"
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, mode.Explain("open "+path, err)
	}
	if features, err = setUpTUN(fd, name, mode); err == nil && configure != nil {
		err = configure(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, 0, err
	}
	return fd, features, nil
}

func setUpTUN(fd int, name string, mode Mode) (ether.Features, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	req.SetUint16(uint16(mode) | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return 0, mode.Explain("create it", err)
	}
	if err := SetCarrier(fd, false); err != nil {
		return 0, mode.Explain("turn carrier off", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETLE, 1); err != nil {
		return 0, mode.Explain("set the byte order of offloads", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, ether.OffloadLen); err != nil {
		return 0, mode.Explain("set the length of offloads", err)
	}
	const tcp = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
	features := ether.FeatureCsum | ether.FeatureTSO4 | ether.FeatureTSO6 | ether.FeatureECN
	err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp|unix.TUN_F_USO4|unix.TUN_F_USO6)
	switch {
	case err == nil:
		features |= ether.FeatureUSO4 | ether.FeatureUSO6
	case errors.Is(err, unix.EINVAL): // before Linux 6.2
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp)
	}
	if err != nil {
		return 0, mode.Explain("enable offloads", err)
	}
	return features, nil
}

// SetCarrier sets the carrier of a TUN or TAP device.
func SetCarrier(fd int, on bool) error {
	v := 0
	if on {
		v = 1
	}
	return unix.IoctlSetPointerInt(fd, unix.TUNSETCARRIER, v)
}

// Explain adds to the error of a step of making a device its cause in the host's configuration, and the fix.
func (m Mode) Explain(step string, err error) error {
	opens, denied := strings.HasPrefix(step, "open"), errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
	missing := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)
	e := &problem.Error{What: step, Err: err}
	switch {
	case opens && missing:
		e.Why, e.Fix = "the kernel's TUN driver is missing", "modprobe tun; in a container add --device /dev/net/tun"
	case opens && denied:
		e.Why, e.Fix = "access is denied", "chmod 666 /dev/net/tun; in a container add --device /dev/net/tun"
	case errors.Is(err, unix.EPERM):
		e.Why, e.Fix = "it needs CAP_NET_ADMIN", "run as root, or setcap cap_net_admin+ep on the program"
	case errors.Is(err, unix.EBUSY):
		e.Why, e.Fix = "another node or another program has an interface of that name",
			"choose another name, or use "+m.unprivileged()+", which makes no interface"
	default:
		return fmt.Errorf("%s: %w", step, err)
	}
	if !errors.Is(err, unix.EBUSY) {
		e.Fix += "; or use " + m.unprivileged() + ", which needs no privilege"
	}
	e.Why = err.Error() + ": " + e.Why
	return e
}

// Descriptor is a file that does not block and that the runtime's poller leaves alone, which would otherwise wake for
// each frame beside the lane that polls it. Any goroutine may close it: it stays open until calls in progress return.
type Descriptor struct {
	file *os.File
	conn syscall.RawConn
	fd   int
}

// NewDescriptor takes over fd, which blocks; fd is closed where it fails.
func NewDescriptor(fd int, name string) (*Descriptor, error) {
	d := &Descriptor{fd: fd, file: os.NewFile(uintptr(fd), name)} // of a descriptor that blocks: not for the poller
	err := unix.SetNonblock(fd, true)
	if err == nil {
		d.conn, err = d.file.SyscallConn()
	}
	if err != nil {
		d.file.Close()
		return nil, fmt.Errorf("make it non-blocking: %w", err)
	}
	return d, nil
}

// FD is readable while frames wait. It is invalid after Close.
func (d *Descriptor) FD() int { return d.fd }

// Use calls f with the descriptor. It allocates nothing; the error is os.ErrClosed.
func (d *Descriptor) Use(f func(fd uintptr)) error {
	if d.conn.Control(f) != nil {
		return os.ErrClosed
	}
	return nil
}

// Control calls f with the descriptor and returns its error, or os.ErrClosed.
func (d *Descriptor) Control(f func(fd int) error) error {
	var inner error
	if err := d.Use(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// Close closes the file.
func (d *Descriptor) Close() error { return d.file.Close() }
