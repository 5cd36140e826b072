// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
)

// What requests about the fabric are called in errors, at both ends.
const (
	whatSubnet       = "cannot show the fabric"
	whatSweep        = "cannot sweep the subnet"
	whatManager      = "cannot show the subnet manager"
	whatSetManager   = "cannot change the subnet manager"
	whatTrunks       = "cannot list trunks"
	whatPartitions   = "cannot list partitions"
	whatAddPartition = "cannot add to the partition"
	whatDelPartition = "cannot delete from the partition"
	whatGroups       = "cannot list multicast groups"
	whatJoin         = "cannot join the multicast group"
	whatLeave        = "cannot leave the multicast group"
	whatStore        = "cannot show the store"
)

// serveFabric adds what Fabric has to the server's paths.
func serveFabric(mux *http.ServeMux, b Fabric) {
	get := func(path, what string, f func(r *http.Request) (any, error)) {
		mux.Handle("GET /"+Version+path, handler{what, ReadAccess, f})
	}
	get("/fabric/subnet", whatSubnet, func(r *http.Request) (any, error) {
		s, err := b.Subnet(r.Context())
		return s.withLists(), err
	})
	get("/fabric/text", whatSubnet, func(r *http.Request) (any, error) {
		format := r.URL.Query().Get("format")
		if !slices.Contains(TextFormats, format) {
			return nil, &Error{Code: CodeInvalid, Why: fmt.Sprintf("there is no format %q", format), Fix: "weft fabric topo -o " + TextFormats[0]}
		}
		return b.SubnetText(r.Context(), format)
	})
	get("/fabric/routes", whatSubnet, func(r *http.Request) (any, error) {
		l, err := b.Routes(r.Context())
		return each(l, SwitchRoutes.withLists), err
	})
	get("/fabric/path", whatSubnet, func(r *http.Request) (any, error) {
		p, err := b.Path(r.Context(), r.URL.Query().Get("from"), r.URL.Query().Get("to"))
		return p.withLists(), err
	})
	get("/fabric/manager", whatManager, func(r *http.Request) (any, error) {
		m, err := b.Manager(r.Context())
		return m.withLists(), err
	})
	get("/fabric/trunks", whatTrunks, func(r *http.Request) (any, error) {
		l, err := b.Trunks(r.Context())
		return list(l), err
	})
	get("/fabric/partitions", whatPartitions, func(r *http.Request) (any, error) {
		l, err := b.Partitions(r.Context())
		return each(l, Partition.withLists), err
	})
	get("/fabric/groups", whatGroups, func(r *http.Request) (any, error) {
		l, err := b.SubnetGroups(r.Context())
		return each(l, SubnetGroup.withLists), err
	})
	get("/store", whatStore, func(r *http.Request) (any, error) {
		s, err := b.Store(r.Context())
		return s.withLists(), err
	})
	get("/store/entries", whatStore, func(r *http.Request) (any, error) {
		l, err := b.StoreEntries(r.Context(), r.URL.Query().Get("tree"))
		return list(l), err
	})

	mux.Handle("POST /"+Version+"/fabric/sweep", handler{whatSweep, FullAccess, func(r *http.Request) (any, error) {
		return struct{}{}, b.Sweep(r.Context())
	}})
	mux.Handle("PATCH /"+Version+"/fabric/manager", handler{whatSetManager, FullAccess, body(func(ctx context.Context, c ManagerChange) (any, error) {
		return struct{}{}, b.SetManager(ctx, c)
	})})
	mux.Handle("POST /"+Version+"/fabric/partitions", handler{whatAddPartition, FullAccess, body(func(ctx context.Context, p Partition) (any, error) {
		p, err := b.AddPartition(ctx, p)
		return p.withLists(), err
	})})
	mux.Handle("DELETE /"+Version+"/fabric/partitions/{pkey}", handler{whatDelPartition, FullAccess, func(r *http.Request) (any, error) {
		return struct{}{}, b.DelPartition(r.Context(), r.PathValue("pkey"), r.URL.Query()["member"])
	}})
	mux.Handle("POST /"+Version+"/fabric/groups/join", handler{whatJoin, FullAccess, body(func(ctx context.Context, j GroupJoin) (any, error) {
		return struct{}{}, b.JoinGroup(ctx, j)
	})})
	mux.Handle("POST /"+Version+"/fabric/groups/leave", handler{whatLeave, FullAccess, body(func(ctx context.Context, j GroupJoin) (any, error) {
		return struct{}{}, b.LeaveGroup(ctx, j)
	})})
}

// body is a call whose request is a T.
func body[T any](f func(context.Context, T) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		var v T
		if err := decodeStrict(r.Body, &v); err != nil {
			return nil, &Error{Code: CodeInvalid, Why: err.Error()}
		}
		return f(r.Context(), v)
	}
}

// Subnet returns what the master knows of the subnet.
func (c *Client) Subnet(ctx context.Context) (s Subnet, err error) {
	err = c.do(ctx, whatSubnet, "GET", "/fabric/subnet", nil, &s)
	return s, err
}

// SubnetText returns the subnet in one of TextFormats.
func (c *Client) SubnetText(ctx context.Context, format string) (string, error) {
	var t Text
	err := c.do(ctx, whatSubnet, "GET", "/fabric/text?"+url.Values{"format": {format}}.Encode(), nil, &t)
	return t.Text, err
}

// Routes returns the forwarding tables of every switch.
func (c *Client) Routes(ctx context.Context) (r []SwitchRoutes, err error) {
	err = c.do(ctx, whatSubnet, "GET", "/fabric/routes", nil, &r)
	return r, err
}

// Path returns the way between two ports.
func (c *Client) Path(ctx context.Context, from, to string) (p Path, err error) {
	err = c.do(ctx, whatSubnet, "GET", "/fabric/path?"+url.Values{"from": {from}, "to": {to}}.Encode(), nil, &p)
	return p, err
}

// Sweep asks the master for a heavy sweep; it returns before that.
func (c *Client) Sweep(ctx context.Context) error {
	return c.do(ctx, whatSweep, "POST", "/fabric/sweep", nil, nil)
}

// Manager returns the node's subnet manager.
func (c *Client) Manager(ctx context.Context) (m Manager, err error) {
	err = c.do(ctx, whatManager, "GET", "/fabric/manager", nil, &m)
	return m, err
}

// SetManager changes how the subnet is managed.
func (c *Client) SetManager(ctx context.Context, m ManagerChange) error {
	return c.do(ctx, whatSetManager, "PATCH", "/fabric/manager", m, nil)
}

// Trunks returns the node's trunks.
func (c *Client) Trunks(ctx context.Context) (t []Trunk, err error) {
	err = c.do(ctx, whatTrunks, "GET", "/fabric/trunks", nil, &t)
	return t, err
}

// Partitions returns the partitions that are wanted.
func (c *Client) Partitions(ctx context.Context) (p []Partition, err error) {
	err = c.do(ctx, whatPartitions, "GET", "/fabric/partitions", nil, &p)
	return p, err
}

// AddPartition makes a partition, or adds members to one.
func (c *Client) AddPartition(ctx context.Context, p Partition) (out Partition, err error) {
	err = c.do(ctx, whatAddPartition, "POST", "/fabric/partitions", p, &out)
	return out, err
}

// DelPartition takes members out of a partition, or deletes it.
func (c *Client) DelPartition(ctx context.Context, pkey string, members []string) error {
	path := "/fabric/partitions/" + url.PathEscape(pkey)
	if len(members) > 0 {
		path += "?" + url.Values{"member": members}.Encode()
	}
	return c.do(ctx, whatDelPartition, "DELETE", path, nil, nil)
}

// SubnetGroups returns the multicast groups of the subnet.
func (c *Client) SubnetGroups(ctx context.Context) (g []SubnetGroup, err error) {
	err = c.do(ctx, whatGroups, "GET", "/fabric/groups", nil, &g)
	return g, err
}

// JoinGroup puts ports into a group for good.
func (c *Client) JoinGroup(ctx context.Context, j GroupJoin) error {
	return c.do(ctx, whatJoin, "POST", "/fabric/groups/join", j, nil)
}

// LeaveGroup undoes JoinGroup.
func (c *Client) LeaveGroup(ctx context.Context, j GroupJoin) error {
	return c.do(ctx, whatLeave, "POST", "/fabric/groups/leave", j, nil)
}

// Store returns the state of the node's store.
func (c *Client) Store(ctx context.Context) (s Store, err error) {
	err = c.do(ctx, whatStore, "GET", "/store", nil, &s)
	return s, err
}

// StoreEntries returns what is below a tree of the store, all for "".
func (c *Client) StoreEntries(ctx context.Context, tree string) (e []StoreEntry, err error) {
	err = c.do(ctx, whatStore, "GET", "/store/entries?"+url.Values{"tree": {tree}}.Encode(), nil, &e)
	return e, err
}
