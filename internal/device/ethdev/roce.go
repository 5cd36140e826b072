// SPDX-License-Identifier: Apache-2.0

package ethdev

import (
	"fmt"

	"weft/internal/device/vhost"
	"weft/internal/proto/abi"
)

// RoCE is the other half of a card: a RoCE adapter that shares the socket, the configuration space and the
// control queue of the Ethernet device (virtio RoCE RFC v2). Its rings follow the control queue; the Device
// does not touch them.
type RoCE interface {
	// Limits returns the number of queue pairs and of completion queues. It is constant; any goroutine may call it.
	Limits() (maxQPs, maxCQs uint32)
	// Begin reports each choice of features by the driver, on the lane, before a ring is started with it. first is
	// the number of the first completion ring: it moves if the driver negotiates multiqueue. on is false if the
	// driver did not negotiate ROCE; then there are no RoCE rings and no commands. Front-ends repeat a choice.
	Begin(first int, on bool)
	// Execute executes a command of the class abi.ClassRoCE, on the lane, and returns the answer, the
	// acknowledgement first: at least one octet and at most room, which is positive. command holds class, command code
	// and data; it is a private copy that is valid during the call. behind returns a copy of the n octets of guest
	// memory directly behind the command, valid until the next call of behind, or nil if they are not in the same
	// region of announced memory or if n exceeds MaxPageList.
	Execute(command []byte, room int, behind func(n int) []byte) (answer []byte)
}

// MaxPageList is the most octets of a list of pages: of a region of memory that the driver registers.
const MaxPageList = 8 * abi.MaxRegPages

// maxRoCECommand bounds a command of the RoCE half.
const maxRoCECommand = abi.CtrlHeaderSize + abi.RegUserMRSize + MaxPageList

// roceOffered are the features of a card with both halves: RoCE rings are split rings, and their writes are not
// logged, and later versions of virtio-net gave the numbers of RoCE another meaning together with HOST_USO.
const roceOffered = offered&^(1<<abi.FeaturePacked|1<<abi.FeatureLogAll|1<<abi.FeatureHostUSO) | 1<<abi.FeatureRoCE

// AttachCard is Attach with a RoCE half, which may be nil. The caller passes calls of vhost.Device for rings beyond
// the control queue to the RoCE half.
func (p *Port) AttachCard(s *vhost.Session, half RoCE) (*Device, error) {
	if half != nil {
		qps, cqs := half.Limits()
		if n := cardRings(p.cfg.Pairs, qps, cqs); n > abi.MaxVhostRings {
			return nil, fmt.Errorf("%d rings of %d Ethernet pairs, %d RDMA queue pairs and %d completion queues: "+
				"%d are possible", n, p.cfg.Pairs, qps, cqs, abi.MaxVhostRings)
		}
	}
	return p.attach(s, half)
}

func cardRings(pairs int, qps, cqs uint32) int {
	return abi.Rings{Pairs: pairs, CQs: int(cqs), QPs: int(qps)}.Total()
}

// hasRoCE reports whether the driver negotiated the RoCE half.
func (d *Device) hasRoCE() bool { return d.half != nil && d.has(abi.FeatureRoCE) }

// pairs is the number of Ethernet queue pairs by which rings are counted.
func (d *Device) pairs() int {
	if d.has(abi.FeatureMQ) {
		return d.port.cfg.Pairs
	}
	return 1
}

// begin reports the driver's choice of features to the RoCE half.
func (d *Device) begin() {
	if d.half != nil {
		d.half.Begin(2*d.pairs()+1, d.hasRoCE())
	}
}

// roce passes a command on to the RoCE half, and returns how many octets behind it were read, too.
func (d *Device) roce(command []byte) (answer []byte, read int) {
	answer = d.half.Execute(command, d.chain.WriteLen, func(n int) []byte {
		if n < 0 || n > MaxPageList {
			return nil
		}
		read += n
		at := len(command)
		if cap(d.command) < at+n {
			d.command = make([]byte, at+n)
		}
		if b := d.command[at : at+n]; d.chain.ReadBehind(b) {
			return b
		}
		return nil
	})
	return answer, read
}
