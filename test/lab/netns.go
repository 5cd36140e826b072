// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// NetNS is a network namespace that this process made.
type NetNS struct {
	Name string
	V4   string // address of its eth0, without length
	V6   string
}

var made atomic.Int32

// MayMakeNetNS returns why this process cannot make namespaces, "" where it can.
func MayMakeNetNS() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return errors.New("network namespaces need ip(8) of the package iproute2")
	}
	n, err := newNetNS()
	if err != nil {
		return err
	}
	return n.Close()
}

func newNetNS() (*NetNS, error) {
	n := &NetNS{Name: fmt.Sprintf("weft-e2e-%d-%d", os.Getpid(), made.Add(1))}
	if err := ip("netns", "add", n.Name); err != nil {
		return nil, err
	}
	if err := ip("-n", n.Name, "link", "set", "lo", "up"); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Close removes the namespace and the interfaces in it.
func (n *NetNS) Close() error { return ip("netns", "del", n.Name) }

// ip runs ip(8).
func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// addresses brings eth0 of the namespace up with the host's address i of each
// family.
func (n *NetNS) addresses(subnet, host int) error {
	n.V4 = fmt.Sprintf("10.%d.0.%d", subnet, host)
	n.V6 = fmt.Sprintf("fd77:%d::%d", subnet, host)
	return errors.Join(
		ip("-n", n.Name, "addr", "add", n.V4+"/24", "dev", "eth0"),
		ip("-n", n.Name, "-6", "addr", "add", n.V6+"/64", "dev", "eth0", "nodad"),
		ip("-n", n.Name, "link", "set", "eth0", "up"))
}

// Joined makes two namespaces; their eth0 are the ends of one cable.
func Joined(mtu int) (a, b *NetNS, err error) {
	if a, err = newNetNS(); err != nil {
		return nil, nil, err
	}
	if b, err = newNetNS(); err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	m := strconv.Itoa(mtu)
	err = ip("-n", a.Name, "link", "add", "eth0", "mtu", m, "type", "veth", "peer", "name", "eth0", "mtu", m, "netns",
		b.Name)
	for i, n := range []*NetNS{a, b} {
		// Without the tentative state that duplicate address detection brings, link-local addresses can be used at
		// once.
		if err == nil {
			_, err = Run(Cmd{NetNS: n.Name, Args: []string{"sh", "-c",
				"echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad"}}, limitQuick)
		}
		if err == nil {
			err = n.addresses(77, i+1)
		}
	}
	for _, n := range []*NetNS{a, b} {
		if err == nil {
			err = n.ready()
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, a.Close(), b.Close())
	}
	return a, b, nil
}

// ready waits until the kernel has noted that eth0 has a cable, which may be a
// second after it was plugged in: until then IPv6 has no route for groups.
func (n *NetNS) ready() error {
	shows := func(want string, args ...string) (bool, error) {
		out, err := exec.Command("ip", append([]string{"-n", n.Name}, args...)...).CombinedOutput()
		return strings.Contains(string(out), want), err
	}
	return Until("eth0 of "+n.Name+" is up", limitQuick, func() (bool, error) {
		up, err := shows("state UP", "link", "show", "eth0")
		groups, err2 := shows("ff00::/8", "-6", "route", "show", "table", "local", "type", "multicast", "dev", "eth0")
		return up && groups, errors.Join(err, err2)
	})
}

// WithTap makes a namespace with a TAP named eth0 for a guest, and returns the
// addresses for the guest.
func WithTap(mtu int) (n *NetNS, guestV4, guestV6 string, err error) {
	if n, err = newNetNS(); err != nil {
		return nil, "", "", err
	}
	err = errors.Join(
		ip("-n", n.Name, "tuntap", "add", "eth0", "mode", "tap"),
		ip("-n", n.Name, "link", "set", "eth0", "mtu", strconv.Itoa(mtu)))
	if err == nil {
		err = n.addresses(78, 1)
	}
	if err != nil {
		return nil, "", "", errors.Join(err, n.Close())
	}
	return n, "10.78.0.2", "fd77:78::2", nil
}

// Stale returns the names of namespaces that earlier runs, now gone, left.
func Stale() []string {
	names, _ := filepath.Glob("/run/netns/weft-e2e-*")
	var stale []string
	for _, n := range names {
		n = filepath.Base(n)
		pid, _, _ := strings.Cut(strings.TrimPrefix(n, "weft-e2e-"), "-")
		if _, err := os.Stat("/proc/" + pid); err != nil {
			stale = append(stale, n)
		}
	}
	return stale
}

// RemoveStale removes what Stale returns. Tests of several packages may do so at the same time: a namespace that is
// gone by then is removed.
func RemoveStale() error {
	var err error
	for _, n := range Stale() {
		if e := ip("netns", "del", n); e != nil && slices.Contains(Stale(), n) {
			err = errors.Join(err, e)
		}
	}
	return err
}
