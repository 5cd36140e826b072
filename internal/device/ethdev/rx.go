// SPDX-License-Identifier: Apache-2.0

package ethdev

import (
	"encoding/binary"

	"weft/internal/device/virtio"
	"weft/internal/proto/ether"
)

var le = binary.LittleEndian

// write copies frames into the guest's buffers and publishes them once per
// ring.
func (d *Device) write(frames [][]byte, off []ether.Offload) (dropped int) {
	broken := false
	for i, f := range frames {
		v := d.ringFor(f)
		if v == nil {
			d.port.Stats.RxNoQueue++
			dropped++
			continue
		}
		if d.filter.on && !d.filter.passes(f, d.port.hear.own) {
			d.port.Stats.RxFiltered++
			continue // the filter dropped it
		}
		ok, err := d.put(v, f, off[i])
		if !ok {
			dropped++
		}
		if err != nil {
			d.broken(v, err)
			d.sort()
			broken = true
		}
	}
	for _, v := range d.rx {
		if v.touched {
			v.touched = false
			d.publish(v)
		}
	}
	if broken {
		// What was given to a ring before it broke is the guest's nevertheless.
		for _, v := range d.rings {
			if v != nil && v.touched {
				v.touched = false
				d.publish(v)
			}
		}
	}
	return dropped
}

// ringFor chooses the receive ring of a frame: the one of the queue pair that
// the flow was last sent on, so that both directions meet the same processor.
func (d *Device) ringFor(f []byte) *ring {
	switch len(d.rx) {
	case 0:
		return nil
	case 1:
		return d.rx[0]
	}
	in := ether.Classify(f)
	n := flow(f, &in)
	if pair := int(d.steer[n]); pair > 0 && (d.active == 0 || pair <= d.active) {
		if v := d.rings[2*(pair-1)]; v != nil && v.Enabled && !v.halted {
			return v
		}
	}
	return d.rx[int(n)%len(d.rx)]
}

// allowed reports whether the guest accepts a frame with o.
func (d *Device) allowed(o *ether.Offload) bool {
	want := ether.Features(0)
	if o.Flags&ether.NeedsCsum != 0 {
		want = ether.FeatureCsum
	}
	switch o.Kind() {
	case ether.GSONone:
	case ether.GSOTCPv4:
		want |= ether.FeatureTSO4
	case ether.GSOTCPv6:
		want |= ether.FeatureTSO6
	default:
		return false
	}
	if o.GSO&ether.GSOECN != 0 {
		want |= ether.FeatureECN
	}
	return d.takes&want == want
}

// put copies one frame into buffers of a ring: one, or as many as it needs
// where the driver takes such. All of them are found before any is written, and
// those of a frame that found too few wait for the next.
func (d *Device) put(v *ring, f []byte, o ether.Offload) (ok bool, err error) {
	st := &d.port.Stats
	if !d.allowed(&o) {
		st.RxOffload++
		return false, nil
	}
	if d.takes&ether.FeatureCsum == 0 {
		o.Flags = 0
	}
	need, n := headerLen+len(f), 0
	for room := 0; room < need; n++ {
		if n > 0 && !d.mergeable || n == int(v.Num) {
			st.RxTooLong++
			return false, nil
		}
		if n == v.have {
			if n == len(v.stash) {
				v.stash = append(v.stash, virtio.Chain{})
			}
			c := &v.stash[n]
			got, err := v.q.Pop(c)
			if err != nil {
				return false, err
			}
			if !got {
				st.RxNoBuffer++
				return false, nil
			}
			if len(c.Read) > 0 {
				return false, virtio.FaultDirection
			}
			if c.WriteLen < headerLen {
				return false, virtio.FaultLength
			}
			v.have++
		}
		room += v.stash[n].WriteLen
	}
	o.Put(d.header[:])
	le.PutUint16(d.header[ether.OffloadLen:], uint16(n))
	first := &v.stash[0]
	first.WriteAt(d.header[:], 0)
	rest := f[first.WriteAt(f, headerLen):]
	v.q.PushUsed(first.Head, uint32(headerLen+len(f)-len(rest)))
	for i := 1; i < n; i++ {
		c := &v.stash[i]
		k := c.WriteAt(rest, 0)
		v.q.PushUsed(c.Head, uint32(k))
		rest = rest[k:]
	}
	// The memory of the lists stays with the ring.
	for i := n; i < v.have; i++ {
		v.stash[i-n], v.stash[i] = v.stash[i], v.stash[i-n]
	}
	v.have -= n
	v.touched = true
	st.RxFrames++
	st.RxBytes += uint64(len(f))
	return true, nil
}
