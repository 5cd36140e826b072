// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func key(seed byte) []byte {
	k := make([]byte, KeyLen)
	for i := range k {
		k[i] = seed + byte(i)*7
	}
	return k
}

func chain(t *testing.T, k *Key) []*x509.Certificate {
	t.Helper()
	c, err := k.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	x, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{x}
}

func TestKey(t *testing.T) {
	make := func(seed byte, name string, at time.Time) *Key {
		t.Helper()
		k, err := FromKey(key(seed), name, at)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	a, b, c := make(1, "a", now), make(1, "b", now.Add(time.Hour)), make(2, "c", now)
	if _, err := a.Verify(now, chain(t, b)); err != nil {
		t.Errorf("the same key: %v", err)
	}
	if _, err := b.Verify(now, chain(t, a)); err != nil {
		t.Errorf("the same key: %v", err)
	}
	if _, err := a.Verify(now, chain(t, c)); err == nil || !strings.Contains(err.Error(), "another trunk key") {
		t.Errorf("another key: %v", err)
	}
	anyone, err := NewAnyone("d", now)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := anyone.Certificate()
	x, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Verify(now, []*x509.Certificate{x}); err == nil {
		t.Error("a certificate that signed itself is accepted")
	}
	// A leaf of the key is no authority.
	sub, err := leaf("e", now, chain(t, b)[0], b.own.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	y, err := x509.ParseCertificate(sub.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Verify(now, []*x509.Certificate{y, chain(t, b)[0]}); err == nil {
		t.Error("a leaf signs for others")
	}
	if _, err := a.Verify(now.Add(20*365*24*time.Hour), chain(t, b)); err == nil {
		t.Error("a certificate is valid for ever")
	}
}

func TestParseKey(t *testing.T) {
	const good = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	for _, c := range []struct {
		file string
		ok   bool
	}{
		{good, true}, {good + "\n", true}, {"  " + strings.ToUpper(good) + "\r\n", true},
		{"", false}, {good[:62], false}, {good + "00", false}, {"secret", false}, {strings.Repeat("00", 32), false},
		{"zz" + good[2:], false},
	} {
		k, err := ParseKey([]byte(c.file))
		if (err == nil) != c.ok || c.ok && len(k) != KeyLen {
			t.Errorf("%q: %x, %v", c.file, k, err)
		}
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add([]byte("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		k, err := ParseKey(file)
		if err == nil && (len(k) != KeyLen || len(bytes.TrimSpace(file)) != 2*KeyLen) {
			t.Errorf("%q is a key", file)
		}
	})
}
