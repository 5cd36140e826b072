// SPDX-License-Identifier: Apache-2.0

// Package seal is the record layer of trunks: it encrypts or authenticates one datagram with AES-128-GCM, in place
// (docs/notes/trunk.md, Sealing; NIST SP 800-38D; RFC 8446 section 5.3 for the nonce).
//
// What comes in: a traffic secret of a handshake, datagrams with their header, and a counter; what goes out: sealed
// datagrams, and the plaintext of genuine ones. A Batch of package trunk seals, its Core opens. The package never
// allocates per datagram, chooses no counter, and keeps no replay window: the caller must use each counter once under
// a key, and must refuse one that it accepted before.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync/atomic"
)

var be = binary.BigEndian

// Magic and Version begin every datagram of a trunk: an octet, and the high four bits of the next one.
const (
	Magic   = 0x57
	Version = 2
)

// Sizes in octets.
const (
	// HeaderLen is the part of a header that this package writes or reads: index at IndexOff, counter at CounterOff.
	// Longer headers are authenticated whole.
	HeaderLen  = 16
	IndexOff   = 4
	CounterOff = 8
	// TagLen is the length of the authentication tag behind a datagram.
	TagLen = 16
	// MaxHeader bounds a header.
	MaxHeader = 32
	keyLen    = 16
	ivLen     = 12
)

// Mode is what is done to packets. The zero value is the strongest; of two ends, the smaller value counts at both.
type Mode uint8

// Modes.
const (
	Encrypt      Mode = iota // contents are secret and genuine
	Authenticate             // contents are readable, and genuine: GMAC
	None                     // neither
	NumModes
)

var modes = [NumModes]string{"encrypt", "authenticate", "none"}

// String returns the name of m in settings and output.
func (m Mode) String() string {
	if m < NumModes {
		return modes[m]
	}
	return "unknown"
}

// ParseMode returns the mode with a name.
func ParseMode(name string) (Mode, error) {
	for m, s := range modes {
		if s == name {
			return Mode(m), nil
		}
	}
	return 0, fmt.Errorf("%q is no mode: encrypt, authenticate or none", name)
}

// Overhead is the number of octets that m adds to a datagram.
func (m Mode) Overhead() int {
	if m == None {
		return 0
	}
	return TagLen
}

// Key seals or opens the datagrams of one direction of a session. It is immutable but for its use count; goroutines
// may share it.
type Key struct {
	aead  cipher.AEAD
	iv    [ivLen]byte
	index uint32
	used  atomic.Uint64
}

// NewKey derives a key from a traffic secret of TLS 1.3, of 32 octets or more, by HKDF-Expand-Label with SHA-256 (RFC
// 8446 section 7.1) and labels of its own, as QUIC does (RFC 9001 section 5.1). index is the session index that the
// receiver chose, which every datagram bears. The secret is not kept.
func NewKey(secret []byte, index uint32) (*Key, error) {
	if len(secret) < sha256.Size {
		return nil, fmt.Errorf("a traffic secret of %d octets is too short", len(secret))
	}
	key, err := expand(secret, "weft trunk key", keyLen)
	if err != nil {
		return nil, err
	}
	iv, err := expand(secret, "weft trunk iv", ivLen)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	clear(key)
	if err != nil {
		return nil, err
	}
	k := &Key{index: index}
	copy(k.iv[:], iv)
	clear(iv)
	k.aead, err = cipher.NewGCM(block)
	return k, err
}

// expand is HKDF-Expand-Label with an empty context.
func expand(secret []byte, label string, n int) ([]byte, error) {
	label = "tls13 " + label
	info := be.AppendUint16(nil, uint16(n))
	info = append(info, byte(len(label)))
	info = append(info, label...)
	return hkdf.Expand(sha256.New, secret, string(append(info, 0)), n)
}

// String names k without its secrets, and GoString does: no log shows them.
func (k *Key) String() string   { return fmt.Sprintf("key of session %08x", k.index) }
func (k *Key) GoString() string { return k.String() }

// Index returns the session index at the receiver.
func (k *Key) Index() uint32 { return k.index }

// Use adds datagrams that were sealed to the use count.
func (k *Key) Use(datagrams uint64) { k.used.Add(datagrams) }

// Used returns the use count.
func (k *Key) Used() uint64 { return k.used.Load() }

// Scratch is the memory of a caller of Seal and Open. One goroutine has it.
type Scratch struct {
	nonce [ivLen]byte
	saved [MaxHeader]byte
}

// fill sets the nonce: the counter, padded at the left, XOR the IV (RFC 8446 section 5.3).
func (s *Scratch) fill(k *Key, counter uint64) []byte {
	s.nonce = k.iv
	be.PutUint64(s.nonce[4:], be.Uint64(s.nonce[4:])^counter)
	return s.nonce[:]
}

// put writes index and counter into a header.
func (k *Key) put(header []byte, counter uint64) {
	be.PutUint32(header[IndexOff:], k.index)
	be.PutUint64(header[CounterOff:], counter)
}

// Seal completes the header, the first header octets of d, and seals d in place. d has room for the mode's overhead
// behind its length. It returns the whole datagram.
func (k *Key) Seal(s *Scratch, m Mode, d []byte, header int, counter uint64) []byte {
	k.put(d, counter)
	switch m {
	case Encrypt:
		sealed := k.aead.Seal(d[header:header], s.fill(k, counter), d[header:], d[:header])
		return d[:header+len(sealed)]
	case Authenticate:
		return k.aead.Seal(d, s.fill(k, counter), nil, d)
	}
	return d
}

// SealApart is Seal for a datagram in three places of b: its header at head, its body of n octets at off, and its tag
// at tag. Body and header do not overlap; what lies within TagLen behind the body, and within the header's length in
// front of it, is the same afterwards, so that pieces of one packet can be sealed where they lie.
func (k *Key) SealApart(s *Scratch, m Mode, b []byte, head, header, off, n, tag int, counter uint64) {
	h := b[head : head+header]
	k.put(h, counter)
	switch m {
	case Encrypt:
		behind := b[off+n : off+n+TagLen]
		saved := s.saved[:TagLen]
		copy(saved, behind)
		k.aead.Seal(b[off:off], s.fill(k, counter), b[off:off+n], h)
		var t [TagLen]byte
		copy(t[:], behind)
		copy(behind, saved)
		copy(b[tag:tag+TagLen], t[:])
	case Authenticate:
		front := b[off-header : off]
		saved := s.saved[:header]
		copy(saved, front)
		copy(front, h)
		k.aead.Seal(b[tag:tag], s.fill(k, counter), nil, b[off-header:off+n])
		copy(front, saved)
	}
}

// Open returns the body of a datagram with a header of so many octets, decrypted in place; ok is false for one that is
// not genuine; its content is undefined then. d is at least header long.
func (k *Key) Open(s *Scratch, m Mode, d []byte, header int) (body []byte, ok bool) {
	switch m {
	case None:
		return d[header:], true
	case Authenticate:
		n := len(d) - TagLen
		if n < header {
			return nil, false
		}
		// The tag is where GCM expects the ciphertext: of no octets, with the rest as additional data.
		if _, err := k.aead.Open(d[n:n], s.fill(k, be.Uint64(d[CounterOff:])), d[n:], d[:n]); err != nil {
			return nil, false
		}
		return d[header:n:n], true
	}
	body, err := k.aead.Open(d[header:header], s.fill(k, be.Uint64(d[CounterOff:])), d[header:], d[:header])
	return body, err == nil
}
