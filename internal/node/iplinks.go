// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"

	"weft/internal/control/api"
	"weft/internal/node/ipif"
	"weft/internal/node/mgmt"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/ipoib"
)

// newIPLinks makes the room of IP links.
func (n *Node) newIPLinks() (*ipif.Host, error) {
	params, err := n.ipoibParams()
	if err != nil {
		return nil, err
	}
	return ipif.New(ipif.Config{Params: params, Addrs: n.cfg.IPoIBAddrs, Now: n.now, Log: n.log, Manage: n.sub,
		Adapters:    n.funcs.nativeAdapters,
		OpenSession: n.sessions.OpenInternal,
		OpenSA: func(function uint16, answer func(mono.Time, uint32, *mad.SA), notice func(mono.Time,
			*mad.Notice)) ipif.SA {
			return n.sub.OpenUser(function, answer, notice)
		},
		Connections: n.cm, Keeper: n.intentStore}), nil
}

// ipOperations registers the operations of IP links, or their refusal where the node is in no subnet.
func (n *Node) ipOperations(mux *http.ServeMux) {
	if n.ip != nil {
		n.ip.Operations(mux)
		return
	}
	api.Handle(mux, api.ListIPLinks, api.NoInput(n.ipLinks))
	api.Handle(mux, api.AddIPLinks, absent[api.IPRequest, []api.IPLink])
	api.Handle(mux, api.DeleteIPLinks, absent[api.IPLinkDelete, api.None])
	api.Handle(mux, api.ChangeIPLink, absent[api.Named[api.IPAction], api.None])
	api.Handle(mux, api.ListIPNeighbours, absent[string, []api.IPNeighbour])
	api.Handle(mux, api.ListIPShadow, absent[string, []api.IPShadow])
	api.Handle(mux, api.ListIPPaths, absent[string, []api.IPPath])
	api.Handle(mux, api.ListIPGroups, absent[string, []api.IPGroup])
	api.Handle(mux, api.ListIPCounters, absent[string, []api.Counter])
	api.Handle(mux, api.ListIPParams, absent[string, []api.IPParam])
	api.Handle(mux, api.ListIPEvents, absent[api.EventQuery, []api.IPEvent])
	api.Handle(mux, api.ResolveIPPath, absent[api.IPPathQuery, api.IPPathInfo])
}

// absent refuses an operation of a node that is in no subnet.
func absent[In, Out any](context.Context, In) (out Out, err error) { return out, mgmt.ErrNoFabric }

// ipLinks lists the IP links, none where the node is in no subnet.
func (n *Node) ipLinks(ctx context.Context) ([]api.IPLink, error) {
	if n.ip == nil {
		return nil, nil
	}
	return n.ip.List(ctx)
}

// ipoibParams reads the parameters of IP links that the configuration names.
func (n *Node) ipoibParams() (p ipoib.Params, err error) {
	var text []byte
	if n.cfg.IPoIBParams != "" {
		if text, err = os.ReadFile(n.cfg.IPoIBParams); err != nil {
			return p, fmt.Errorf("parameters of IP links: %w", err)
		}
	}
	if p, err = ipoib.ParseParams(n.cfg.IPoIBParams, string(text), n.cfg.IPoIBSet); err != nil {
		return p, &api.Error{Code: api.CodeInvalid, What: "wrong parameters of IP links",
			Why: strings.ReplaceAll(err.Error(), "\n", "; "), Fix: "see docs/notes/ipoib.md, section 7"}
	}
	return p, nil
}

// Edit implements ipif.Keeper.
func (k *intentStore) Edit(ctx context.Context, what string, change func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.editable(what); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	k.save(ctx)
	return nil
}

// Kept implements ipif.Keeper.
func (k *intentStore) Kept() (bool, string) { return k.kept() }

var _ ipif.Keeper = (*intentStore)(nil)
