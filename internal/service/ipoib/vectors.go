// SPDX-License-Identifier: Apache-2.0

package ipoib

// address is an address vector with a count of its users: shadow entries, groups, posted work requests and frames that
// wait for a send slot. The last one that releases it destroys it.
type address struct {
	h    Handle
	refs int
}

// vectorSet is the address vectors of a link.
type vectorSet struct {
	port AddressVectors
	n    int // that exist
}

// make makes an address vector with one user.
func (v *vectorSet) make(a *AH) (*address, error) {
	h, err := v.port.CreateAH(a)
	if err != nil {
		return nil, err
	}
	v.n++
	return &address{h: h, refs: 1}, nil
}

// release removes one user; nil has none.
func (v *vectorSet) release(a *address) {
	if a == nil {
		return
	}
	if a.refs--; a.refs == 0 {
		v.n--
		v.port.DestroyAH(a.h)
	}
}

// maxPendingBytes bounds the octets of all frames that wait in a link, beside the bounds of each queue.
const maxPendingBytes = 16 << 20

// frameBudget counts the octets of all frames that wait in a link. It implements connected.Budget.
type frameBudget struct{ octets int }

// Reserve counts octets of frames that will wait; false where they would be too many.
func (b *frameBudget) Reserve(n int) bool {
	if b.octets+n > maxPendingBytes {
		return false
	}
	b.octets += n
	return true
}

// Release undoes a Reserve.
func (b *frameBudget) Release(n int) { b.octets -= n }
