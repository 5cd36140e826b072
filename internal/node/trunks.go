// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"os"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/fabric/link/udp"
	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/fabric/trunk/trust"
	"weft/internal/mgmt/member/peer"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
)

// memberTrust authenticates the other ends of trunks by their certificates, as members of this node's fabric.
type memberTrust struct{ self func() peer.Self }

// Certificate implements handshake.Trust.
func (t memberTrust) Certificate() (*tls.Certificate, error) { return t.self().Certificate() }

// Verify implements handshake.Trust.
func (t memberTrust) Verify(now time.Time, chain []*x509.Certificate) (handshake.Identity, error) {
	c, err := t.self().Verify(now, chain)
	if err != nil {
		return handshake.Identity{}, err
	}
	return handshake.Identity{Node: c.GUID, Name: c.Name}, nil
}

// memberTrunks are the trunks to members of this node's fabric.
type memberTrunks struct{ sub *subnet.Subnet }

// Add implements mesh.Trunks.
func (t memberTrunks) Add(name string, node ib.GUID, at netip.AddrPort, confined bool) (int, error) {
	return t.sub.AddTrunk(name, udp.Peer{Addr: at, Anywhere: !at.IsValid(), Node: node}, confined)
}

// Confine implements mesh.Trunks.
func (t memberTrunks) Confine(trunk int, confined bool) error { return t.sub.Confine(trunk, confined) }

// Move implements mesh.Trunks.
func (t memberTrunks) Move(trunk int, at netip.AddrPort) error { return t.sub.MoveTrunk(trunk, at) }

// Remove implements mesh.Trunks.
func (t memberTrunks) Remove(trunk int) error { return t.sub.RemoveTrunk(trunk) }

// Up implements mesh.Trunks.
func (t memberTrunks) Up(trunk int) (bool, error) { return t.sub.TrunkUp(trunk) }

// mayBeMember returns why a node with these settings can be in no fabric: settings of a laboratory would be of no
// effect there, or part it from the others.
func mayBeMember(c *config.Config, node string) error {
	for _, x := range []struct {
		given     bool
		flag, why string
	}{
		{len(c.Peers) > 0, "--peer", "has trunks by --peer, and members of a fabric find each other by themselves"},
		{c.TrunkKeyFile != "", "--trunk-key-file", "has a key for trunks, and members of a fabric have certificates"},
		{c.StoreListen != "", "--store-listen", "serves its store without authentication, and that of a fabric is for " +
			"its members only"},
		{c.StoreKind() == config.StoreMemory && c.Store != config.StoreAuto, "--store memory",
			"keeps its store in memory, and members of a fabric share one on their disks"},
		{c.StoreKind() == config.StoreMemory && c.Store == config.StoreAuto, "--idle-exit",
			"ends when it is idle, and so keeps its store in memory; members of a fabric share one on their disks"},
		{!c.Fabric, "--fabric=false", "is in no subnet, and a fabric is one"},
	} {
		if x.given {
			return &api.Error{Code: api.CodeInvalid, What: "cannot be in a fabric", Why: node + " " + x.why,
				Fix: "weft down; weft up --detach, without " + x.flag}
		}
	}
	return nil
}

// openTrunks opens the trunks: those to the nodes of --peer, or those of a fabric; without either they have no socket
// until the node founds a fabric.
func (n *Node) openTrunks() (err error) {
	t := subnet.TrunkConfig{Port: uint16(n.cfg.TrunkPort), Name: n.host, Version: buildVersion()}
	if t.Mode, err = seal.ParseMode(n.cfg.TrunkSecurity); err != nil {
		return &api.Error{What: "cannot open the trunks", Why: err.Error(), Fix: "--trunk-security encrypt"}
	}
	if t.Mode != seal.Encrypt {
		t.Trusts = append(t.Trusts, api.Degraded{What: "trunk_security",
			Why: map[seal.Mode]string{seal.Authenticate: "packets on trunks can be read on the network",
				seal.None: "packets on trunks can be read and forged on the network"}[t.Mode],
			Fix: "start the nodes without --trunk-security"})
	}
	if len(n.cfg.Peers) > 0 {
		return n.openPeers(t)
	}
	t.Trust = memberTrust{n.self}
	if name := n.member.Name(); name != "" {
		t.Name, t.Grows = name, true
	} else {
		t.Later = true
	}
	return n.sub.OpenTrunks(t, nil)
}

// openPeers opens the trunks to the nodes of --peer.
func (n *Node) openPeers(t subnet.TrunkConfig) (err error) {
	if t.Trust, err = n.peerTrust(&t); err != nil {
		return err
	}
	peers, err := n.peerAddrs()
	if err != nil {
		return err
	}
	return n.sub.OpenTrunks(t, peers)
}

// peerTrust is what authenticates the nodes of --peer.
func (n *Node) peerTrust(t *subnet.TrunkConfig) (handshake.Trust, error) {
	const what = "cannot open the trunks"
	if n.cfg.TrunkKeyFile == "" && t.Mode != seal.None {
		return nil, &api.Error{What: what, Why: "nothing authenticates the nodes of --peer",
			Fix: "openssl rand -hex 32 > FILE, the same at each node, and --trunk-key-file FILE; or, in a lab, " +
				"--trunk-security none"}
	}
	if n.cfg.TrunkKeyFile == "" {
		t.Trusts = append(t.Trusts, api.Degraded{What: "trunk_trust",
			Why: "nothing authenticates the nodes of --peer: every host with such an address is in the subnet",
			Fix: "openssl rand -hex 32 > FILE; start all nodes with --trunk-key-file FILE"})
		return trust.NewAnyone(n.host, time.Now())
	}
	fix := "openssl rand -hex 32 > " + n.cfg.TrunkKeyFile + ", the same at each node"
	b, err := os.ReadFile(n.cfg.TrunkKeyFile)
	if err != nil {
		return nil, &api.Error{What: what, Why: err.Error(), Fix: fix}
	}
	key, err := trust.ParseKey(b)
	if err != nil {
		return nil, &api.Error{What: what, Why: n.cfg.TrunkKeyFile + ": " + err.Error(), Fix: fix}
	}
	return trust.FromKey(key, n.host, time.Now())
}
