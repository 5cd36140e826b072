// SPDX-License-Identifier: Apache-2.0

// Package udpsock holds the shared parts of the links over UDP: non-blocking sockets, batches of
// messages per system call, the control messages that cut and join trains of datagrams, and the
// counters of refused sends.
//
// What comes in: descriptors, socket options, messages laid out by the caller; what goes out: system
// calls. Called by link/roce and link/udp, each from the lane that owns the descriptor. It must never
// block, allocate per message, read a datagram's content, or hold state of its own.
//
// The layout of control messages is that of 64-bit Linux.
package udpsock
