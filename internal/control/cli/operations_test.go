// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"net/http"

	"weft/internal/control/api"
)

// operations registers every operation of a fake node.
func (b *fakeBackend) operations() *http.ServeMux {
	mux := http.NewServeMux()

	api.Handle(mux, api.GetStatus, api.NoInput(b.Status))
	api.Handle(mux, api.ListDevices, api.NoInput(b.Devices))
	api.Handle(mux, api.GetResources, api.NoInput(b.Resources))
	api.Handle(mux, api.ListCounters, api.NoInput(b.Counters))
	api.Handle(mux, api.ListGroups, api.NoInput(b.Groups))
	api.Handle(mux, api.AnnounceProgram, api.Action(b.Use))
	api.Handle(mux, api.Shutdown, api.Action(b.Shutdown))

	api.Handle(mux, api.ListFaults, api.NoInput(b.Faults))
	api.Handle(mux, api.AddFault, b.AddFault)
	api.Handle(mux, api.DeleteFault, api.NoOutput(b.DelFault))

	api.HandleCapture(mux, b.Capture)
	api.Handle(mux, api.ListCaptures, api.NoInput(b.Captures))
	api.Handle(mux, api.StopCapture, api.NoOutput(b.StopCapture))

	api.Handle(mux, api.ListFunctions, api.NoInput(b.Functions))
	api.Handle(mux, api.AddFunction, b.AddFunction)
	api.Handle(mux, api.ChangeFunction, api.ByName(b.SetFunction))
	api.Handle(mux, api.DeleteFunction, api.NoOutput(b.delFunction))
	api.Handle(mux, api.LostByFunction, b.LostByFunction)

	api.Handle(mux, api.GetSubnet, api.NoInput(b.Subnet))
	api.Handle(mux, api.GetSubnetText, func(ctx context.Context, f api.TextFormat) (api.Text,
		error) {
		return b.SubnetText(ctx, string(f))
	})
	api.Handle(mux, api.ListRoutes, api.NoInput(b.Routes))
	api.Handle(mux, api.FindPath, func(ctx context.Context, q api.PathQuery) (api.Path, error) {
		return b.Path(ctx,
			q.From, q.To)
	})
	api.Handle(mux, api.CheckPair, b.CheckPair)
	api.Handle(mux, api.CheckFabric, api.NoInput(b.CheckFabric))
	api.Handle(mux, api.StartSweep, api.Action(b.Sweep))
	api.Handle(mux, api.GetManager, api.NoInput(b.Manager))
	api.Handle(mux, api.ChangeManager, api.NoOutput(b.SetManager))
	api.Handle(mux, api.ListTrunks, api.NoInput(b.Trunks))
	api.Handle(mux, api.ListPartitions, api.NoInput(b.Partitions))
	api.Handle(mux, api.AddPartition, b.AddPartition)
	api.Handle(mux, api.DeletePartition, api.NoOutput(func(ctx context.Context,
		p api.PartitionMembers) error {
		return b.DelPartition(ctx, p.PKey, p.Members)
	}))
	api.Handle(mux, api.ExportDesired, api.NoInput(b.ExportDesired))
	api.Handle(mux, api.CompareDesired, b.CompareDesired)
	api.Handle(mux, api.ApplyDesired, b.ApplyDesired)
	api.Handle(mux, api.ListHistory, b.History)
	api.Handle(mux, api.ExportNode, api.NoInput(b.ExportNode))
	api.Handle(mux, api.ListSubnetGroups, api.NoInput(b.SubnetGroups))
	api.Handle(mux, api.JoinGroup, api.NoOutput(b.JoinGroup))
	api.Handle(mux, api.LeaveGroup, api.NoOutput(b.LeaveGroup))
	api.Handle(mux, api.GetStore, api.NoInput(b.Store))
	api.Handle(mux, api.ListStoreEntries, b.StoreEntries)
	api.Handle(mux, api.BackupStore, api.NoInput(b.BackupStore))
	api.Handle(mux, api.RestoreStore, b.RestoreStore)
	api.Handle(mux, api.DefragStore, api.NoInput(b.DefragStore))

	api.Handle(mux, api.ListIPLinks, api.NoInput(b.IPLinks))
	api.Handle(mux, api.AddIPLinks, b.AddIPLinks)
	api.Handle(mux, api.DeleteIPLinks, api.NoOutput(func(ctx context.Context,
		d api.IPLinkDelete) error {
		return b.DelIPLinks(ctx, d.Name)
	}))
	api.Handle(mux, api.ChangeIPLink, api.NoOutput(func(ctx context.Context,
		a api.Named[api.IPAction]) error {
		return b.IPDo(ctx, a.Name, a.Value)
	}))
	api.Handle(mux, api.ListIPNeighbours, b.IPNeighbours)
	api.Handle(mux, api.ListIPShadow, b.IPShadow)
	api.Handle(mux, api.ListIPPaths, b.IPPaths)
	api.Handle(mux, api.ListIPGroups, b.IPGroups)
	api.Handle(mux, api.ListIPCounters, b.IPStats)
	api.Handle(mux, api.ListIPParams, b.IPParams)
	api.Handle(mux, api.ListIPEvents, func(ctx context.Context, q api.EventQuery) ([]api.IPEvent, error) {
		return b.IPEvents(ctx, q.After, q.Wait)
	})
	api.Handle(mux, api.ResolveIPPath, b.IPPath)

	api.Handle(mux, api.ListVESWs, api.NoInput(b.VESWs))
	api.Handle(mux, api.GetVESW, b.VESW)
	api.Handle(mux, api.CreateVESW, b.CreateVESW)
	api.Handle(mux, api.ChangeVESW, api.ByName(b.ChangeVESW))
	api.Handle(mux, api.DeleteVESW, api.NoOutput(b.DeleteVESW))
	api.Handle(mux, api.AddVESWPort, api.ByName(b.AddVESWPort))
	api.Handle(mux, api.DeleteVESWPort, api.NoOutput(func(ctx context.Context, p api.VESWPortDelete) error {
		vport := -1
		if p.VPort != nil {
			vport = int(*p.VPort)
		}
		return b.DelVESWPort(ctx, p.Name, p.Port, vport)
	}))

	api.Handle(mux, api.ListVESWInterfaces, api.NoInput(b.VESWInterfaces))
	api.Handle(mux, api.ListVESWCounters, b.VESWStats)
	api.Handle(mux, api.AttachVESW, b.AttachVESW)
	api.Handle(mux, api.DetachVESW, api.NoOutput(b.DetachVESW))

	api.Handle(mux, api.ListMembers, api.NoInput(b.Members))
	api.Handle(mux, api.RenameMember, api.NoOutput(func(_ context.Context, n api.Named[api.MemberName]) error {
		return b.RenameMember(n.Name, n.Value.Name)
	}))
	api.Handle(mux, api.SetMember, api.NoOutput(func(_ context.Context, n api.Named[api.MemberShape]) error {
		return b.SetMember(n.Name, n.Value.Role)
	}))
	api.Handle(mux, api.GetTrunkPlan, api.NoInput(b.TrunkPlan))
	api.Handle(mux, api.DrainMember, api.ByName(b.DrainMember))
	api.Handle(mux, api.RemoveMember, b.RemoveMember)
	api.Handle(mux, api.RotateSecrets, api.NoInput(b.RotateSecrets))
	api.Handle(mux, api.ListTokens, api.NoInput(b.Tokens))
	api.Handle(mux, api.CreateToken, b.CreateToken)
	api.Handle(mux, api.DeleteToken, api.NoOutput(b.DeleteToken))

	api.Handle(mux, api.ListVMs, api.NoInput(b.VMs))
	api.Handle(mux, api.AddVM, b.AddVM)
	api.Handle(mux, api.DeleteVM, api.NoOutput(b.DelVM))
	return mux
}
