// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"bytes"
	"testing"
)

// TestSetMAD checks the valid lengths of the MAD of a datagram, and that SetMAD replaces all of the one before.
func TestSetMAD(t *testing.T) {
	for _, c := range []struct {
		version uint8
		n       int
		ok      bool
	}{
		{BaseVersion, Len, true}, {BaseVersion, Len - 4, false}, {BaseVersion, Len + 4, false}, {BaseVersion, OPALen,
			false}, {BaseVersion, 0, false},
		{OPABaseVersion, OPALen, true}, {OPABaseVersion, VEMATrapLen, true}, {OPABaseVersion, HeaderLen,
			true}, {OPABaseVersion, Len, true},
		{OPABaseVersion, HeaderLen - 4, false}, {OPABaseVersion, OPALen + 4, false}, {OPABaseVersion, OPALen - 2,
			false}, {OPABaseVersion, 0, false},
		{2, OPALen, false}, {2, Len, true}, // the agents of other versions validate them
	} {
		b := bytes.Repeat([]byte{0x3c}, c.n)
		if c.n > 0 {
			b[0] = c.version
		}
		d := Datagram{Data: [Len]byte(bytes.Repeat([]byte{0xa5}, Len)), Long: []byte{1}}
		if ok := d.SetMAD(b); ok != c.ok {
			t.Errorf("%d octets of version %#x: %v", c.n, c.version, ok)
		} else if !ok && (len(d.Long) != 1 || d.Data[7] != 0xa5) {
			t.Errorf("%d octets of version %#x: changed", c.n, c.version)
		}
		if !c.ok {
			continue
		}
		k := min(c.n, Len)
		if !bytes.Equal(d.Data[:k], b[:k]) || bytes.ContainsFunc(d.Data[k:], func(r rune) bool { return r != 0 }) {
			t.Errorf("%d octets of version %#x: data % x", c.n, c.version, d.Data)
		}
		if !bytes.Equal(d.MAD(), b) || (d.Long != nil) != (c.version == OPABaseVersion) {
			t.Errorf("%d octets of version %#x: MAD % x", c.n, c.version, d.MAD())
		}
		b[1]++
		if d.MAD()[1] == b[1] {
			t.Error("aliases what it was made of")
		}
	}
}
