// SPDX-License-Identifier: Apache-2.0

// Package ether is Ethernet frames as an IP stack or a guest hands them over,
// before and behind the work that a network adapter would do.
//
// What comes in: frames up to 64 KiB with an Offload, the fields of a
// virtio_net_hdr, from guests and programs that may lie (Offload.Check); frames
// of the network as they arrived. What goes out: what a frame carries (Classify)
// and which flow it belongs to (Info.Hash), checksums, segments cut into frames of the MTU
// (Splitter), and consecutive frames of a flow joined into a segment again (Joiner).
// The VESW ports of package vnic, the virtio-net device, TAP devices and the
// IP interfaces of IPoIB call it, each on its lane, with frames with an Ethernet
// header or bare IP packets.
//
// It must never allocate per frame, change what was lent to it, reorder a flow, or join what
// Splitter would not cut apart again.
package ether

import "encoding/binary"

var (
	be = binary.BigEndian
	le = binary.LittleEndian
)
