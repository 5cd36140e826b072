// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"time"

	"weft/internal/host/sysfs"
	"weft/internal/node/lane"
	"weft/internal/node/loop"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/verbs/hca"
)

// The counters in files are written every countersPeriod. A value with more digits than the one before takes two
// periods, so that values are never older than countersLifespan while the lanes run.
const (
	countersPeriod   = 400 * time.Millisecond
	countersLifespan = time.Second
)

// pmaFiles are the files of counters that performance management reports, with the kernel's names
// (drivers/infiniband/core/sysfs.c).
var pmaFiles = []struct {
	name  string
	value func(c *subnet.Counted) uint64
}{
	{"symbol_error", pmaValue(mad.CounterSymbolErrors)},
	{"link_error_recovery", pmaValue(mad.CounterLinkErrorRecovery)},
	{"link_downed", pmaValue(mad.CounterLinkDowned)},
	{"port_rcv_errors", pmaValue(mad.CounterRcvErrors)},
	{"port_rcv_remote_physical_errors", pmaValue(mad.CounterRcvRemotePhysErrors)},
	{"port_rcv_switch_relay_errors", pmaValue(mad.CounterRcvSwitchRelayErrors)},
	{"port_xmit_discards", pmaValue(mad.CounterXmitDiscards)},
	{"port_xmit_constraint_errors", pmaValue(mad.CounterXmitConstraintErrors)},
	{"port_rcv_constraint_errors", pmaValue(mad.CounterRcvConstraintErrors)},
	{"local_link_integrity_errors", pmaValue(mad.CounterLocalLinkIntegrity)},
	{"excessive_buffer_overrun_errors", pmaValue(mad.CounterBufferOverrun)},
	{"VL15_dropped", pmaValue(mad.CounterVL15Dropped)},
	{"port_xmit_wait", pmaValue(mad.CounterXmitWait)},
	{"port_xmit_data", func(c *subnet.Counted) uint64 { return c.Extended.XmitData }},
	{"port_rcv_data", func(c *subnet.Counted) uint64 { return c.Extended.RcvData }},
	{"port_xmit_packets", func(c *subnet.Counted) uint64 { return c.Extended.XmitPkts }},
	{"port_rcv_packets", func(c *subnet.Counted) uint64 { return c.Extended.RcvPkts }},
	{"unicast_xmit_packets", func(c *subnet.Counted) uint64 { return c.Extended.UnicastXmit }},
	{"unicast_rcv_packets", func(c *subnet.Counted) uint64 { return c.Extended.UnicastRcv }},
	{"multicast_xmit_packets", func(c *subnet.Counted) uint64 { return c.Extended.MulticastXmit }},
	{"multicast_rcv_packets", func(c *subnet.Counted) uint64 { return c.Extended.MulticastRcv }},
}

// pmaValue returns the function that reads a counter of PortCounters.
func pmaValue(k mad.Counter) func(c *subnet.Counted) uint64 {
	return func(c *subnet.Counted) uint64 { return c.Counters.Values[k] }
}

// portFiles are the files of counters of a port. counted is nil for an Ethernet port: no performance management reports
// it, and the packets and the data are those of its queue pairs.
func portFiles(qps *hca.QPCounters, counted *subnet.Counted) (c sysfs.PortCounters) {
	c.Lifespan = uint64(countersLifespan.Milliseconds())
	if counted != nil {
		for _, f := range pmaFiles {
			c.Common = append(c.Common, sysfs.Counter{Name: f.name, Value: f.value(counted)})
		}
	} else {
		c.Common = []sysfs.Counter{
			{Name: "port_xmit_data", Value: qps.SentOctets / 4},
			{Name: "port_rcv_data", Value: qps.RcvdOctets / 4},
			{Name: "port_xmit_packets", Value: qps.SentPackets},
			{Name: "port_rcv_packets", Value: qps.RcvdPackets},
		}
	}
	c.Hardware = []sysfs.Counter{ // names of rdma_rxe (drivers/infiniband/sw/rxe/rxe_hw_counters.c)
		{Name: "sent_pkts", Value: qps.SentPackets},
		{Name: "rcvd_pkts", Value: qps.RcvdPackets},
		{Name: "duplicate_request", Value: qps.DuplicateRequest},
		{Name: "out_of_seq_request", Value: qps.OutOfSequence},
		{Name: "rcvd_rnr_err", Value: qps.RNRNakRcvd},
		{Name: "send_rnr_err", Value: qps.RNRNakSent},
		{Name: "rcvd_seq_err", Value: qps.SeqNakRcvd},
		{Name: "retry_exceeded_err", Value: qps.RetryExceeded},
		{Name: "retry_rnr_exceeded_err", Value: qps.RNRRetryExceeded},
	}
	return c
}

// counters returns what the files of the port of a function have, zeros before the first refreshCounters; mu is held.
func (t *portTree) counters(f *function) sysfs.PortCounters {
	if c, ok := t.written[f.a]; ok {
		return c
	}
	var counted *subnet.Counted
	if f.a.Port().Link == ib.LinkInfiniBand {
		counted = &subnet.Counted{}
	}
	return portFiles(&hca.QPCounters{}, counted)
}

// refreshCounters writes the counters of all ports that changed.
func (t *portTree) refreshCounters(all []hca.FunctionCounters, counted map[uint16]subnet.Counted) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var failed error
	for _, f := range t.functions.all() {
		n := int(f.a.Number())
		if _, ok := t.written[f.a]; !ok {
			continue
		}
		var qps hca.QPCounters
		if n < len(all) {
			qps = all[n].QPs
		}
		var c *subnet.Counted
		if f.a.Port().Link == ib.LinkInfiniBand {
			k, ok := counted[f.a.Number()]
			if !ok {
				continue // its port is about to be plugged in, or was just unplugged
			}
			c = &k
		}
		files, now := t.written[f.a], portFiles(&qps, c)
		if err := sysfs.UpdateCounters(t.dir(), f.a.Name, 1, &files, &now); err != nil {
			failed = err
		}
	}
	return failed
}

// followCounters keeps the counters in the tree of files up to date until ctx ends.
func (n *Node) followCounters(ctx context.Context) {
	tick := time.NewTicker(countersPeriod)
	defer tick.Stop()
	reported := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := n.refreshCounters()
		switch {
		case err == nil:
			reported = false
		case errors.Is(err, lane.ErrStuck), errors.Is(err, loop.ErrStopped), reported:
			// weft status names a lane that is stuck. The files keep the last counts.
		default:
			n.log.Warn("the counters in the tree of files for programs are out of date", "err", err)
			reported = true
		}
	}
}

func (n *Node) refreshCounters() error {
	all, err := n.lanes.Counters()
	if err != nil {
		return err
	}
	var counted map[uint16]subnet.Counted
	if n.sub != nil {
		if counted, err = subnet.AllCounted(n.sub, all); err != nil {
			return err
		}
	}
	return n.tree.refreshCounters(all, counted)
}
