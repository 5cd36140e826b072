// SPDX-License-Identifier: Apache-2.0

// Package vnic is Ethernet over Omni-Path: the ports of virtual Ethernet switches (VESW) behind one
// port of the fabric (docs/notes/vesw.md).
//
// What comes in: configuration of an Ethernet Manager, by the agent in package vema, events of
// interfaces and ports, frames to send, packets received. What goes out: for each frame a Decision
// and, around it, a packet; for each packet a frame or a counted refusal; traps to send; and calls of
// Function and Netdev, the resources of the adapter.
//
// The package has two halves, which share these two interfaces only. Ports, Port and Sender are
// independent of the adapter: they hold the manager's configuration, decide, encapsulate and count.
// Netdevs, Slot and Receiver are the adapter's part: its netdevs, and the VESW and groups that each is
// bound to; they find the netdev of a packet, validate the packet and strip it.
//
// The management goroutine of package node calls Ports, Port, Netdevs and Slot; a lane calls its own
// Senders and Receivers, which read immutable snapshots of the others. The package must never start a
// goroutine, read a clock, allocate or lock per frame, trust a length without a check, or let a frame
// cross from one VESW to another.
package vnic
