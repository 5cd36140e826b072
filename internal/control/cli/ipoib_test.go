// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"time"

	"weft/internal/control/api"
)

// fakeIPoIB has one link with a carrier, and those that were added, without.
type fakeIPoIB struct {
	mu    sync.Mutex
	added []api.IPLink
	did   []string
}

const fakeHW = "00:00:40:02:fe:80:00:00:00:00:00:00:02:aa:00:00:00:01:00:03"

func (f *fakeIPoIB) IPLinks(context.Context) ([]api.IPLink, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]api.IPLink{{Name: "ib0_1_7fff", Device: "weft_ib0", Port: 1, PKey: "0xffff", Backend: "tun",
		Type: 32, Flags: []string{"BROADCAST", "MULTICAST"},
		State: "UP", Mode: "connected", DatagramMTU: 2044, Connections: 3, Carrier: true,
		Problem: "add address 10.1.0.3/24: no", MTU: 65520, QueueLen: 512, Address: fakeHW, AddrLen: 20,
		Broadcast: "ff:ff:ff:ff:ff:ff:ff:ff:ff:ff:ff:ff:ff:ff:ff:ff:ff:ff:ff:ff",
		MGID:      "ff12:401b:ffff::ffff:ffff", MLID: 0xc000, Joined: true, QKey: 0xb1b, QPN: 16386, Addrs: []string{"10.1.0.1/24",
			"fe80::1/64"}, Session: 3}}, f.added...), nil
}

func (f *fakeIPoIB) AddIPLinks(_ context.Context, r api.IPRequest) ([]api.IPLink, error) {
	if r.Device == "weft0" {
		return nil, &api.Error{Code: api.CodeNotFound, Why: "there is no InfiniBand device weft0", Fix: "weft dev"}
	}
	if r.Device == "" {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l := api.IPLink{Name: "ib0_1_14", Device: r.Device, PKey: r.PKeys[0], Backend: r.Backend, Mode: "datagram",
		State: "JOINING", Addrs: r.Addrs, Reason: "broadcast group: absent", Kept: len(r.Addrs) > 0, NotKept: "the store is memory"}
	f.added = append(f.added, l)
	return []api.IPLink{l}, nil
}

func (f *fakeIPoIB) DelIPLinks(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.added)
	if f.added = slices.DeleteFunc(f.added, func(l api.IPLink) bool {
		return l.Name == name ||
			l.Device == name
	}); len(f.added) == n {
		return &api.Error{Code: api.CodeNotFound, Why: "nobody asked for IP links of " + name, Fix: "weft ipoib"}
	}
	return nil
}

func (f *fakeIPoIB) IPNeighbours(context.Context, string) ([]api.IPNeighbour, error) {
	return []api.IPNeighbour{{Link: "ib0_1_7fff", Addr: "10.1.0.2", HWAddr: fakeHW, State: "REACHABLE",
		Mode: "connected", ExpiresNS: 12340 * time.Millisecond},
		{Link: "ib0_1_7fff", Addr: "fe80::2", State: "INCOMPLETE", Router: true, Probes: 2, Queued: 1}}, nil
}

func (f *fakeIPoIB) IPShadow(context.Context, string) ([]api.IPShadow, error) {
	return []api.IPShadow{{Link: "ib0_1_7fff", HWAddr: fakeHW, State: "RESOLVED", Mode: "connected",
		Addrs: []string{"10.1.0.2", "fe80::2"}, DLID: 4, MTU: 4096, Gbps: 100, IdleNS: time.Second}}, nil
}

func (f *fakeIPoIB) IPPaths(context.Context, string) ([]api.IPPath, error) {
	return []api.IPPath{{Link: "ib0_1_7fff", DGID: "fe80::2aa:0:2:3", State: "valid", DLID: 4, MTU: 4096, Gbps: 100,
		Users: 1}}, nil
}

func (f *fakeIPoIB) IPGroups(context.Context, string) ([]api.IPGroup, error) {
	return []api.IPGroup{{Link: "ib0_1_7fff", MGID: "ff12:401b:ffff::1", MLID: 0xc001, Addrs: []string{"224.0.0.1"},
		State: "joined"},
		{Link: "ib0_1_7fff", MGID: "ff12:401b:ffff::2", State: "absent", SendOnly: true, Reason: "no such group"}}, nil
}

func (f *fakeIPoIB) IPStats(context.Context, string) ([]api.Counter, error) {
	return []api.Counter{{Scope: api.ScopeIPoIB, Instance: "ib0_1_7fff", Name: "rx_packets", Value: 5},
		{Scope: api.ScopeIPoIB, Instance: "ib0_1_7fff", Name: "collisions"}}, nil
}

func (f *fakeIPoIB) IPParams(context.Context, string) ([]api.IPParam, error) {
	return []api.IPParam{{Name: "sq_depth", Value: "512", Help: "send queue depth, in frames"}}, nil
}

func (f *fakeIPoIB) IPEvents(context.Context, uint64, bool) ([]api.IPEvent, error) {
	return []api.IPEvent{{Number: 1, At: time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.Local), Link: "ib0_1_7fff",
		Kind: "down", Text: "port is Down\x1b[0m"}}, nil
}

func (f *fakeIPoIB) IPPath(_ context.Context, q api.IPPathQuery) (api.IPPathInfo, error) {
	switch {
	case q.NonBlocking:
		return api.IPPathInfo{Addr: q.Addr, Errno: int(syscall.EAGAIN), Error: "not known yet: it is being resolved"},
			nil
	case q.Addr == "10.1.0.9":
		return api.IPPathInfo{Addr: q.Addr, Errno: int(syscall.ENXIO), Error: "no node has the address"}, nil
	}
	return api.IPPathInfo{Link: "ib0_1_7fff", Addr: q.Addr, DGID: "fe80::2aa:0:2:3", SGID: "fe80::2aa:0:1:3", DLID: 4,
		SLID: 2, PKey: "0xffff", MTU: 4096, Gbps: 100}, nil
}

func (f *fakeIPoIB) IPDo(_ context.Context, link string, a api.IPAction) error {
	if link != "ib0_1_7fff" {
		return &api.Error{Code: api.CodeNotFound, Why: "there is no IP link " + link, Fix: "weft ipoib"}
	}
	f.did = append(f.did, a.Op)
	return nil
}
