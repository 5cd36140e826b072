// SPDX-License-Identifier: Apache-2.0

package member

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"time"
)

// Times of certificates where Policy has none.
const (
	// MemberLife is how long a certificate of a member is valid; it is renewed at two thirds of it.
	MemberLife = 90 * 24 * time.Hour
	// AuthorityLife is how long the certificate of a CA is valid.
	AuthorityLife = 10 * 365 * 24 * time.Hour
	// MaxSkew is the largest difference of two members' clocks.
	MaxSkew = time.Minute
)

// CAState is the part of a CA in a rotation. A fabric has one CA that signs; a CA without a state here is not trusted.
type CAState uint8

// States of a CA.
const (
	// CAIntroduced: members trust it already, none is signed by it yet. It waits until every member has the roster.
	CAIntroduced CAState = iota + 1
	// CASigning: it signs.
	CASigning
	// CARetiring: it does not sign any more, and what it signed is valid until each member has a certificate of the
	// next one.
	CARetiring
	// CAFrozen: a removed member had its key. Of what it signed, only the certificates in the records of members are
	// valid, and the certificates that these replaced. What the removed member signs for itself is neither.
	CAFrozen
)

var caStates = []string{"", "introduced", "signing", "retiring", "frozen"}

// String is the state in a word.
func (s CAState) String() string {
	if int(s) < len(caStates) && s != 0 {
		return caStates[s]
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler.
func (s CAState) MarshalText() ([]byte, error) {
	if s == 0 || int(s) >= len(caStates) {
		return nil, fmt.Errorf("there is no state %d of a CA", s)
	}
	return []byte(caStates[s]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *CAState) UnmarshalText(b []byte) error {
	i := slices.Index(caStates[1:], string(b))
	if i < 0 {
		return fmt.Errorf("a CA is not %q", printable(string(b)))
	}
	*s = CAState(i + 1)
	return nil
}

// caNext are the transitions of a CA.
var caNext = map[CAState][]CAState{
	CAIntroduced: {CASigning, CAFrozen},
	CASigning:    {CARetiring, CAFrozen},
	CARetiring:   {CAFrozen},
	CAFrozen:     {},
}

// CA is a certificate authority as every member has it.
type CA struct {
	Epoch       uint32    `json:"epoch"` // 1 for the first of a fabric, then one more each
	State       CAState   `json:"state"`
	Certificate []byte    `json:"certificate"` // X.509, DER
	Since       time.Time `json:"since"`       // of the state
}

func (c *CA) become(s CAState, now time.Time) error {
	if !slices.Contains(caNext[c.State], s) {
		return fmt.Errorf("the CA of epoch %d is %v and cannot become %v", c.Epoch, c.State, s)
	}
	c.State, c.Since = s, now
	return nil
}

// parse returns the certificate.
func (c *CA) parse() (*x509.Certificate, error) {
	x, err := x509.ParseCertificate(c.Certificate)
	if err != nil {
		return nil, fmt.Errorf("the CA of epoch %d: %w", c.Epoch, err)
	}
	if !x.IsCA || x.PublicKeyAlgorithm != x509.ECDSA {
		return nil, fmt.Errorf("the certificate of the CA of epoch %d is of no CA", c.Epoch)
	}
	return x, nil
}

// Pin is the hash of a CA's public key, the first PinSize octets of the SHA-256 of its SubjectPublicKeyInfo (RFC 7469,
// section 2.4).
type Pin [PinSize]byte

// PinSize is the size of a Pin in octets: 160 bits against a second key of the same hash.
const PinSize = 20

// PinOf returns the pin of a certificate.
func PinOf(c *x509.Certificate) (p Pin) {
	h := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	copy(p[:], h[:])
	return p
}

// Pin returns the pin of the CA, the zero Pin where its certificate is unreadable.
func (c *CA) Pin() Pin {
	x, err := c.parse()
	if err != nil {
		return Pin{}
	}
	return PinOf(x)
}

// Authority is a CA with its key: what a voter holds. It is immutable.
type Authority struct {
	Epoch  uint32
	fabric string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

// NewAuthority makes a CA of a fabric. life 0 is AuthorityLife.
func NewAuthority(fabric string, epoch uint32, now time.Time, life time.Duration) (*Authority, error) {
	if err := checkFabric(fabric); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if life <= 0 {
		life = AuthorityLife
	}
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(int64(epoch)),
		Subject:               pkix.Name{CommonName: fmt.Sprintf("weft CA %d", epoch), Organization: []string{fabric}},
		NotBefore:             now.Add(-backdate).Truncate(time.Second).UTC(),
		NotAfter:              now.Add(life).Truncate(time.Second).UTC(),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return authority(epoch, der, key)
}

func authority(epoch uint32, der []byte, key *ecdsa.PrivateKey) (*Authority, error) {
	ca := CA{Epoch: epoch, Certificate: der}
	cert, err := ca.parse()
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("the key is not that of the CA of epoch %d", epoch)
	}
	if len(cert.Subject.Organization) != 1 {
		return nil, fmt.Errorf("the CA of epoch %d names no fabric", epoch)
	}
	return &Authority{Epoch: epoch, fabric: cert.Subject.Organization[0], cert: cert, key: key}, nil
}

// CA returns the public part in a state.
func (a *Authority) CA(s CAState, now time.Time) CA {
	return CA{Epoch: a.Epoch, State: s, Certificate: a.cert.Raw, Since: now}
}

// Sealed is the key of a CA, sealed to a voter (RFC 9180: DHKEM(X25519), HKDF-SHA256, AES-256-GCM). Without a voter's
// own key it reveals nothing: it may be in backups, and every member may read it.
type Sealed struct {
	Form
	Epoch uint32 `json:"epoch"`
	To    Key    `json:"to"` // the voter
	Box   []byte `json:"box"`
}

// sealInfo binds a seal to what it is for, so that no other sealed value passes as a CA's key.
func sealInfo(fabric string, epoch uint32, to Key) []byte {
	return fmt.Appendf(nil, "weft ca key 1 %s %d %s", fabric, epoch, to)
}

var sealKEM = hpke.DHKEM(ecdh.X25519())

// Seal seals the key to a voter. Its Claims must come from a certificate that Roster.Admit accepted: whatever else
// names a sealing key may be forged.
func (a *Authority) Seal(c Claims, to Key) (Sealed, error) {
	if !c.Roles.Has(Voter) {
		return Sealed{}, fmt.Errorf("%s is no voter", c.Name)
	}
	pk, err := sealKEM.NewPublicKey(c.Seal)
	if err != nil {
		return Sealed{}, err
	}
	raw, err := a.key.Bytes()
	if err != nil {
		return Sealed{}, err
	}
	box, err := hpke.Seal(pk, hpke.HKDFSHA256(), hpke.AES256GCM(), sealInfo(a.fabric, a.Epoch, to), raw)
	return Sealed{Epoch: a.Epoch, To: to, Box: box}, err
}

// Open returns the CA with the key that was sealed to id.
func (s Sealed) Open(id *Identity, ca CA) (*Authority, error) {
	if s.Epoch != ca.Epoch {
		return nil, fmt.Errorf("the sealed key is of epoch %d, the CA of epoch %d", s.Epoch, ca.Epoch)
	}
	cert, err := ca.parse()
	if err != nil {
		return nil, err
	}
	if len(cert.Subject.Organization) != 1 {
		return nil, fmt.Errorf("the CA of epoch %d names no fabric", ca.Epoch)
	}
	sk, err := sealKEM.NewPrivateKey(id.Seal.Bytes())
	if err != nil {
		return nil, err
	}
	raw, err := hpke.Open(sk, hpke.HKDFSHA256(), hpke.AES256GCM(), sealInfo(cert.Subject.Organization[0], s.Epoch,
		id.Key()), s.Box)
	if err != nil {
		return nil, errors.New("the key of the CA is sealed to another member, or damaged")
	}
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), raw)
	if err != nil {
		return nil, err
	}
	return authority(s.Epoch, ca.Certificate, key)
}

// serial draws the serial number of a certificate: 127 random bits (RFC 5280, section 4.1.2.2: positive, 20 octets).
func serial(random io.Reader) (*big.Int, error) {
	var b [16]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return nil, err
	}
	b[0] &= 0x7f
	b[15] |= 1 // not zero
	return new(big.Int).SetBytes(b[:]), nil
}

// NewFabric draws the identifier of a fabric: 16 hexadecimal digits.
func NewFabric(random io.Reader) (string, error) {
	var b [8]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return "", err
	}
	return hex.EncodeToString(b[:]), nil
}

func checkFabric(s string) error {
	if b, err := hex.DecodeString(s); err != nil || len(b) != 8 || hex.EncodeToString(b) != s {
		return fmt.Errorf("%q is no identifier of a fabric", printable(s))
	}
	return nil
}
