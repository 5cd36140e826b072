// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// IPLink is an IP link: one interface, of a device's port in a partition.
type IPLink struct {
	Name    string   `json:"name" order:"1"` // ibX_Y_Z
	Device  string   `json:"device" order:"2"`
	Port    int      `json:"port"`
	PKey    string   `json:"pkey" order:"3"`
	Backend string   `json:"backend"` // tun or netstack
	Type    int      `json:"type"`    // ARPHRD_INFINIBAND
	Flags   []string `json:"flags" order:"value"`
	State   string   `json:"state"`
	Carrier bool     `json:"carrier"`
	Reason  string   `json:"reason"` // of having no carrier
	// Pending marks a link that was requested, and is not there: the port is not in its partition.
	Pending  bool   `json:"pending"`
	Problem  string `json:"problem"` // what could not be set up of the interface
	MTU      int    `json:"mtu"`
	QueueLen int    `json:"tx_queue_len"`
	// Address and Broadcast are hardware addresses.
	// Mode is datagram or connected; datagrams are of DatagramMTU at most in both.
	Mode        string   `json:"mode"`
	DatagramMTU int      `json:"datagram_mtu"`
	Connections int      `json:"connections"`
	Address     string   `json:"address"`
	AddrLen     int      `json:"addr_len"`
	Broadcast   string   `json:"broadcast"`
	MGID        string   `json:"broadcast_mgid"`
	MLID        uint16   `json:"broadcast_mlid"`
	Joined      bool     `json:"joined"`
	QKey        uint32   `json:"qkey"`
	QPN         uint32   `json:"qpn"`
	Addrs       []string `json:"addresses" order:"value"` // IP, with prefix length
	Session     uint32   `json:"session"`
	Lane        int      `json:"lane"`
	// Kept is whether the link is there after the node starts again, NotKept why not.
	Kept    bool   `json:"kept"`
	NotKept string `json:"not_kept"`
}

// IPRequest requests links, one in each of several partitions.
type IPRequest struct {
	Device string `json:"device"` // empty: every InfiniBand device, also later ones
	// PKeys are the partitions; none: every one that has a broadcast group.
	PKeys   []string `json:"pkeys"`
	Backend string   `json:"backend"` // tun, or netstack
	// Addrs are IP addresses with prefix length, Routes PREFIX or PREFIX=GATEWAY, for a link
	// of one partition.
	Addrs  []string `json:"addresses"`
	Routes []string `json:"routes"`
	// Params are name=value; they win over the node's own.
	Params []string `json:"params"`
	// Forwards and SOCKS are of netstack.
	Forwards []IPForward `json:"forwards"`
	SOCKS    string      `json:"socks"` // address to listen at on this host
}

// Kept reports whether the node has the links again after a restart: others end with their command.
func (r *IPRequest) Kept() bool { return r.Backend == BackendTUN }

// Key identifies a request: its device and its partitions.
func (r *IPRequest) Key() string {
	var keys []string
	for _, k := range r.PKeys {
		keys = append(keys, fullKey(k))
	}
	slices.Sort(keys)
	return r.Device + "/" + strings.Join(keys, ",")
}

// PKey is the partition of a request for one, as a full member has it; empty for others.
func (r *IPRequest) PKey() string {
	if len(r.PKeys) != 1 {
		return ""
	}
	return fullKey(r.PKeys[0])
}

// fullKey is a P_Key with the membership bit, or the text itself where that is no P_Key.
func fullKey(s string) string {
	v, err := strconv.ParseUint(s, 0, 16)
	if err != nil {
		return s
	}
	return fmt.Sprintf("0x%04x", v|0x8000)
}

// IPLinkDelete names requests for links: by a link, or by a device or "all", of which PKeys narrows them.
type IPLinkDelete struct {
	Name  string   `param:"name"`
	PKeys []string `param:"pkey"`
}

// Back ends of IP links.
const (
	BackendTUN      = "tun"
	BackendNetstack = "netstack"
)

// IPForward passes connections or datagrams on, through a link's own IP stack.
type IPForward struct {
	Network string `json:"network"` // tcp or udp
	Listen  string `json:"listen"`
	To      string `json:"to"`
	// Remote listens on the link and goes on to this host; else it is the
	// other way round.
	Remote bool `json:"remote"`
}

// Validate reports all that is wrong with the request.
func (r *IPRequest) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, k := range r.PKeys {
		if v, err := strconv.ParseUint(k, 0, 16); err != nil || v&0x7fff == 0 {
			bad("a P_Key is a number of 0x0001 to 0x7fff, with or without the bit 0x8000, not %q", k)
		}
	}
	if r.Backend != BackendTUN && r.Backend != BackendNetstack {
		bad("the back end must be %s or %s, not %q", BackendTUN, BackendNetstack, r.Backend)
	}
	for _, a := range r.Addrs {
		if _, err := netip.ParsePrefix(a); err != nil {
			bad("an address has a prefix length, such as 10.1.0.1/24, unlike %q", a)
		}
	}
	for _, v := range r.Routes {
		to, via, ok := strings.Cut(v, "=")
		_, err := netip.ParsePrefix(to)
		if ok && err == nil {
			_, err = netip.ParseAddr(via)
		}
		if err != nil || !ok && r.Backend == BackendNetstack {
			bad("a route is PREFIX=GATEWAY, or PREFIX where the back end is %s, not %q", BackendTUN, v)
		}
	}
	if len(r.Addrs)+len(r.Routes) > 0 && (r.Device == "" || len(r.PKeys) > 1) {
		bad("addresses and routes are for one link: name its device, and one P_Key at most")
	}
	if r.Backend != BackendNetstack && (len(r.Forwards) > 0 || r.SOCKS != "") {
		bad("forwards and SOCKS are for the back end %s", BackendNetstack)
	}
	for _, f := range r.Forwards {
		if f.Network != "tcp" && f.Network != "udp" {
			bad("a forward is of tcp or udp, not %q", f.Network)
		}
		for _, a := range []string{f.Listen, f.To} {
			if _, err := netip.ParseAddrPort(a); err != nil {
				bad("a forward goes from ADDRESS:PORT to ADDRESS:PORT, not %q", a)
			}
		}
	}
	if _, err := netip.ParseAddrPort(r.SOCKS); r.SOCKS != "" && err != nil {
		bad("SOCKS listens at ADDRESS:PORT, not %q", r.SOCKS)
	}
	return errors.Join(errs...)
}

// IPNeighbour is an IP address of a link with what is known of it.
type IPNeighbour struct {
	Link      string        `json:"link" order:"1"`
	Addr      string        `json:"address" order:"2"`
	HWAddr    string        `json:"hw_address"` // empty: not known
	State     string        `json:"state"`
	Queued    int           `json:"queued"` // packets that wait
	Probes    int           `json:"probes"`
	ExpiresNS time.Duration `json:"expires_ns"` // until the state ends; 0: not by itself
	Router    bool          `json:"router"`
	Mode      string        `json:"mode"` // how packets go there: datagram, connected or connecting; empty: not known
}

// IPShadow is a hardware address with its address vector.
type IPShadow struct {
	Link   string        `json:"link" order:"1"`
	HWAddr string        `json:"hw_address" order:"2"`
	State  string        `json:"state"`
	Addrs  []string      `json:"addresses" order:"value"` // IP addresses that are at it
	DLID   uint16        `json:"dlid"`
	SL     int           `json:"sl"`
	MTU    int           `json:"mtu"`
	Gbps   float64       `json:"gbps"`
	GRH    bool          `json:"grh"`
	Queued int           `json:"queued"`
	IdleNS time.Duration `json:"idle_ns"`
	Mode   string        `json:"mode"` // as of a neighbour
}

// IPPath is a path that a link keeps.
type IPPath struct {
	Link  string  `json:"link" order:"1"`
	DGID  string  `json:"dgid" order:"2"`
	State string  `json:"state"`
	DLID  uint16  `json:"dlid"`
	SL    int     `json:"sl"`
	MTU   int     `json:"mtu"`
	Gbps  float64 `json:"gbps"`
	Users int     `json:"users"`
}

// IPGroup is a multicast group of a link.
type IPGroup struct {
	Link     string   `json:"link" order:"1"`
	MGID     string   `json:"mgid" order:"2"`
	MLID     uint16   `json:"mlid"`
	Addrs    []string `json:"addresses" order:"value"` // the IP groups that share it
	State    string   `json:"state"`
	SendOnly bool     `json:"send_only"`
	Attached bool     `json:"attached"`
	Queued   int      `json:"queued"`
	Reason   string   `json:"reason"` // why it is not joined
}

// IPParam is a parameter of a link.
type IPParam struct {
	Link  string `json:"link" order:"1"`
	Name  string `json:"name" order:"2"`
	Value string `json:"value"`
	Help  string `json:"help"`
}

// IPEvent is something that happened to a link.
type IPEvent struct {
	Number uint64    `json:"number" order:"1"`
	At     time.Time `json:"at"`
	Link   string    `json:"link"`
	Kind   string    `json:"kind"`
	Text   string    `json:"text"`
}

// IPPathQuery requests the path to an IP address.
type IPPathQuery struct {
	Addr string `json:"address"`
	Link string `json:"link"` // empty: the link with the prefix of the address
	// NonBlocking makes the answer EAGAIN while the path is not known.
	NonBlocking bool          `json:"non_blocking"`
	TimeoutNS   time.Duration `json:"timeout_ns"`
}

// IPPathInfo is the path to the node that has an IP address, or why there is none.
type IPPathInfo struct {
	Link string `json:"link"`
	Addr string `json:"address"`
	// Errno is 0, 6 (ENXIO), 11 (EAGAIN), 22 (EINVAL) or 100 (ENETDOWN), Error its
	// meaning; what follows is set where it is 0.
	Errno     int           `json:"errno"`
	Error     string        `json:"error"`
	DGID      string        `json:"dgid"`
	SGID      string        `json:"sgid"`
	DLID      uint16        `json:"dlid"`
	SLID      uint16        `json:"slid"`
	PKey      string        `json:"pkey"`
	SL        int           `json:"sl"`
	MTU       int           `json:"mtu"`
	Gbps      float64       `json:"gbps"`
	LifeNS    time.Duration `json:"packet_lifetime_ns"`
	FlowLabel uint32        `json:"flow_label"`
	HopLimit  int           `json:"hop_limit"`
	TClass    int           `json:"traffic_class"`
	// Image is the 72-octet record of SIOCGIPOIBPATH (docs/notes/ipoib.md).
	Image []byte `json:"image"`
}

// IPAction is something to do to a link: Op with what it is about.
type IPAction struct {
	Op     string `json:"op"`
	Addr   string `json:"address"`
	HWAddr string `json:"hw_address"`
	Mask   uint   `json:"mask"`
	Mode   string `json:"mode"`
}

// Operations of IPAction.
const (
	IPFlushNeighbours = "neigh_flush"
	IPProbe           = "neigh_probe" // Addr
	IPAddNeighbour    = "neigh_add"   // Addr, HWAddr
	IPFlushPaths      = "path_flush"
	IPPurgeShadow     = "shadow_purge" // HWAddr
	IPJoin            = "mcast_join"   // Addr
	IPLeave           = "mcast_leave"  // Addr
	IPDebug           = "debug"        // Mask
	IPMode            = "mode"         // Mode; the link begins anew
)
