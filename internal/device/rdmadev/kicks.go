// SPDX-License-Identifier: Apache-2.0

package rdmadev

import "slices"

// kicks are the notifications of a ring by its driver, each of which costs an exit of a guest. A ring has them enabled
// until one comes. From then on the device looks at the ring each turn, without kicks, until nothing was posted for a
// while or the lane sleeps. A program has a doorbell instead.
type kicks struct {
	polled bool   // it is in Device.polled
	still  bool   // the device never waits for an element of the ring: no kick is needed
	seen   uint16 // the driver's index, when it was looked at last
	rest   int    // turns since an element was posted
}

// restTurns is how many turns a ring is polled in vain: less than a lane spins before it sleeps.
const restTurns = 128

// await enables kicks of a ring from the next element on, unless it needs none.
func (r *ring) await() {
	switch {
	case r.d.cfg.Verbs || r.vq == nil:
	case r.kicks.still:
		r.vq.DisableKick()
	default:
		for r.kicks.seen = r.vq.Index(); r.vq.EnableKickAt(r.kicks.seen); {
			r.kicks.seen = r.vq.Index()
		}
	}
}

// needNone has a ring without kicks.
func (r *ring) needNone() {
	r.kicks.still = true
	r.await()
}

// poll has a ring looked at each turn, without kicks. The caller looks at the ring once more.
func (r *ring) poll() {
	if k := &r.kicks; !k.polled && !k.still && !r.d.cfg.Verbs && r.index != ownControl(&r.d.cfg) {
		k.polled, k.rest = true, 0
		r.d.polled = append(r.d.polled, r)
		r.vq.DisableKick()
		k.seen = r.vq.Index()
	}
}

// polledRings are looked at each turn.
type polledRings []*ring

// remove undoes poll, and leaves kicks as they are.
func (p *polledRings) remove(r *ring) {
	if r.kicks.polled {
		r.kicks.polled = false
		*p = slices.DeleteFunc(*p, func(o *ring) bool { return o == r })
	}
}

// look looks at the rings, and reports whether elements were posted to one of them.
func (p *polledRings) look() (busy bool) {
	for i := 0; i < len(*p); i++ {
		r := (*p)[i]
		k := &r.kicks
		if now := r.vq.Index(); now != k.seen {
			k.seen, k.rest, busy = now, 0, true
			r.posted()
		} else if k.rest++; k.rest >= restTurns && r.release() {
			*p = slices.Delete(*p, i, i+1)
			i--
		}
	}
	return busy
}

// await enables the kicks of all, and reports whether elements were posted to one of them: that one stays polled, and
// the lane must not sleep.
func (p *polledRings) await() (posted bool) {
	*p = slices.DeleteFunc(*p, (*ring).release)
	return len(*p) > 0
}

// release enables kicks of a ring that is polled. It returns false if an element was posted meanwhile: the ring stays
// polled, without kicks.
func (r *ring) release() bool {
	if r.vq.EnableKickAt(r.kicks.seen) {
		r.vq.DisableKick()
		return false
	}
	r.kicks.polled = false
	return true
}

// ownControl is the number of the control queue of a device that has one, else of no ring.
func ownControl(c *Config) uint32 {
	if c.FirstRing == 0 {
		return ctrlRing
	}
	return ^uint32(0)
}
