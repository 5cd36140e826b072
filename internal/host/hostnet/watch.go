// SPDX-License-Identifier: Apache-2.0

// Package hostnet knows the network of the host the node runs on.
//
// What comes in: interfaces and addresses, from rtnetlink; what goes out: a
// Table of GIDs, the node's GUID and its path MTU, once (Read) and after every
// change (Watch). Package node calls it and hands the tables to the adapter
// and to package roce. It must never change anything on the host.
package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// settle is how long the network must be quiet before the tables are read
// again: changes come in bursts (an interface, its addresses, the end of
// duplicate address detection).
const settle = 50 * time.Millisecond

// Read returns the addresses of this host (of the calling thread's network
// namespace) as a table. Where prev is not nil, what is in it keeps its index.
func Read(prev *Table) (*Table, error) {
	links, err := readLinks()
	if err != nil {
		return nil, err
	}
	return build(prev, links, hostSeed()), nil
}

// Watch calls fn with a new table whenever t, and later its successor, no
// longer describes the host. It returns the error of ctx when that ends, or
// that of the kernel. fn is called on the caller's goroutine.
func Watch(ctx context.Context, t *Table, fn func(*Table)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("watch network: %w", err)
	}
	f := os.NewFile(uintptr(fd), "rtnetlink")
	defer f.Close()
	groups := &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
		Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR}
	if err := unix.Bind(fd, groups); err != nil {
		return fmt.Errorf("watch network: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	// What changed before the socket was bound is found by a first read. After
	// it, what a message says does not matter: there was one.
	changed := true
	buf := make([]byte, 64<<10)
	for {
		var deadline time.Time
		if changed {
			deadline = time.Now().Add(settle)
		}
		if err := f.SetReadDeadline(deadline); err != nil {
			return fmt.Errorf("watch network: %w", err)
		}
		// The end of ctx sets a deadline too, which the line above may just
		// have overwritten; then ctx has ended by now.
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := f.Read(buf)
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS): // the kernel had more to say than fits
			changed = true
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("watch network: %w", err)
		case changed && ctx.Err() == nil:
			changed = false
			n, err := Read(t)
			if err != nil {
				return err
			}
			if !n.Equal(t) {
				t = n
				fn(n)
			}
		}
	}
}

// unusable are the flags of an address that cannot be a source yet, or never.
const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED

func readLinks() ([]link, error) {
	var found []netlink.Link
	var addrs []netlink.Addr
	err := dump(func() (err error) {
		if found, err = netlink.LinkList(); err != nil {
			return fmt.Errorf("list network interfaces: %w", err)
		}
		if addrs, err = netlink.AddrList(nil, netlink.FAMILY_ALL); err != nil {
			return fmt.Errorf("list network addresses: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	byIndex := map[int][]netip.Addr{}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ok && a.Flags&unusable == 0 {
			byIndex[a.LinkIndex] = append(byIndex[a.LinkIndex], ip.Unmap())
		}
	}
	var links []link
	for _, l := range found {
		at := l.Attrs()
		if at.Flags&net.FlagUp == 0 {
			continue
		}
		links = append(links, link{name: at.Name, index: at.Index, mtu: at.MTU, mac: at.HardwareAddr,
			loopback: at.Flags&net.FlagLoopback != 0, running: at.RawFlags&unix.IFF_RUNNING != 0, addrs: byIndex[at.Index]})
	}
	return links, nil
}

// dump retries a dump that a change interrupted.
func dump(f func() error) (err error) {
	for range 10 {
		if err = f(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

// hostSeed is what distinguishes this host from others where no MAC does.
func hostSeed() string {
	for _, f := range []string{"/etc/machine-id", "/proc/sys/kernel/random/boot_id"} {
		if b, err := os.ReadFile(f); err == nil && len(strings.TrimSpace(string(b))) > 0 {
			return strings.TrimSpace(string(b))
		}
	}
	name, _ := os.Hostname()
	return name
}
