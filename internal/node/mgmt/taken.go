// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"fmt"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm"
)

const (
	// applyWait is how long a command waits until the ports have what it changed. A sweep of a thousand nodes takes
	// less time, and a client waits longer for its answer.
	applyWait = 6 * time.Second
	// applyLook is the interval at which the command compares the ports, and applyRead the interval at which it reads
	// the store again: another change may have replaced its own.
	applyLook = 20 * time.Millisecond
	applyRead = 500 * time.Millisecond
)

// partitionsOf are the partitions of a configuration, as a manager applies them.
func partitionsOf(d *manager.Desired) []sm.Partition {
	return manager.Partitions(&d.Intent, &d.Ethernet)
}

// await waits until the ports of the subnet have the partitions of the store, and returns an error that names a port
// that does not take its own. A port that is not in the subnet is no error: it gets its partitions when it comes. A
// node that is not the master of the subnet waits for nothing.
func (c configuration) await(ctx context.Context) error {
	n := c.n
	if s, err := n.status(); n.manager == nil || err != nil || s.State != "master" {
		return nil
	}
	caller := ctx
	ctx, stop := context.WithTimeout(caller, applyWait)
	defer stop()
	for {
		d, err := n.desired(ctx, "weft pkey list")
		if caller.Err() != nil {
			return caller.Err()
		} else if ctx.Err() != nil {
			return notTaken("the subnet manager has not applied it within " + applyWait.String())
		} else if err != nil {
			return err
		}
		want := partitionsOf(&d)
		for read := time.Now(); time.Since(read) < applyRead && ctx.Err() == nil; {
			t, swept := n.truth()
			if swept && t.AppliedTo(want) {
				return missedPorts(&t)
			}
			// A master has no truth before its first sweep.
			if !swept {
				if s, err := n.status(); err != nil || s.State != "master" {
					return notTaken("another manager became the master of the subnet meanwhile")
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(applyLook):
			}
		}
	}
}

// missedPorts returns an error that names the ports of the subnet with other partitions than they shall have.
func missedPorts(t *manager.Truth) error {
	why, more := "", 0
	for _, x := range sm.KeyDifferences(t.Partitions, t.Topo, t.Manager) {
		if x.Absent {
			continue
		}
		if more++; more > 1 {
			continue
		}
		why = fmt.Sprintf("%s %v keeps its P_Keys", portName(t.Topo, x.Port), x.Port)
		if x.Why != "" {
			why += ": " + x.Why
		}
	}
	if more == 0 {
		return nil
	}
	if more > 1 {
		why += fmt.Sprintf(", and there are %d more differences", more-1)
	}
	return notTaken(why)
}

// notTaken is the error of a change that is in the store, and that ports have not taken.
func notTaken(why string) error {
	return &api.Error{Code: api.CodeNotApplied, What: "the change is stored, and not in force everywhere", Why: why,
		Fix: "weft doctor; weft pkey list"}
}
