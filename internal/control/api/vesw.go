// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// VESWs is the part of a Backend about virtual Ethernet switches as their manager sees them
// (docs/notes/vesw.md). What is wanted is kept in the store that the subnet's master was elected in; only the master knows what became of it.
type VESWs interface {
	VESWs(ctx context.Context) ([]VESW, error)
	// VESW finds one by name, or by identifier.
	VESW(ctx context.Context, name string) (VESW, error)
	CreateVESW(ctx context.Context, c VESWCreate) (VESW, error)
	ChangeVESW(ctx context.Context, name string, c VESWChange) (VESW, error)
	DeleteVESW(ctx context.Context, name string) error
	// AddVESWPort makes a port a member, or changes whether it is a gateway.
	AddVESWPort(ctx context.Context, name string, p VESWPortAdd) (VESW, error)
	// DelVESWPort takes a port out; vport < 0 is whichever it has there.
	DelVESWPort(ctx context.Context, name, port string, vport int) error
}

// VESW is a virtual Ethernet switch: what is wanted of it, and, from the master, what became of that.
type VESW struct {
	Name string `json:"name"`
	ID   int    `json:"id"`
	PKey string `json:"pkey"`
	// OwnPartition tells that the partition is the switch's alone: its members are those of the switch.
	OwnPartition bool   `json:"own_partition"`
	FabricID     int    `json:"fabric_id"`
	MTU          int    `json:"mtu"`        // of what follows the Ethernet header, as it is wanted
	ActiveMTU    int    `json:"active_mtu"` // as it is; 0: not known
	MLID         string `json:"mlid"`       // of the multicast group, as 16B packets have it; empty: none, or not known
	Flood        bool   `json:"flood"`
	UserMACs     bool   `json:"user_macs"` // members may have MACs of their own
	MaxMACs      int    `json:"max_macs"`  // of a member
	SL           int    `json:"sl"`
	PCP          []int  `json:"pcp"` // service level of tagged frames by priority; empty: SL
	// State is up, degraded (Problems say why), configuring, or unknown: this node's manager is not the master.
	State    string        `json:"state"`
	MACs     int           `json:"macs"` // in its tables
	Ports    []VESWPort    `json:"ports"`
	Problems []VESWProblem `json:"problems"`
}

// States of a VESW.
const (
	VESWUp          = "up"
	VESWDegraded    = "degraded"
	VESWConfiguring = "configuring"
	VESWUnknown     = "unknown"
)

// VESWPort is a member of a VESW.
type VESWPort struct {
	GUID    string `json:"guid"`
	VPort   int    `json:"vport"`
	Number  int    `json:"number"` // within the VESW
	Gateway bool   `json:"gateway"`
	// What follows is known to the master only.
	Name    string   `json:"name"` // of the port's node; empty: not in the subnet
	LID     int      `json:"lid"`
	Agent   string   `json:"agent"` // asked, present, none, silent; empty: not in the subnet
	BaseMAC string   `json:"base_mac"`
	State   string   `json:"state"` // absent, waiting, configuring, dropping, down, forwarding
	Default bool     `json:"default"`
	MACs    []string `json:"macs"` // of its own
	Groups  []string `json:"groups"`
}

// VESWProblem is what keeps a VESW from working as it is wanted.
type VESWProblem struct {
	Port string `json:"port"` // GUID; empty: the VESW itself
	What string `json:"what"`
	Fix  string `json:"fix"`
}

// VESWCreate is a VESW that shall be. What is zero is chosen.
type VESWCreate struct {
	Name       string `json:"name"`
	ID         int    `json:"id"`
	PKey       string `json:"pkey"` // empty: a partition of its own
	MTU        int    `json:"mtu"`
	Flood      bool   `json:"flood"`
	NoUserMACs bool   `json:"no_user_macs"`
	MaxMACs    int    `json:"max_macs"`
	SL         int    `json:"sl"`
	PCP        []int  `json:"pcp"` // eight, or none
	// FabricID and ByteIDs are of all VESWs: the fabric's number in MACs, and that identifiers differ in their low eight bits. Nil stays.
	FabricID *int  `json:"fabric_id,omitempty"`
	ByteIDs  *bool `json:"byte_ids,omitempty"`
}

// VESWChange is what shall be different of a VESW; what is nil stays.
type VESWChange struct {
	PKey     *string `json:"pkey,omitempty"` // empty: a partition of its own
	MTU      *int    `json:"mtu,omitempty"`  // 0: the usual one
	Flood    *bool   `json:"flood,omitempty"`
	UserMACs *bool   `json:"user_macs,omitempty"`
	MaxMACs  *int    `json:"max_macs,omitempty"` // 0: the usual number
	SL       *int    `json:"sl,omitempty"`
}

// Validate reports whether anything shall be different.
func (c *VESWChange) Validate() error {
	if *c == (VESWChange{}) {
		return errors.New("nothing is to be changed")
	}
	return nil
}

// VESWPortAdd is a port that shall be a member.
type VESWPortAdd struct {
	Port    string `json:"port"`  // named as members of partitions are
	VPort   *int   `json:"vport"` // nil: the lowest that is free
	Gateway bool   `json:"gateway"`
}

// What requests about VESWs are called in errors, at both ends.
const (
	whatVESWs      = "cannot list virtual Ethernet switches"
	whatVESW       = "cannot show the virtual Ethernet switch"
	whatVESWCreate = "cannot create the virtual Ethernet switch"
	whatVESWChange = "cannot change the virtual Ethernet switch"
	whatVESWDelete = "cannot delete the virtual Ethernet switch"
	whatVESWAdd    = "cannot add the port to the virtual Ethernet switch"
	whatVESWDel    = "cannot take the port out of the virtual Ethernet switch"
)

// serveVESWs adds what VESWs has to the server's paths.
func serveVESWs(mux *http.ServeMux, b VESWs) {
	handle := func(method, path, what string, a Access, f func(r *http.Request) (any, error)) {
		mux.Handle(method+" /"+Version+path, handler{what, a, f})
	}
	handle("GET", "/vesws", whatVESWs, ReadAccess, func(r *http.Request) (any, error) {
		l, err := b.VESWs(r.Context())
		return each(l, VESW.withLists), err
	})
	handle("GET", "/vesws/{name}", whatVESW, ReadAccess, func(r *http.Request) (any, error) {
		v, err := b.VESW(r.Context(), r.PathValue("name"))
		return v.withLists(), err
	})
	handle("POST", "/vesws", whatVESWCreate, FullAccess, body(func(ctx context.Context, c VESWCreate) (any, error) {
		v, err := b.CreateVESW(ctx, c)
		return v.withLists(), err
	}))
	handle("PATCH", "/vesws/{name}", whatVESWChange, FullAccess, func(r *http.Request) (any, error) {
		return body(func(ctx context.Context, c VESWChange) (any, error) {
			if err := c.Validate(); err != nil {
				return nil, &Error{Code: CodeInvalid, Why: err.Error(), Fix: "weft vesw set --help"}
			}
			v, err := b.ChangeVESW(ctx, r.PathValue("name"), c)
			return v.withLists(), err
		})(r)
	})
	handle("DELETE", "/vesws/{name}", whatVESWDelete, FullAccess, func(r *http.Request) (any, error) {
		return struct{}{}, b.DeleteVESW(r.Context(), r.PathValue("name"))
	})
	handle("POST", "/vesws/{name}/ports", whatVESWAdd, FullAccess, func(r *http.Request) (any, error) {
		return body(func(ctx context.Context, p VESWPortAdd) (any, error) {
			v, err := b.AddVESWPort(ctx, r.PathValue("name"), p)
			return v.withLists(), err
		})(r)
	})
	handle("DELETE", "/vesws/{name}/ports/{port}", whatVESWDel, FullAccess, func(r *http.Request) (any, error) {
		vport := -1
		if s := r.URL.Query().Get("vport"); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 0 {
				return nil, &Error{Code: CodeInvalid, Why: fmt.Sprintf("a vport is a number, not %q", s), Fix: "weft vesw show"}
			}
			vport = n
		}
		return struct{}{}, b.DelVESWPort(r.Context(), r.PathValue("name"), r.PathValue("port"), vport)
	})
}

func (v VESW) withLists() VESW {
	v.PCP, v.Ports, v.Problems = list(v.PCP), list(v.Ports), list(v.Problems)
	for i := range v.Ports {
		p := &v.Ports[i]
		p.MACs, p.Groups = list(p.MACs), list(p.Groups)
	}
	return v
}

func veswPath(name string) string { return "/vesws/" + url.PathEscape(name) }

// VESWs returns the virtual Ethernet switches.
func (c *Client) VESWs(ctx context.Context) (l []VESW, err error) {
	err = c.do(ctx, whatVESWs, "GET", "/vesws", nil, &l)
	return l, err
}

// VESW returns one, by name or identifier.
func (c *Client) VESW(ctx context.Context, name string) (v VESW, err error) {
	err = c.do(ctx, whatVESW, "GET", veswPath(name), nil, &v)
	return v, err
}

// CreateVESW makes one.
func (c *Client) CreateVESW(ctx context.Context, w VESWCreate) (v VESW, err error) {
	err = c.do(ctx, whatVESWCreate, "POST", "/vesws", w, &v)
	return v, err
}

// ChangeVESW changes one.
func (c *Client) ChangeVESW(ctx context.Context, name string, w VESWChange) (v VESW, err error) {
	err = c.do(ctx, whatVESWChange, "PATCH", veswPath(name), w, &v)
	return v, err
}

// DeleteVESW deletes one.
func (c *Client) DeleteVESW(ctx context.Context, name string) error {
	return c.do(ctx, whatVESWDelete, "DELETE", veswPath(name), nil, nil)
}

// AddVESWPort makes a port a member of one.
func (c *Client) AddVESWPort(ctx context.Context, name string, p VESWPortAdd) (v VESW, err error) {
	err = c.do(ctx, whatVESWAdd, "POST", veswPath(name)+"/ports", p, &v)
	return v, err
}

// DelVESWPort takes a port out of one; vport < 0 is whichever it has there.
func (c *Client) DelVESWPort(ctx context.Context, name, port string, vport int) error {
	path := veswPath(name) + "/ports/" + url.PathEscape(port)
	if vport >= 0 {
		path += "?vport=" + strconv.Itoa(vport)
	}
	return c.do(ctx, whatVESWDel, "DELETE", path, nil, nil)
}
