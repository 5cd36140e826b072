// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http"

	"weft/internal/control/api"
)

// operations registers what the node does for the operations of the control interface.
func (n *Node) operations() *http.ServeMux {
	mux := http.NewServeMux()

	api.Handle(mux, api.GetStatus, api.NoInput(n.Status))
	api.Handle(mux, api.ListDevices, api.NoInput(n.Devices))
	api.Handle(mux, api.GetResources, api.NoInput(n.Resources))
	api.Handle(mux, api.ListCounters, api.NoInput(n.Counters))
	api.Handle(mux, api.ListGroups, api.NoInput(n.Groups))
	api.Handle(mux, api.AnnounceProgram, api.Action(n.Use))
	api.Handle(mux, api.Shutdown, api.Action(n.Shutdown))

	api.Handle(mux, api.ListFaults, api.NoInput(n.Faults))
	api.Handle(mux, api.AddFault, n.AddFault)
	api.Handle(mux, api.DeleteFault, api.NoOutput(n.DelFault))

	api.HandleCapture(mux, n.Capture)
	api.Handle(mux, api.ListCaptures, api.NoInput(n.Captures))
	api.Handle(mux, api.StopCapture, api.NoOutput(n.StopCapture))

	api.Handle(mux, api.ListFunctions, api.NoInput(n.Functions))
	api.Handle(mux, api.AddFunction, n.AddFunction)
	api.Handle(mux, api.ChangeFunction, api.ByName(n.SetFunction))
	api.Handle(mux, api.DeleteFunction, api.NoOutput(n.DelFunction))

	n.mgmt.Register(mux)

	n.ipOperations(mux)

	api.Handle(mux, api.ListVESWInterfaces, api.NoInput(n.VESWInterfaces))
	api.Handle(mux, api.ListVESWCounters, n.VESWStats)
	api.Handle(mux, api.AttachVESW, n.AttachVESW)
	api.Handle(mux, api.DetachVESW, api.NoOutput(n.DetachVESW))

	api.Handle(mux, api.ListVMs, api.NoInput(n.VMs))
	api.Handle(mux, api.AddVM, n.AddVM)
	api.Handle(mux, api.DeleteVM, api.NoOutput(n.DelVM))
	return mux
}
