// SPDX-License-Identifier: Apache-2.0

package ethdev

import (
	"weft/internal/proto/ether"
)

// headerLen is the length of virtio_net_hdr of a device that is not a legacy
// one: an ether.Offload and num_buffers.
const headerLen = ether.OffloadLen + 2

// read copies frames out of the transmit rings into room, in turn: each ring gets its share of the
// frames, then the rings with more frames than their share get what the others leave.
func (d *Device) read(frames [][]byte, off []ether.Offload, room []byte) (n int) {
	if d.ctrl != nil {
		d.control(d.ctrl)
	}
	rings, broken := d.tx, false
	d.turn++
	take := func(i, most int) (full bool) {
		v := rings[(d.turn+i)%len(rings)]
		if v.halted {
			return false
		}
		k, rest, err := d.readRing(v, frames[n:n+most], off[n:n+most], room)
		n, room = n+k, rest
		if err != nil {
			d.broken(v, err)
			broken = true
		}
		return err == nil && k == most
	}
	more := false
	for i := range rings {
		left := len(rings) - i
		more = take(i, (len(frames)-n+left-1)/left) || more
	}
	for i := 0; more && i < len(rings) && n < len(frames); i++ {
		take(i, len(frames)-n)
	}
	if broken {
		d.sort()
	}
	return n
}

// maxRefused bounds the elements of a turn that are no frames: a guest that
// posts them faster than they are refused must not keep the lane.
const maxRefused = 64

// readRing fills frames, and returns how many and the memory that is left.
func (d *Device) readRing(v *ring, frames [][]byte, off []ether.Offload, room []byte) (n int, rest []byte, err error) {
	st, c := &d.port.Stats, &d.chain
	many := len(d.rx) > 1
	for refused := 0; n < len(frames) && refused < maxRefused && len(room) >= ether.MaxFrame; {
		ok, err := v.q.Pop(c)
		if err != nil {
			d.publish(v)
			return n, room, err
		}
		if !ok {
			break
		}
		size := c.ReadLen - headerLen
		switch {
		case len(c.Write) > 0:
			st.TxWritable++
			refused++
		case size < ether.HeaderLen:
			st.TxShort++
			refused++
		case size > ether.MaxFrame:
			st.TxLong++
			refused++
		default:
			f := room[:size:size]
			room = room[min((size+63)&^63, len(room)):]
			c.ReadAt(d.header[:], 0)
			c.ReadAt(f, headerLen)
			off[n].Parse(d.header[:])
			frames[n] = f
			n++
			st.TxFrames++
			st.TxBytes += uint64(size)
			if src := [6]byte(f[6:12]); src != d.port.hear.last {
				d.port.heard(src)
			}
			if many {
				in := ether.Classify(f)
				d.steer[flow(f, &in)] = uint8(v.index/2) + 1
			}
		}
		v.q.PushUsed(c.Head, 0)
	}
	d.publish(v)
	return n, room, nil
}

// flow is a number of the flow that a frame belongs to, the same for both
// directions.
func flow(f []byte, in *ether.Info) uint8 {
	if !in.IsIP() {
		return 0
	}
	var h uint32
	addresses := f[in.L3:]
	if in.Kind >= ether.IPv6 {
		addresses = addresses[8:40]
	} else {
		addresses = addresses[12:20]
	}
	for i := 0; i < len(addresses); i += 4 {
		h ^= le.Uint32(addresses[i:])
	}
	if in.L4 != 0 {
		h ^= uint32(le.Uint16(f[in.L4:])^le.Uint16(f[in.L4+2:])) * 0x10001
	}
	return uint8(h * 0x9e3779b1 >> 24)
}
