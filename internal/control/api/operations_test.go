// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
)

// operations registers every operation of a fake node.
func (b *fake) operations() *http.ServeMux {
	mux := http.NewServeMux()

	Handle(mux, GetStatus, NoInput(b.Status))
	Handle(mux, ListDevices, NoInput(b.Devices))
	Handle(mux, GetResources, NoInput(b.Resources))
	Handle(mux, ListCounters, NoInput(b.Counters))
	Handle(mux, ListGroups, NoInput(b.Groups))
	Handle(mux, AnnounceProgram, Action(b.Use))
	Handle(mux, Shutdown, Action(b.Shutdown))

	Handle(mux, ListFaults, NoInput(b.Faults))
	Handle(mux, AddFault, b.AddFault)
	Handle(mux, DeleteFault, NoOutput(b.DelFault))

	HandleCapture(mux, b.Capture)
	Handle(mux, ListCaptures, NoInput(b.Captures))
	Handle(mux, StopCapture, NoOutput(b.StopCapture))

	Handle(mux, ListFunctions, NoInput(b.Functions))
	Handle(mux, AddFunction, b.AddFunction)
	Handle(mux, ChangeFunction, ByName(b.SetFunction))
	Handle(mux, DeleteFunction, NoOutput(b.DelFunction))
	lost := func(_ context.Context, name string) (*LostContact, error) {
		if name == "none" {
			return nil, b.fail
		}
		return &LostContact{Pairs: 1, Lines: []string{"h vf: h weft_ib0, in vesw lab"}, Digest: "d"}, b.fail
	}
	Handle(mux, LostByFunction, lost)
	Handle(mux, LostByPort, lost)

	Handle(mux, GetSubnet, NoInput(b.Subnet))
	Handle(mux, GetSubnetText, func(ctx context.Context, f TextFormat) (Text, error) {
		return b.SubnetText(ctx,
			string(f))
	})
	Handle(mux, ListRoutes, NoInput(b.Routes))
	Handle(mux, CheckPair, func(ctx context.Context, q PathQuery) (PairCheck, error) {
		p, err := b.Path(ctx, q.From, q.To)
		return PairCheck{From: p.From, To: p.To, Hops: []CheckHop{{MTU: 4096}}}, err
	})
	Handle(mux, CheckFabric, NoInput(func(ctx context.Context) ([]Finding, error) {
		_, err := b.Path(ctx, "", "")
		return []Finding{{Level: LevelOK, Check: "port", What: "sound"}}, err
	}))
	Handle(mux, FindPath, func(ctx context.Context, q PathQuery) (Path, error) { return b.Path(ctx, q.From, q.To) })
	Handle(mux, StartSweep, Action(b.Sweep))
	Handle(mux, GetManager, NoInput(b.Manager))
	Handle(mux, ChangeManager, NoOutput(b.SetManager))
	Handle(mux, ListTrunks, NoInput(b.Trunks))
	Handle(mux, ListPartitions, NoInput(b.Partitions))
	Handle(mux, AddPartition, b.AddPartition)
	Handle(mux, DeletePartition, NoOutput(func(ctx context.Context,
		p PartitionMembers) error {
		return b.DelPartition(ctx, p.PKey, p.Members)
	}))
	Handle(mux, ExportDesired, func(context.Context, None) (Desired, error) { return Desired{}, b.fail })
	Handle(mux, CompareDesired, func(context.Context, Desired) (Comparison, error) { return Comparison{}, b.fail })
	Handle(mux, ApplyDesired, func(context.Context, Desired) (Comparison, error) { return Comparison{}, b.fail })
	Handle(mux, ListHistory, func(context.Context, Since) ([]HistoryEntry, error) { return nil, b.fail })
	Handle(mux, ExportNode, func(context.Context, None) (DesiredNode, error) { return DesiredNode{}, b.fail })
	Handle(mux, ListSubnetGroups, NoInput(b.SubnetGroups))
	Handle(mux, JoinGroup, NoOutput(b.JoinGroup))
	Handle(mux, LeaveGroup, NoOutput(b.LeaveGroup))
	Handle(mux, GetStore, NoInput(b.Store))
	Handle(mux, ListStoreEntries, b.StoreEntries)
	Handle(mux, BackupStore, NoInput(b.BackupStore))
	Handle(mux, RestoreStore, b.RestoreStore)
	Handle(mux, DefragStore, NoInput(b.DefragStore))

	Handle(mux, ListIPLinks, NoInput(b.IPLinks))
	Handle(mux, AddIPLinks, b.AddIPLinks)
	Handle(mux, DeleteIPLinks, NoOutput(func(ctx context.Context, d IPLinkDelete) error {
		return b.DelIPLinks(ctx,
			d.Name)
	}))
	Handle(mux, ChangeIPLink, NoOutput(func(ctx context.Context, a Named[IPAction]) error {
		return b.IPDo(ctx, a.Name,
			a.Value)
	}))
	Handle(mux, ListIPNeighbours, b.IPNeighbours)
	Handle(mux, ListIPShadow, b.IPShadow)
	Handle(mux, ListIPPaths, b.IPPaths)
	Handle(mux, ListIPGroups, b.IPGroups)
	Handle(mux, ListIPCounters, b.IPStats)
	Handle(mux, ListIPParams, b.IPParams)
	Handle(mux, ListIPEvents, func(ctx context.Context, q EventQuery) ([]IPEvent, error) {
		return b.IPEvents(ctx,
			q.After, q.Wait)
	})
	Handle(mux, ResolveIPPath, b.IPPath)

	Handle(mux, ListVESWs, NoInput(b.VESWs))
	Handle(mux, GetVESW, b.VESW)
	Handle(mux, CreateVESW, b.CreateVESW)
	Handle(mux, ChangeVESW, ByName(b.ChangeVESW))
	Handle(mux, DeleteVESW, NoOutput(b.DeleteVESW))
	Handle(mux, AddVESWPort, ByName(b.AddVESWPort))
	Handle(mux, DeleteVESWPort, NoOutput(func(ctx context.Context, p VESWPortDelete) error {
		vport := -1
		if p.VPort != nil {
			vport = int(*p.VPort)
		}
		return b.DelVESWPort(ctx, p.Name, p.Port, vport)
	}))

	Handle(mux, ListVESWInterfaces, NoInput(b.VESWInterfaces))
	Handle(mux, ListVESWCounters, b.VESWStats)
	Handle(mux, AttachVESW, b.AttachVESW)
	Handle(mux, DetachVESW, NoOutput(b.DetachVESW))

	Handle(mux, ListMembers, NoInput(b.Members))
	Handle(mux, RenameMember, NoOutput(func(_ context.Context, n Named[MemberName]) error {
		return b.RenameMember(n.Name, n.Value.Name)
	}))
	Handle(mux, SetMember, NoOutput(func(_ context.Context, n Named[MemberShape]) error {
		return b.SetMember(n.Name, n.Value.Role)
	}))
	Handle(mux, GetTrunkPlan, NoInput(b.TrunkPlan))
	Handle(mux, DrainMember, ByName(b.DrainMember))
	Handle(mux, RemoveMember, b.RemoveMember)
	Handle(mux, RotateSecrets, NoInput(b.RotateSecrets))
	Handle(mux, ListTokens, NoInput(b.Tokens))
	Handle(mux, CreateToken, b.CreateToken)
	Handle(mux, DeleteToken, NoOutput(b.DeleteToken))

	Handle(mux, ListVMs, NoInput(b.VMs))
	Handle(mux, AddVM, b.AddVM)
	Handle(mux, DeleteVM, NoOutput(b.DelVM))
	return mux
}
