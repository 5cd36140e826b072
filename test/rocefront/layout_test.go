// SPDX-License-Identifier: Apache-2.0

package rocefront

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestSizes: the structures have the sizes that the fields of the RFC's text add up to.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		v    any
		size int
	}{
		{Config{}, 6 + 3*2 + 4 + 2*1 + 2 + 4 + 2*4},
		{DeviceAttr{}, 3*8 + 11*4 + 1 + 3 + 14*4},
		{PortAttr{}, 2*4 + 6*4},
		{regUserMR{}, 2*4 + 2*8 + 2*4},
		{ackMR{}, 3 * 4},
		{QPCap{}, 6 * 4},
		{QPInit{}, 4 + 2 + 2 + 2*4 + 6*4 + 4*4},
		{GlobalRoute{}, 16 + 4 + 4},
		{AHAttr{}, 24 + 6 + 10},
		{QPAttr{}, 2*4 + 9 + 7 + 6*4 + 24 + 40 + 4*4},
		{QPState{}, 9 + 7 + 6*4 + 24 + 40 + 4*4},
		{createAH{}, 2*4 + 40},
		{addGID{}, 2 + 3*2 + 16},
		{SGE{}, 8 + 2*4},
		{Completion{}, 8 + 2 + 2 + 6*4 + 3*4},
	} {
		if got := binary.Size(c.v); got != c.size {
			t.Errorf("%T has %d octets, want %d", c.v, got, c.size)
		}
	}
}

// TestSendElement: the fields of struct virtio_rdma_sq_req are where the text puts them.
func TestSendElement(t *testing.T) {
	const (
		union  = 8 + 1 + 1 + 2 + 4
		inline = union + 4*8
		count  = inline + 512
		list   = count + 4 + 3*4
	)
	s := Send{ID: 0x0102030405060708, Opcode: OpWriteImm, Flags: Signaled, Imm: [4]byte{1, 2, 3, 4},
		RemoteAddr: 0x1112131415161718, RKey: 0x21222324, List: []SGE{{1, 2, 3}, {4, 5, 6}}}
	want := make([]byte, list+2*16)
	copy(want, []byte{8, 7, 6, 5, 4, 3, 2, 1, 1, 2, 0, 0, 1, 2, 3, 4,
		0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21})
	want[count] = 2
	want[list], want[list+8], want[list+12] = 1, 2, 3
	want[list+16], want[list+24], want[list+28] = 4, 5, 6
	if got := s.encode(false); !bytes.Equal(want, got) {
		t.Errorf("want %x\ngot  %x", want, got)
	}
	u := Send{Opcode: OpSend, Flags: Inline, RemoteQPN: 0x31, RemoteQKey: 0x41, AH: &AH{Handle: 0x51},
		InlineData: []byte("abc")}
	want = make([]byte, list)
	want[8], want[9] = 2, 8
	want[union], want[union+4], want[union+8] = 0x31, 0x41, 0x51
	copy(want[inline:], "abc")
	want[count] = 3
	if got := u.encode(true); !bytes.Equal(want, got) {
		t.Errorf("want %x\ngot  %x", want, got)
	}
}
