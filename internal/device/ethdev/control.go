// SPDX-License-Identifier: Apache-2.0

package ethdev

import (
	"slices"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
)

// Commands of the control queue (virtio 1.x, 5.1.6.5), by class.
const (
	rxPromisc  = 0
	rxAllMulti = 1
	rxAllUni   = 2
	rxNoMulti  = 3
	rxNoUni    = 4
	rxNoBcast  = 5

	macTableSet = 0
	macAddrSet  = 1

	vlanAdd = 0
	vlanDel = 1

	announceAck = 0

	mqPairsSet = 0

	offloadsSet = 0
)

// maxTable bounds each list of MAC addresses, maxCommand a command with two of them. What is behind maxCommand octets
// of another command is a part of no structure.
const (
	maxTable   = 64
	maxCommand = abi.CtrlHeaderSize + 2*(4+6*maxTable)
)

// A turn spends ctrlBudget on control commands: a command costs ctrlCost and its octets. A driver that posts
// commands faster than they execute must not keep the lane. What the last command of a turn costs beyond the budget is
// paid by the turns behind it: others get as much of the lane as between small commands.
const (
	ctrlBudget = 64 << 10
	ctrlCost   = 4 << 10
)

// control executes commands of the front-ends that hand their control queue over, in order; QEMU's own virtio-net and
// DPDK keep it. Commands beyond the budget are left to the next turn.
func (d *Device) control(v *ring) {
	c, spent := &d.chain, d.overspent
	for spent < ctrlBudget {
		ok, err := v.q.Pop(c)
		if err != nil {
			d.broken(v, err)
			d.sort()
			break
		}
		if !ok {
			break
		}
		d.port.Stats.Commands++
		answer, n := d.answer(c)
		spent += ctrlCost + n
		if d.dead {
			return // the command ended the session
		}
		if len(answer) == 0 || answer[0] != abi.AckOK {
			d.port.Stats.CommandErrors++
		}
		v.q.PushUsed(c.Head, uint32(c.WriteAt(answer, 0)))
	}
	d.overspent = max(0, spent-ctrlBudget)
	d.publish(v)
}

// answer executes the command in c and returns the answer, nil if there is no room for it, and how many octets were
// read for it.
func (d *Device) answer(c *virtio.Chain) (answer []byte, n int) {
	if c.WriteLen == 0 {
		return nil, 0
	}
	most := maxCommand
	if d.hasRoCE() {
		most = maxRoCECommand
	}
	n = min(c.ReadLen, most)
	if cap(d.command) < n {
		d.command = make([]byte, n)
	}
	b := d.command[:n]
	c.ReadAt(b, 0)
	if d.hasRoCE() && n >= abi.CtrlHeaderSize && b[0] == abi.ClassRoCE {
		answer, behind := d.roce(b)
		return answer, n + behind
	}
	d.ack[0] = d.execute(b)
	return d.ack[:], n
}

// execute validates and executes one command.
func (d *Device) execute(b []byte) (ack uint8) {
	if len(b) < abi.CtrlHeaderSize {
		return abi.AckErr
	}
	class, command, data := b[0], b[1], b[abi.CtrlHeaderSize:]
	ok := false
	switch class {
	case abi.ClassRX:
		ok = command <= rxNoBcast && len(data) >= 1 && d.has(abi.FeatureCtrlRX) &&
			(command < rxAllUni || d.has(abi.FeatureCtrlRXExtra))
		if ok {
			d.filter.set(command, data[0] != 0)
		}
	case abi.ClassMAC:
		switch {
		case command == macAddrSet && len(data) >= 6 && data[0]&1 == 0 && d.has(abi.FeatureCtrlMACAddr):
			d.port.setMAC([6]byte(data[:6]))
			ok = true
		case command == macTableSet && d.has(abi.FeatureCtrlRX):
			uni, rest, ok1 := macTable(data)
			multi, _, ok2 := macTable(rest)
			if ok = ok1 && ok2; ok {
				d.filter.on, d.filter.unicast, d.filter.multicast = true, uni, multi
				d.port.hear.unicast, d.port.hear.multicast = uni, multi
				d.port.notify()
			}
		}
	case abi.ClassVLAN:
		// Every frame of the switch passes; a filter is a promise to the best of
		// the device's ability.
		ok = command <= vlanDel && len(data) >= 2 && le.Uint16(data) < 4096 && d.has(abi.FeatureCtrlVLAN)
	case abi.ClassAnnounce:
		ok = command == announceAck && d.has(abi.FeatureGuestAnnounce)
	case abi.ClassMQ:
		if command == mqPairsSet && len(data) >= 2 && d.has(abi.FeatureMQ) {
			if n := int(le.Uint16(data)); n >= 1 && n <= d.port.cfg.Pairs {
				d.active = n
				d.sort()
				ok = true
			}
		}
	case abi.ClassGuestOffloads:
		if command == offloadsSet && len(data) >= 8 && d.has(abi.FeatureCtrlGuestOffloads) {
			// For a driver without ROCE support bit 55 is GUEST_USO6. The device never hands over such frames.
			mask := le.Uint64(data)
			if ok = mask&^(guestOffloads|1<<abi.FeatureRoCE) == 0 && mask&^d.features == 0; ok {
				d.takes = taken(mask)
			}
		}
	}
	if !ok {
		return abi.AckErr
	}
	return abi.AckOK
}

func (d *Device) has(bit int) bool { return d.features&(1<<bit) != 0 }

// macTable reads a list of addresses from the front of b.
func macTable(b []byte) (list [][6]byte, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := le.Uint32(b)
	if n > maxTable || uint64(len(b)-4) < 6*uint64(n) {
		return nil, nil, false
	}
	for i := range int(n) {
		list = append(list, [6]byte(b[4+6*i:]))
	}
	return list, b[4+6*n:], true
}

// filter is the receive filter of a driver that set one.
type filter struct {
	on                 bool // otherwise all frames pass
	mode               uint8
	unicast, multicast [][6]byte // beyond the address of the card
}

func (f *filter) set(command uint8, on bool) {
	f.on = true
	f.mode &^= 1 << command
	if on {
		f.mode |= 1 << command
	}
}

func (f *filter) is(command uint8) bool { return f.mode>>command&1 != 0 }

// passes reports whether the filter accepts a frame.
func (f *filter) passes(frame []byte, own [6]byte) bool {
	if f.is(rxPromisc) {
		return true
	}
	to := [6]byte(frame)
	switch {
	case to == [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}:
		return !f.is(rxNoBcast)
	case to[0]&1 != 0:
		return !f.is(rxNoMulti) && (f.is(rxAllMulti) || slices.Contains(f.multicast, to))
	}
	return !f.is(rxNoUni) && (f.is(rxAllUni) || to == own || slices.Contains(f.unicast, to))
}
