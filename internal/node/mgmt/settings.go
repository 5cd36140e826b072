// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"slices"
	"strings"

	"weft/internal/control/api"
	"weft/internal/mgmt/manager"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
)

func (n *Network) setManager(ctx context.Context, c api.ManagerChange) error {
	const fix = "weft sm set --help"
	if err := c.Validate(); err != nil {
		return describe.Invalid(fix, "%v", err)
	}
	if n.sub == nil {
		return ErrNoFabric
	}
	if n.manager == nil {
		return n.notMaster(ctx, "weft sm set")
	}
	if c.MKey != nil && n.cfg.Settings.MKeyFile != "" {
		return describe.Invalid("change that file and start the node anew",
			"the M_Key of this node is that of its --m-key-file, %s", n.cfg.Settings.MKeyFile)
	}
	if c != (api.ManagerChange{MKey: c.MKey}) {
		if err := n.editable(ctx, "weft sm set"); err != nil {
			return err
		}
		if err := n.setSubnet(ctx, fix, &c); err != nil {
			return err
		}
	}
	if c.MKey == nil {
		return nil
	}
	// Also where this manager stands by: it has to know the key when it follows.
	var key uint64
	switch *c.MKey {
	case api.MKeyNone:
	case api.MKeyRandom:
		key = manager.RandomMKey()
	default:
		key, _ = api.ParseMKey(*c.MKey) // valid
	}
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	if err := manager.EditMKey(ctx, n.store, func(k *manager.MKey) { k.Set(key) }); err != nil {
		return storeError(err)
	}
	n.cfg.Log.Info("M_Key changed", "none", key == 0)
	return nil
}

// setSubnet changes what of c is kept with partitions and groups.
func (n *Network) setSubnet(ctx context.Context, fix string, c *api.ManagerChange) error {
	var roots []ib.GUID
	if c.Roots != nil {
		for _, s := range *c.Roots {
			g, ok := describe.ParseGUID(s)
			if !ok {
				return describe.Invalid("weft fabric nodes", "a root is the GUID of a switch, such as %v, not %q",
					n.cfg.GUID, s)
			}
			if t := n.topologyIfKnown(); t != nil {
				if i := t.NodeByGUID(g); i < 0 || !t.Nodes[i].IsSwitch() {
					return describe.NotFound("weft fabric nodes", "the subnet has no switch %v", g)
				}
			}
			roots = append(roots, g)
		}
	}
	err := n.editFor(ctx, fix, func(i *manager.Intent) error {
		s := &i.Subnet
		if c.Routing != nil {
			s.Engine = *c.Routing
		}
		if c.Roots != nil {
			s.Roots = roots
		}
		if len(roots) > 0 && !slices.Contains(strings.Split(s.Engine, ","), "updn") {
			return describe.Invalid("weft sm set --routing updn --roots …",
				"roots are for the engine updn, which the routing %q does not name", s.Engine)
		}
		if c.MKeyProtect != nil {
			s.MKeyProtect = uint8(*c.MKeyProtect)
		}
		if c.MKeyLeaseS != nil {
			s.MKeyLease = uint16(*c.MKeyLeaseS)
		}
		return nil
	})
	if err == nil {
		n.cfg.Log.Info("subnet settings changed")
	}
	return err
}
