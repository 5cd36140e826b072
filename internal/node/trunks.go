// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"time"

	"weft/internal/control/api"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/fabric/trunk/trust"
	"weft/internal/node/subnet"
)

// trunkTrust sets what authenticates the peers of trunks, and what is done to packets there.
func (n *Node) trunkTrust(t *subnet.TrunkConfig) (err error) {
	const what = "cannot open the trunks"
	if t.Mode, err = seal.ParseMode(n.cfg.TrunkSecurity); err != nil {
		return &api.Error{What: what, Why: err.Error(), Fix: "--trunk-security encrypt"}
	}
	if t.Mode != seal.Encrypt {
		t.Trusts = append(t.Trusts, api.Degraded{What: "trunk_security",
			Why: map[seal.Mode]string{seal.Authenticate: "packets on trunks can be read on the network",
				seal.None: "packets on trunks can be read and forged on the network"}[t.Mode],
			Fix: "start the nodes without --trunk-security"})
	}
	if n.cfg.TrunkKeyFile == "" && t.Mode != seal.None {
		return &api.Error{What: what, Why: "nothing authenticates the nodes of --peer",
			Fix: "openssl rand -hex 32 > FILE, the same at each node, and --trunk-key-file FILE; or, in a lab, --trunk-security none"}
	}
	if n.cfg.TrunkKeyFile == "" {
		t.Trusts = append(t.Trusts, api.Degraded{What: "trunk_trust",
			Why: "nothing authenticates the nodes of --peer: every host with such an address is in the subnet",
			Fix: "openssl rand -hex 32 > FILE; start all nodes with --trunk-key-file FILE"})
		t.Trust, err = trust.NewAnyone(n.host, time.Now())
		return err
	}
	fix := "openssl rand -hex 32 > " + n.cfg.TrunkKeyFile + ", the same at each node"
	b, err := os.ReadFile(n.cfg.TrunkKeyFile)
	if err != nil {
		return &api.Error{What: what, Why: err.Error(), Fix: fix}
	}
	key, err := trust.ParseKey(b)
	if err != nil {
		return &api.Error{What: what, Why: n.cfg.TrunkKeyFile + ": " + err.Error(), Fix: fix}
	}
	t.Trust, err = trust.FromKey(key, n.host, time.Now())
	return err
}
