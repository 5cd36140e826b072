// SPDX-License-Identifier: Apache-2.0

// Package abi is the door's byte layouts: vhost-user requests of our own,
// control commands, ring elements, completions, events. docs/notes/abi.md is
// the contract; the layouts of commands 0 to 17 and of the elements are those
// of the virtio RoCE RFC v2.
//
// What comes in: bytes of a program or guest, already copied out of shared
// memory; what goes out: structs, and bytes again. rdmadev and vhost call it,
// and the tests' driver. It must never touch shared memory twice, know an
// object, or decide anything beyond length.
//
// One schema, in gen, produces the Go codecs and shim/weft_abi.h.
package abi

//go:generate go run ./gen -header ../../shim/weft_abi.h
