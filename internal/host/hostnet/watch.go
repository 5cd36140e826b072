// SPDX-License-Identifier: Apache-2.0

// Package hostnet reads the host's addresses as a GID table.
//
// What comes in: interfaces and addresses, from rtnetlink. What goes out: a Table of GIDs with the node's GUID, once
// (Read) and after every change (Watch). Package node calls it and passes the tables to the adapter and to package
// roce. It must never change anything on the host.
package hostnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
)

// settle is how long the network must be quiet before the tables are read again: changes come in bursts (an interface,
// its addresses, the end of duplicate address detection).
const settle = 50 * time.Millisecond

// Read returns the addresses of the calling thread's network namespace as a table. Where prev is not nil, its entries
// keep their index.
func Read(prev *Table, c Choice) (*Table, error) {
	links, err := readLinks()
	if err != nil {
		return nil, err
	}
	return build(prev, links, c, hostSeed()), nil
}

// Watch calls fn with a new table whenever t, and later its successor, no longer describes the host. It returns the
// error of ctx when that ends, or that of the kernel. fn is called on the caller's goroutine.
func Watch(ctx context.Context, t *Table, c Choice, fn func(*Table)) error {
	m, err := ifdev.NewMonitor(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("watch network: %w", err)
	}
	defer m.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err = m.Run(ctx, ifdev.Pace{Settle: settle}, func() {
		n, err := Read(t, c)
		if err != nil {
			stop(err)
			return
		}
		if !n.Equal(t) {
			t = n
			fn(n)
		}
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("watch network: %w", err)
}

// unusable are the flags of an address that cannot be a source address yet, or never.
const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED

func readLinks() ([]link, error) {
	var found []netlink.Link
	var addrs []netlink.Addr
	err := ifdev.Dump(func() (err error) {
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
	ports := map[int]bool{} // by the index of what they are ports of
	for _, l := range found {
		ports[l.Attrs().MasterIndex] = true
	}
	var links []link
	for _, l := range found {
		at := l.Attrs()
		if at.Flags&net.FlagUp == 0 {
			continue
		}
		links = append(links, link{name: at.Name, index: at.Index, mtu: at.MTU, mac: at.HardwareAddr,
			loopback: at.Flags&net.FlagLoopback != 0, running: at.RawFlags&unix.IFF_RUNNING != 0,
			empty: l.Type() == "bridge" && !ports[at.Index], own: at.Alias == ifdev.Alias,
			fabric: at.EncapType == "infiniband" || at.Alias == ifdev.Alias, addrs: byIndex[at.Index]})
	}
	return links, nil
}

// hostSeed identifies this host where no MAC does.
func hostSeed() string {
	for _, f := range []string{"/etc/machine-id", "/proc/sys/kernel/random/boot_id"} {
		if b, err := os.ReadFile(f); err == nil && len(strings.TrimSpace(string(b))) > 0 {
			return strings.TrimSpace(string(b))
		}
	}
	name, _ := os.Hostname()
	return name
}
