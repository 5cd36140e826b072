// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
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

	api.Handle(mux, api.GetSubnet, api.NoInput(n.Subnet))
	api.Handle(mux, api.GetSubnetText, n.subnetText)
	api.Handle(mux, api.ListRoutes, api.NoInput(n.Routes))
	api.Handle(mux, api.FindPath, n.findPath)
	api.Handle(mux, api.StartSweep, api.Action(n.Sweep))
	api.Handle(mux, api.GetManager, api.NoInput(n.Manager))
	api.Handle(mux, api.ChangeManager, api.NoOutput(n.SetManager))
	api.Handle(mux, api.ListTrunks, api.NoInput(n.Trunks))
	api.Handle(mux, api.ListPartitions, api.NoInput(n.Partitions))
	api.Handle(mux, api.AddPartition, n.AddPartition)
	api.Handle(mux, api.DeletePartition, api.NoOutput(n.deletePartition))
	api.Handle(mux, api.ListSubnetGroups, api.NoInput(n.SubnetGroups))
	api.Handle(mux, api.JoinGroup, api.NoOutput(n.JoinGroup))
	api.Handle(mux, api.LeaveGroup, api.NoOutput(n.LeaveGroup))
	api.Handle(mux, api.GetStore, api.NoInput(n.Store))
	api.Handle(mux, api.ListStoreEntries, n.StoreEntries)

	n.ipOperations(mux)

	api.Handle(mux, api.ListVESWs, api.NoInput(n.VESWs))
	api.Handle(mux, api.GetVESW, n.VESW)
	api.Handle(mux, api.CreateVESW, n.CreateVESW)
	api.Handle(mux, api.ChangeVESW, api.ByName(n.ChangeVESW))
	api.Handle(mux, api.DeleteVESW, api.NoOutput(n.DeleteVESW))
	api.Handle(mux, api.AddVESWPort, api.ByName(n.AddVESWPort))
	api.Handle(mux, api.DeleteVESWPort, api.NoOutput(n.deleteVESWPort))

	api.Handle(mux, api.ListVESWInterfaces, api.NoInput(n.VESWInterfaces))
	api.Handle(mux, api.ListVESWCounters, n.VESWStats)
	api.Handle(mux, api.AttachVESW, n.AttachVESW)
	api.Handle(mux, api.DetachVESW, api.NoOutput(n.DetachVESW))

	api.Handle(mux, api.ListVMs, api.NoInput(n.VMs))
	api.Handle(mux, api.AddVM, n.AddVM)
	api.Handle(mux, api.DeleteVM, api.NoOutput(n.DelVM))
	return mux
}

func (n *Node) subnetText(ctx context.Context, format api.TextFormat) (api.Text, error) {
	return n.SubnetText(ctx, string(format))
}

func (n *Node) findPath(ctx context.Context, q api.PathQuery) (api.Path, error) {
	return n.Path(ctx, q.From, q.To)
}

func (n *Node) deletePartition(ctx context.Context, p api.PartitionMembers) error {
	return n.DelPartition(ctx, p.PKey, p.Members)
}

// deleteVESWPort names the vport of the port, -1 where any of them is meant.
func (n *Node) deleteVESWPort(ctx context.Context, p api.VESWPortDelete) error {
	vport := -1
	if p.VPort != nil {
		vport = int(*p.VPort)
	}
	return n.DelVESWPort(ctx, p.Name, p.Port, vport)
}
