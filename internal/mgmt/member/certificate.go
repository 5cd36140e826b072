// SPDX-License-Identifier: Apache-2.0

package member

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft/internal/proto/ib"
)

// backdate is how long before its making a certificate is valid, so that a member with a slow clock accepts it.
const backdate = 10 * time.Minute

// Domain is the domain of members' names in certificates: the member b1 is b1.weft.internal. .internal is reserved for
// private use, and no name is resolved.
const Domain = "weft.internal"

// VoterName is in the certificate of each voter as well: replicas of the store check it rather than an address. No
// member can be called so.
const VoterName = "voter." + Domain

// names are the DNS names in a certificate.
func (c Claims) names() []string {
	if c.Roles.Has(Voter) {
		return []string{c.Name + "." + Domain, VoterName}
	}
	return []string{c.Name + "." + Domain}
}

// Key identifies a member's key pair: the SHA-256 of its SubjectPublicKeyInfo.
type Key [sha256.Size]byte

// KeyOf returns the key of a certificate.
func KeyOf(c *x509.Certificate) Key { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// String is the hexadecimal form.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Short is the first eight digits, for people.
func (k Key) Short() string { return hex.EncodeToString(k[:4]) }

// MarshalText implements encoding.TextMarshaler.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Key) UnmarshalText(b []byte) error {
	v, err := hex.DecodeString(string(b))
	if err != nil || len(v) != len(k) || hex.EncodeToString(v) != string(b) {
		return fmt.Errorf("%q is no SHA-256 in hexadecimal", printable(string(b)))
	}
	copy(k[:], v)
	return nil
}

// Identity is the private part of a member. It is immutable.
type Identity struct {
	Sign *ecdsa.PrivateKey
	Seal *ecdh.PrivateKey // X25519
}

// NewIdentity makes the key pairs of a member.
func NewIdentity() (*Identity, error) {
	sign, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	seal, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Identity{Sign: sign, Seal: seal}, nil
}

// identitySize is the length of an encoded Identity: two private keys.
const identitySize = 32 + 32

// Encode returns both private keys.
func (id *Identity) Encode() ([]byte, error) {
	sign, err := id.Sign.Bytes()
	return append(sign, id.Seal.Bytes()...), err
}

// DecodeIdentity is the reverse of Encode.
func DecodeIdentity(b []byte) (*Identity, error) {
	if len(b) != identitySize {
		return nil, fmt.Errorf("two private keys have %d octets, not %d", identitySize, len(b))
	}
	sign, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), b[:32])
	if err != nil {
		return nil, err
	}
	seal, err := ecdh.X25519().NewPrivateKey(b[32:])
	if err != nil {
		return nil, err
	}
	return &Identity{Sign: sign, Seal: seal}, nil
}

// Key identifies the key pair that signs.
func (id *Identity) Key() Key {
	spki, err := x509.MarshalPKIXPublicKey(&id.Sign.PublicKey)
	if err != nil {
		panic("member: a P-256 key has no encoding: " + err.Error())
	}
	return sha256.Sum256(spki)
}

// Request returns a certificate signing request (PKCS #10) for a name: the proof that the member has the key.
func (id *Identity) Request(name string) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, id.Sign)
}

// Claims is what a certificate states about a member.
type Claims struct {
	Fabric string
	Name   string
	GUID   ib.GUID // of the node
	Roles  Role
	Seal   []byte // X25519 public key
}

// claimsURI is the form of Claims in a certificate, a URI in the subject alternative name:
// weft://FABRIC/NAME?guid=16 digits&roles=LIST&seal=BASE64&v=1.
func (c Claims) uri() *url.URL {
	q := url.Values{"v": {"1"}, "guid": {fmt.Sprintf("%016x", uint64(c.GUID))}, "roles": {c.Roles.String()},
		"seal": {base64.RawURLEncoding.EncodeToString(c.Seal)}}
	return &url.URL{Scheme: "weft", Host: c.Fabric, Path: "/" + c.Name, RawQuery: q.Encode()}
}

// Check returns why no certificate may state c.
func (c Claims) Check() error {
	if err := checkFabric(c.Fabric); err != nil {
		return err
	}
	if err := CheckName(c.Name); err != nil {
		return err
	}
	if err := CheckGUID(c.GUID); err != nil {
		return err
	}
	if err := checkSeal(c.Seal); err != nil {
		return err
	}
	return c.Roles.Check()
}

// CheckGUID returns why a GUID is not the base of a node's GUIDs, as `weft up` draws it.
func CheckGUID(g ib.GUID) error {
	if g&0xffff != 0 || g>>56 != 2 || g == 0x0200000000000000 {
		return fmt.Errorf("%v is not the identity of a node", g)
	}
	return nil
}

// checkSeal returns why b is no X25519 key. crypto/ecdh refuses points of low order: their shared secrets are zero.
func checkSeal(b []byte) error {
	pub, err := ecdh.X25519().NewPublicKey(b)
	if err != nil {
		return fmt.Errorf("the sealing key is no X25519 key: it has %d octets", len(b))
	}
	probe, err := ecdh.X25519().NewPrivateKey(append(make([]byte, 31), 0x40))
	if err != nil {
		return err
	}
	if _, err := probe.ECDH(pub); err != nil {
		return errors.New("the sealing key is a point of low order")
	}
	return nil
}

// Issue signs a certificate for a public key. life 0 is MemberLife. The certificate does not outlive the CA's.
func (a *Authority) Issue(c Claims, pub *ecdsa.PublicKey, now time.Time, life time.Duration, random io.Reader) ([]byte,
	error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.Fabric != a.fabric {
		return nil, fmt.Errorf("the CA is of fabric %s, the member of %s", a.fabric, c.Fabric)
	}
	if pub.Curve != elliptic.P256() {
		return nil, errors.New("the key is not of the curve P-256")
	}
	if life <= 0 {
		life = MemberLife
	}
	no, err := serial(random)
	if err != nil {
		return nil, err
	}
	end := now.Add(life)
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	tmpl := &x509.Certificate{
		SerialNumber:          no,
		Subject:               pkix.Name{CommonName: c.Name, Organization: []string{c.Fabric}},
		NotBefore:             now.Add(-backdate).Truncate(time.Second).UTC(),
		NotAfter:              end.Truncate(time.Second).UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		DNSNames:              c.names(),
		URIs:                  []*url.URL{c.uri()},
	}
	return x509.CreateCertificate(rand.Reader, tmpl, a.cert, pub, a.key)
}

// ClaimsOf reads what a certificate states. It proves nothing: Roster.Admit does.
func ClaimsOf(c *x509.Certificate) (x Claims, err error) {
	bad := func(format string, args ...any) (Claims, error) {
		return Claims{}, fmt.Errorf("the certificate is of no member: "+format, args...)
	}
	if c.IsCA || len(c.URIs) != 1 || len(c.Subject.Organization) != 1 {
		return bad("it does not name one")
	}
	u := c.URIs[0]
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil || len(q) != 4 || q.Get("v") != "1" {
		return bad("its form is unknown")
	}
	guid, err := strconv.ParseUint(q.Get("guid"), 16, 64)
	if err != nil {
		return bad("it has no GUID")
	}
	if x.Seal, err = base64.RawURLEncoding.Strict().DecodeString(q.Get("seal")); err != nil {
		return bad("it has no sealing key")
	}
	if err := x.Roles.UnmarshalText([]byte(q.Get("roles"))); err != nil {
		return bad("%w", err)
	}
	x.Fabric, x.Name, x.GUID = u.Host, strings.TrimPrefix(u.Path, "/"), ib.GUID(guid)
	if err := x.Check(); err != nil {
		return bad("%w", err)
	}
	// One form only, and the other names agree.
	if x.uri().String() != u.String() || c.Subject.CommonName != x.Name || c.Subject.Organization[0] != x.Fabric ||
		!slices.Equal(c.DNSNames, x.names()) {
		return bad("its names differ")
	}
	return x, nil
}

// LaterCertificate returns the one of two certificates of a member that was made later, a where both were at the same
// time or b is unreadable.
func LaterCertificate(a, b []byte) []byte {
	x, err := x509.ParseCertificate(a)
	if err != nil {
		return b
	}
	if y, err := x509.ParseCertificate(b); err == nil && y.NotBefore.After(x.NotBefore) {
		return b
	}
	return a
}

// staleAgain is when a certificate that lags behind the roster is renewed after a failure.
const staleAgain = 15 * time.Second

// Life is when a certificate is renewed and when it ends.
type Life struct{ Renew, End time.Time }

// LifeOf returns the times of a certificate: it is renewed at two thirds of its life. The life begins where the
// certificate was made, backdate after NotBefore.
func LifeOf(c *x509.Certificate) Life {
	made := c.NotBefore.Add(backdate)
	return Life{Renew: made.Add(c.NotAfter.Sub(made) / 3 * 2), End: c.NotAfter}
}

// RenewAt is when a member renews its certificate: at Renew, earlier by up to a tenth of the remaining life so that
// members that joined together do not renew together (spread is 0 to 1, drawn by the member), and at once when the
// record has another name or another CA signs. After a failure it tries again after a thirtieth of what remains, an
// hour at most, a minute at least; where another CA signs, after staleAgain, since others may refuse the old one.
func (l Life) RenewAt(spread float64, failed time.Time, stale bool) time.Time {
	left := l.End.Sub(l.Renew)
	at := l.Renew.Add(-time.Duration(float64(left) * spread / 10))
	if stale {
		at = time.Time{}
	}
	if !failed.IsZero() {
		wait := max(min(l.End.Sub(failed)/30, time.Hour), time.Minute)
		if stale { // others may wait for it
			wait = staleAgain
		}
		again := failed.Add(wait)
		if again.After(at) {
			return again
		}
	}
	return at
}
