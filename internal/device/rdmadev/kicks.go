// SPDX-License-Identifier: Apache-2.0

package rdmadev

import "slices"

// kicks are the notifications of a ring by its driver, each of which costs an exit of a guest. A ring has them enabled
// until one comes. From then on the device looks at the ring each turn, without kicks, until nothing was posted for a
// while or the lane sleeps. A program has a doorbell instead.
type kicks struct {
	polled  bool   // it is in Device.polled
	enabled bool   // … and kicks are enabled: it is polled a little longer (release)
	still   bool   // the device never waits for an element of the ring: no kick is needed
	seen    uint16 // the driver's index, when it was looked at last
	rest    int    // turns since an element was posted
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
		k.polled, k.enabled, k.rest = true, false, 0
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
			r.resume(now)
			busy = true
			r.posted()
		} else if k.rest++; k.rest >= restTurns && r.release() {
			*p = slices.Delete(*p, i, i+1)
			i--
		}
	}
	return busy
}

// await ends the polling of all rings. It reports whether one must be looked at again: the lane must not sleep yet.
func (p *polledRings) await() (again bool) {
	*p = slices.DeleteFunc(*p, (*ring).release)
	return len(*p) > 0
}

// release ends the polling of a ring, in two steps, and returns true after the second one: the first enables kicks, the
// second, some turns of the lane later, looks once more. An emulator of a guest with one processor makes no barriers of
// the guest's: there the driver may have decided against a kick before its index could be seen.
func (r *ring) release() bool {
	k := &r.kicks
	switch {
	case r.vq.Index() != k.seen:
		return false // look finds it
	case k.enabled:
		k.polled = false
		return true
	}
	k.enabled, k.rest = true, 0
	r.vq.EnableKickAt(k.seen)
	return false
}

// resume continues the polling of a ring up to the driver's index now.
func (r *ring) resume(now uint16) {
	k := &r.kicks
	if k.seen, k.rest = now, 0; k.enabled {
		k.enabled = false
		r.vq.DisableKick()
	}
}

// ownControl is the number of the control queue of a device that has one, else of no ring.
func ownControl(c *Config) uint32 {
	if c.FirstRing == 0 {
		return ctrlRing
	}
	return ^uint32(0)
}
