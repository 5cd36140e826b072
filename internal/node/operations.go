// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net/http"

	"weft/internal/control/api"
	"weft/internal/node/control"
)

// operations registers what the node does for the operations of the control interface.
func (n *Node) operations() *http.ServeMux {
	mux := http.NewServeMux()

	api.Handle(mux, api.AnnounceProgram, api.Action(func(context.Context) error { return n.sessions.Use() }))
	api.Handle(mux, api.Shutdown, api.Action(func(context.Context) error {
		n.stop(errEnd)
		return nil
	}))

	n.reports.register(mux)
	n.functionOps.register(mux)
	n.captures.Register(mux)
	n.faults.Register(mux)
	(&control.Inspector{Sessions: n.sessions, All: n.all, Identifiers: n.cm.Identifiers}).Register(mux)
	n.mgmt.Register(mux)

	n.ipOperations(mux)

	veswOperations(n, mux)
	n.cards.Operations(mux)
	return mux
}
