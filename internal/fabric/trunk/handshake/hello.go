// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"encoding/binary"
	"errors"
	"fmt"

	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/ib"
)

var be = binary.BigEndian

const (
	helloLen  = 30  // of the fixed fields
	maxString = 128 // of a name or version, in octets
)

// Hello is what one end states of itself in a handshake, as the QUIC transport parameters of TLS: the peer believes
// it once the handshake is complete.
type Hello struct {
	Mode seal.Mode // the weakest that this end accepts
	// Limit is the size of the largest datagram that this end's path to the peer takes, in octets of UDP payload.
	Limit int
	Epoch uint64 // of this end of the trunk: random, new with each start
	// Generation numbers the handshakes that this end began with the peer; 0 of the end that did not begin.
	Generation    uint32
	Node          ib.GUID
	Name, Version string // of the node, of its software
}

// Append appends the encoding of h to b.
func (h *Hello) Append(b []byte) []byte {
	b = append(b, 1, byte(h.Mode), 0, 0)
	b = be.AppendUint32(b, uint32(h.Limit))
	b = be.AppendUint64(b, h.Epoch)
	b = be.AppendUint32(b, h.Generation)
	b = be.AppendUint64(b, uint64(h.Node))
	for _, s := range []string{h.Name, h.Version} {
		s = s[:min(len(s), maxString)]
		b = append(append(b, byte(len(s))), s...)
	}
	return b
}

// Parse decodes and validates a hello. Octets behind it are ignored: later versions may add some.
func (h *Hello) Parse(b []byte) error {
	if len(b) < helloLen {
		return errors.New("the hello is cut")
	}
	*h = Hello{Mode: seal.Mode(b[1]), Limit: int(be.Uint32(b[4:])), Epoch: be.Uint64(b[8:]),
		Generation: be.Uint32(b[16:]),
		Node:       ib.GUID(be.Uint64(b[20:]))}
	format := b[0]
	b = b[helloLen-2:]
	for _, s := range []*string{&h.Name, &h.Version} {
		if len(b) == 0 || int(b[0]) > maxString || len(b) <= int(b[0]) {
			return errors.New("the hello is cut")
		}
		*s = string(b[1 : 1+b[0]])
		b = b[1+b[0]:]
		for _, c := range []byte(*s) {
			if c < ' ' || c > '~' {
				return fmt.Errorf("the hello has octet %#02x in a name", c)
			}
		}
	}
	switch {
	case format != 1:
		return fmt.Errorf("the hello has format %d, not 1", format)
	case h.Mode >= seal.NumModes:
		return fmt.Errorf("the hello has mode %d", h.Mode)
	case h.Limit < 1 || h.Limit > 65535:
		return fmt.Errorf("the hello has a limit of %d octets", h.Limit)
	case h.Epoch == 0 || h.Node == 0:
		return errors.New("the hello lacks node or epoch")
	}
	return nil
}
