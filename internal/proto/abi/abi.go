// SPDX-License-Identifier: Apache-2.0

// Package abi is the byte layouts of the device socket: vhost-user requests of Weft, control commands, ring elements,
// completions, events. docs/notes/abi.md is the contract; the layouts of commands 0 to 17 and of the elements are those
// of the virtio RoCE RFC v2.
//
// What comes in: bytes of a program or guest, already copied out of shared memory; what goes out: structs, and bytes
// again. rdmadev and vhost call it, and the driver of the tests. It must never read shared memory twice, hold an
// object, or decide anything except for lengths.
//
// One schema, in gen, produces the Go codecs and shim/weft_abi.h.
package abi

//go:generate go run ./gen -dir . -header ../../../shim/weft_abi.h

import (
	"errors"
	"fmt"
)

// ErrLength is returned if the length of the bytes is not that of the structure. A caller that accepts a longer request
// truncates it first.
var ErrLength = errors.New("wrong length")

func lengthError(what string, got, want int) error {
	return fmt.Errorf("%s of %d bytes, want %d: %w", what, got, want, ErrLength)
}
