// SPDX-License-Identifier: Apache-2.0

package node

import (
	"weft/internal/control/api"
	"weft/internal/device/vhost"
	"weft/internal/node/mgmt"
	"weft/internal/node/vmcard"
	"weft/internal/verbs/hca"
)

// newCards makes the room of network cards of virtual machines.
func newCards(n *Node) *vmcard.Cards {
	c := vmcard.Config{
		Dir:            n.cfg.Dir,
		SocketPerm:     n.perm.socket(),
		DirPerm:        n.perm.dir(),
		Log:            n.log,
		Sessions:       n.sessions,
		Share:          func() *vhost.Server { return n.funcs.all()[0].socket },
		RemoveFunction: n.editor.remove,
		Number:         n.all.Add,
		Taken:          errFunctionThere,
		PortState:      n.vesw.PortState,
		AwaitPort:      n.vesw.Await,
		VESWs:          n.mgmt,
		Keeper:         n.intentStore,
	}
	if n.sub == nil {
		c.Absent = mgmt.ErrNoFabric
	}
	c.AddFunction = func(m *vmcard.Card, change *api.FunctionChange, number func(*hca.Adapter) error) error {
		f, err := n.functionOps.create(&api.NewFunction{Name: m.Request().Name, FunctionChange: *change}, number)
		if err != nil {
			return err
		}
		return n.editor.addCard(f, m)
	}
	return vmcard.New(c)
}

var _ vmcard.Keeper = (*intentStore)(nil)
