// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var secret = bytes.Repeat([]byte{0x5c}, 32)

func key(t testing.TB) *Key {
	t.Helper()
	k, err := NewKey(secret, 0x01020304)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestExpandLabel compares with RFC 9001, appendix A.1: the client's Initial secret, and key and IV of it.
func TestExpandLabel(t *testing.T) {
	client := unhex(t, "c00cf151ca5be075ed0ebfb5c80323c42d6b7db67881289af4008f1f6c357aea")
	for _, c := range []struct {
		label, want string
	}{{"quic key", "1f369613dd76d5467730efcbe3b1a22d"}, {"quic iv", "fa044b2f42a3fd3b46fb255c"},
		{"quic hp", "9f50449e04a0e810283a1e9933adedd2"}} {
		got, err := expand(client, c.label, len(c.want)/2)
		if err != nil || hex.EncodeToString(got) != c.want {
			t.Errorf("%s: %x, %v, want %s", c.label, got, err, c.want)
		}
	}
}

// TestGCM compares the nonce and the additional data with a direct use of AES-GCM.
func TestGCM(t *testing.T) {
	k := key(t)
	raw, _ := expand(secret, "weft trunk key", keyLen)
	iv, _ := expand(secret, "weft trunk iv", 12)
	block, _ := aes.NewCipher(raw)
	aead, _ := cipher.NewGCM(block)
	var s Scratch
	const counter = 0x0300000000001122
	d := append(bytes.Repeat([]byte{0xee}, 20), "a packet"...)
	plain := bytes.Clone(d)
	got := k.Seal(&s, Encrypt, append(make([]byte, 0, 64), d...), 20, counter)
	copy(plain[4:], []byte{1, 2, 3, 4, 3, 0, 0, 0, 0, 0, 0x11, 0x22})
	for i, c := range []byte{3, 0, 0, 0, 0, 0, 0x11, 0x22} {
		iv[4+i] ^= c
	}
	want := append(bytes.Clone(plain[:20]), aead.Seal(nil, iv, plain[20:], plain[:20])...)
	if !bytes.Equal(got, want) {
		t.Errorf("sealed %x\nwant   %x", got, want)
	}
}

// TestSeal seals and opens in each mode, whole and in parts, and flips every bit.
func TestSeal(t *testing.T) {
	k := key(t)
	var s Scratch
	for m := range NumModes {
		for _, n := range []int{0, 1, 15, 16, 17, 1432} {
			d := make([]byte, 20+n, 20+n+TagLen)
			for i := range d {
				d[i] = byte(i)
			}
			body := bytes.Clone(d[20:])
			whole := bytes.Clone(k.Seal(&s, m, d, 20, 7))
			if len(whole) != 20+n+m.Overhead() {
				t.Fatalf("%v: %d octets of %d", m, len(whole), n)
			}
			if n > 15 && bytes.Contains(whole, body) != (m != Encrypt) {
				t.Errorf("%v: the body is readable, or is not", m)
			}
			got, ok := k.Open(&s, m, bytes.Clone(whole), 20)
			if !ok || !bytes.Equal(got, body) {
				t.Fatalf("%v of %d octets: not opened", m, n)
			}
			// The same in parts, in the middle of other octets.
			b := bytes.Repeat([]byte{0xa5}, n+200)
			copy(b[50:], body)
			copy(b[n+120:], d[:20])
			k.SealApart(&s, m, b, n+120, 20, 50, n, n+150, 7)
			parts := append(append(bytes.Clone(b[n+120:n+140]), b[50:50+n]...), b[n+150:n+150+m.Overhead()]...)
			if !bytes.Equal(parts, whole) {
				t.Errorf("%v of %d octets: in parts %x, whole %x", m, n, parts, whole)
			}
			copy(b[50:], body)
			clear(b[n+120 : n+140])
			clear(b[n+150 : n+166])
			for i, c := range b {
				if c != 0xa5 && (i < 50 || i >= 50+n && i < n+120 || i >= n+140 && i < n+150 || i >= n+166) {
					t.Fatalf("%v of %d octets: octet %d was changed", m, n, i)
				}
			}
			if m == None || n > 17 {
				continue
			}
			for bit := range len(whole) * 8 {
				forged := bytes.Clone(whole)
				forged[bit/8] ^= 1 << (bit % 8)
				if _, ok := k.Open(&s, m, forged, 20); ok {
					t.Fatalf("%v: opened with bit %d inverted", m, bit)
				}
			}
			for n := 20; n < len(whole); n++ {
				if _, ok := k.Open(&s, m, bytes.Clone(whole[:n]), 20); ok {
					t.Fatalf("%v: opened %d of %d octets", m, n, len(whole))
				}
			}
		}
	}
}

// TestNothingPrinted: no verb of fmt shows a key.
func TestNothingPrinted(t *testing.T) {
	k := key(t)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, x := range []any{k, struct{ K *Key }{k}} {
			if got := fmt.Sprintf(verb, x); len(got) > 60 || !strings.Contains(got, "01020304") && !strings.Contains(got, "0x") {
				t.Errorf("%s: %s", verb, got)
			}
		}
	}
}

func TestModes(t *testing.T) {
	for m := range NumModes {
		if got, err := ParseMode(m.String()); got != m || err != nil {
			t.Errorf("%v: %v, %v", m, got, err)
		}
	}
	if _, err := ParseMode("off"); err == nil {
		t.Error("off is a mode")
	}
}

func TestNoAllocation(t *testing.T) {
	k := key(t)
	s := new(Scratch)
	b := make([]byte, 4096)
	for m := range NumModes {
		if n := testing.AllocsPerRun(100, func() {
			k.SealApart(s, m, b, 3000, 20, 100, 1400, 3100, 1)
			d := k.Seal(s, m, b[:1400], 20, 2)
			if _, ok := k.Open(s, m, d, 20); !ok {
				t.Fatal("not opened")
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations", m, n)
		}
	}
}

func FuzzOpen(f *testing.F) {
	k := key(f)
	var s Scratch
	f.Add(bytes.Clone(k.Seal(&s, Encrypt, make([]byte, 40, 64), 16, 1)), uint8(0))
	f.Add(bytes.Clone(k.Seal(&s, Authenticate, make([]byte, 40, 64), 16, 1)), uint8(1))
	f.Fuzz(func(t *testing.T, d []byte, mode uint8) {
		m := Mode(mode) % NumModes
		if len(d) < HeaderLen {
			return
		}
		body, ok := k.Open(&s, m, bytes.Clone(d), HeaderLen)
		if !ok {
			return
		}
		// What opens is what Seal makes of the body.
		again := make([]byte, HeaderLen, len(d)+TagLen)
		copy(again, d)
		again = k.Seal(&s, m, append(again, body...), HeaderLen, be.Uint64(d[CounterOff:]))
		if m != None && !bytes.Equal(again, d) {
			t.Errorf("%x opens, %x is sealed", d, again)
		}
	})
}

// BenchmarkSeal compares with BenchmarkLimit, AES-GCM by itself.
func BenchmarkSeal(b *testing.B) {
	for _, n := range []int{1472, 8972, 65000} {
		for m := range NumModes {
			b.Run(fmt.Sprintf("%d/%v", n, m), func(b *testing.B) {
				k := key(b)
				s := new(Scratch)
				buf := make([]byte, n)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				var c uint64
				for b.Loop() {
					c++
					k.Seal(s, m, buf[:n-m.Overhead()], 16, c)
				}
			})
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{1472, 8972, 65000} {
		for m := range NumModes {
			b.Run(fmt.Sprintf("%d/%v", n, m), func(b *testing.B) {
				k := key(b)
				s := new(Scratch)
				d := k.Seal(s, m, make([]byte, n-m.Overhead(), n), 16, 1)
				c := make([]byte, n)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					copy(c, d)
					if _, ok := k.Open(s, m, c, 16); !ok {
						b.Fatal("not opened")
					}
				}
			})
		}
	}
}

// BenchmarkLimit is what crypto/aes gives.
func BenchmarkLimit(b *testing.B) {
	for _, bits := range []int{128, 256} {
		for _, n := range []int{1440, 8940, 64968} {
			for _, mac := range []bool{false, true} {
				b.Run(fmt.Sprintf("%d/%d/mac=%v", bits, n, mac), func(b *testing.B) {
					block, _ := aes.NewCipher(make([]byte, bits/8))
					aead, _ := cipher.NewGCM(block)
					buf, nonce := make([]byte, n+16), make([]byte, 12)
					b.SetBytes(int64(n))
					for b.Loop() {
						if mac {
							aead.Seal(buf[n:n], nonce, nil, buf[:n])
						} else {
							aead.Seal(buf[:0], nonce, buf[:n], nil)
						}
					}
				})
			}
		}
	}
}
