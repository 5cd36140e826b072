// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"slices"
	"time"

	"weft/internal/control/api"
)

// offices are what one node of a fabric does for all: the lead of the store, and the management of the subnet.
type offices struct{ n *Network }

// FirstVoter reports whether a node has the replica that leads the store, or no replica can: where the store is an etcd
// elsewhere each node is a first one.
func FirstVoter(n *Network) bool { return n.storeMember == nil || n.storeMember.Part().Leads }

// passOn ends the manager of a node that is about to end. In a fabric of members another node has both offices when it
// returns, while the trunks of this one are up: without a master nothing leads traffic around a node that has ended.
func (o offices) passOn() {
	if o.n.storeMember != nil {
		o.n.storeMember.Yield() // first, since the election of the next master is in the store
	}
	if o.n.manager != nil {
		succeeded := o.succession()
		o.n.manager.Close()
		succeeded()
	}
}

// successionTime bounds the wait for the next master.
const successionTime = 2 * time.Second

// succession returns a function that waits until another manager manages this node. Where this node is not the master,
// or no other can be, it does not wait.
func (o offices) succession() (wait func()) {
	own := o.n.cfg.ManagedBy()
	s, err := o.n.status()
	if own == 0 || err != nil || s.State != "master" || o.n.storeMember == nil || o.n.storeMember.Part().Voters < 3 ||
		!o.connected() {
		return func() {}
	}
	return func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(successionTime); o.n.cfg.ManagedBy() == own && time.Now().Before(end); {
			<-tick.C
		}
	}
}

// connected reports whether a trunk of the node is up.
func (o offices) connected() bool {
	list, err := o.n.sub.Trunks(o.n.cfg.Wall)
	return err == nil && slices.ContainsFunc(list, func(t api.Trunk) bool { return t.Up })
}
