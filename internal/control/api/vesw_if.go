// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"strings"
)

// VESWInterface is a port of a virtual Ethernet switch with its interface.
type VESWInterface struct {
	Name    string `json:"name"` // of the interface; empty: there is none
	Device  string `json:"device" order:"1"`
	VPort   int    `json:"vport" order:"2"`
	VESW    int    `json:"vesw"`    // identifier; 0: in none
	Backend string `json:"backend"` // tap, netstack, gateway or vm
	// State is forwarding, or drop_all for Reason.
	State   string `json:"state"`
	Reason  string `json:"reason"`
	Config  string `json:"config"` // the state that the Ethernet Manager set: initial, drop_all, forwarding
	Carrier bool   `json:"carrier"`
	MAC     string `json:"mac"`
	BaseMAC string `json:"base_mac"` // that the Ethernet Manager gave it
	MTU     int    `json:"mtu"`
	MaxMTU  int    `json:"max_mtu"`
	PKey    string `json:"pkey"`
	LID     int    `json:"lid"`  // frames are sent from it
	MLID    string `json:"mlid"` // to which frames to groups go
	// MACs is how many MACs the interface takes besides its own, Known how many the Ethernet Manager reported.
	MACs  int `json:"macs"`
	Known int `json:"known_macs"`
	// Asked reports that AttachVESW chose the interface; Kept that the choice survives a restart of the node, and if
	// not NotKept why not.
	Asked   bool   `json:"asked"`
	Kept    bool   `json:"kept"`
	NotKept string `json:"not_kept"`
	// Failed is why there is no interface, Problem what could not be set up of it.
	Failed  string `json:"failed"`
	Problem string `json:"problem"`
}

// Back ends of VESW ports.
const (
	BackendTAP     = "tap"
	BackendGateway = "gateway" // to the network at an interface of the host
	BackendVM      = "vm"      // the guest of weft vm
	BackendDevice  = "device"  // a device with an Ethernet port there
	// StateForwarding is the State of a port that carries frames.
	StateForwarding = "forwarding"
)

// VESWRequest chooses what a port of this node in a virtual Ethernet switch is for, where it
// is not a TAP device with the name of its device and port.
type VESWRequest struct {
	Device  string `json:"device"`
	VESW    int    `json:"vesw"`    // identifier
	Backend string `json:"backend"` // tap, netstack or gateway
	// Name is that of the interface; empty: its own. A gateway's is there already.
	Name string `json:"name"`
	// Addrs are IP addresses with prefix length, Routes PREFIX=GATEWAY; they, Forwards and SOCKS are of netstack.
	Addrs    []string    `json:"addresses"`
	Routes   []string    `json:"routes"`
	Forwards []IPForward `json:"forwards"`
	SOCKS    string      `json:"socks"` // address to listen at on this host
}

// Validate reports all that is wrong with the request.
func (r *VESWRequest) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if r.Device == "" {
		bad("it needs a device")
	}
	if r.VESW < 1 || r.VESW > 4095 {
		bad("the identifier of a virtual Ethernet switch is 1 to 4095, not %d", r.VESW)
	}
	if r.Name != "" && (len(r.Name) > 15 || r.Name == "." || r.Name == ".." ||
		strings.ContainsAny(r.Name, "/:% \t\n")) {
		bad("the name of an interface has at most 15 characters, none of them /, :, %% or space, unlike %q", r.Name)
	}
	switch r.Backend {
	case BackendTAP, BackendGateway:
		if r.Backend == BackendGateway && r.Name == "" {
			bad("a gateway needs an interface")
		}
		if len(r.Addrs)+len(r.Routes)+len(r.Forwards) > 0 || r.SOCKS != "" {
			bad("addresses, routes, forwards and SOCKS are for the back end %s", BackendNetstack)
		}
	case BackendNetstack:
		ip := IPRequest{Device: r.Device, Backend: r.Backend, Addrs: r.Addrs, Routes: r.Routes, Forwards: r.Forwards,
			SOCKS: r.SOCKS}
		if err := ip.Validate(); err != nil {
			errs = append(errs, err)
		}
		if len(r.Addrs) == 0 {
			bad("an IP stack of its own needs an address")
		}
	default:
		bad("the back end must be %s, %s or %s, not %q", BackendTAP, BackendNetstack, BackendGateway, r.Backend)
	}
	return errors.Join(errs...)
}

// Kept reports whether the node keeps the request when it starts again: a stack belongs to its command, which requests
// it again.
func (r *VESWRequest) Kept() bool { return r.Backend != BackendNetstack }

// Key names the request among those of a node.
func (r *VESWRequest) Key() string { return fmt.Sprintf("%s:%d", r.Device, r.VESW) }
