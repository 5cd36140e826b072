// SPDX-License-Identifier: Apache-2.0

// Package udpsock is what the links over UDP share: non-blocking sockets,
// batches of messages per system call, and the control messages that cut and
// join trains of datagrams.
//
// What comes in: descriptors, socket options, messages laid out by the
// caller; what goes out: system calls. Called by link/roce and link/udp, each
// from the lane that owns the descriptor. It must never block, allocate per
// message, look into a datagram, or keep state of its own.
//
// The layout of control messages is that of 64-bit Linux.
package udpsock
