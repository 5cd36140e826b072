// SPDX-License-Identifier: Apache-2.0

package member

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Sizes of a token's parts in octets.
const (
	tokenIDSize     = 5  // 8 characters
	tokenSecretSize = 20 // 32 characters, 160 bits
)

// TokenLife is how long a token is valid where its maker names no time; MaxTokenLife bounds that.
const (
	TokenLife    = time.Hour
	MaxTokenLife = 7 * 24 * time.Hour
)

// MaxTokens bounds the tokens of a fabric: a removal deletes all of them in one transaction.
const MaxTokens = 48

// tokenText is base32 of RFC 4648 in lower case without padding: one case, no sign that a shell reads.
var tokenText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Secret is a join token as its holder has it. Its text is ID.SECRET.PIN: an identifier that is no secret, the secret,
// and the pin of the CA that the joiner trusts (kubeadm's token and its --discovery-token-ca-cert-hash in one).
type Secret struct {
	ID     string
	secret [tokenSecretSize]byte
	Pin    Pin
}

// NewSecret draws a token bound to a CA.
func NewSecret(pin Pin, random io.Reader) (s Secret, err error) {
	var id [tokenIDSize]byte
	if _, err := io.ReadFull(random, id[:]); err != nil {
		return s, err
	}
	if _, err := io.ReadFull(random, s.secret[:]); err != nil {
		return s, err
	}
	s.ID, s.Pin = tokenText.EncodeToString(id[:]), pin
	return s, nil
}

// Text is the token as a command line has it. It is the one way to the secret; String hides it, so that no log and
// no error has it by accident.
func (s Secret) Text() string {
	return s.ID + "." + tokenText.EncodeToString(s.secret[:]) + "." + tokenText.EncodeToString(s.Pin[:])
}

// String is the identifier.
func (s Secret) String() string { return s.ID }

// GoString is the identifier.
func (s Secret) GoString() string { return s.ID }

// Key is the secret part as the join protocol sends it, inside TLS, to a member that proved itself.
func (s Secret) Key() []byte { return s.secret[:] }

// ParseSecret is the reverse of Text. The error has no part of the token.
func ParseSecret(text string) (s Secret, err error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 3 {
		return s, fmt.Errorf("a token has three parts with points between them, not %d", len(parts))
	}
	if !isTokenID(parts[0]) {
		return s, errors.New("the first part of a token has 8 characters of a-z and 2-7")
	}
	if !decodeExact(s.secret[:], parts[1]) {
		return s, errors.New("the second part of a token has 32 characters of a-z and 2-7")
	}
	if !decodeExact(s.Pin[:], parts[2]) {
		return s, errors.New("the third part of a token has 32 characters of a-z and 2-7")
	}
	s.ID = parts[0]
	return s, nil
}

// decodeExact reads text of exactly len(to) octets.
func decodeExact(to []byte, text string) bool {
	b, err := tokenText.DecodeString(text)
	if err != nil || len(b) != len(to) || tokenText.EncodeToString(b) != text {
		return false
	}
	copy(to, b)
	return true
}

func isTokenID(s string) bool { return decodeExact(make([]byte, tokenIDSize), s) }

// Token is a join token in the store: the secret's hash, not the secret.
type Token struct {
	Form
	ID    string    `json:"id"`
	Hash  Key       `json:"hash"`  // SHA-256 of the secret
	Epoch uint32    `json:"epoch"` // of the CA that it pins
	Roles Role      `json:"roles"` // what it can give
	Uses  int       `json:"uses"`  // how many members it lets in; 0: any number
	Used  int       `json:"used"`
	Made  time.Time `json:"made"`
	End   time.Time `json:"end"`
	By    string    `json:"by"` // member and user
}

// Check returns why t is no token.
func (t *Token) Check() error {
	switch {
	case !isTokenID(t.ID):
		return fmt.Errorf("%q is no identifier of a token", printable(t.ID))
	case t.Hash == Key{} || t.Epoch == 0:
		return errors.New("the token has no hash or no CA")
	case t.Uses < 0 || t.Used < 0 || t.Uses > 0 && t.Used > t.Uses:
		return fmt.Errorf("the token was used %d of %d times", t.Used, t.Uses)
	case !t.End.After(t.Made) || t.End.Sub(t.Made) > MaxTokenLife:
		return fmt.Errorf("the token is valid for %v, not for at most %v", t.End.Sub(t.Made), MaxTokenLife)
	case len(t.By) > maxText:
		return errors.New("the name of the token's maker is too long")
	}
	return t.Roles.Check()
}

// Hash is what the store keeps of the secret. The secret has 160 random bits, so a plain hash cannot be guessed.
func (s Secret) Hash() Key { return sha256.Sum256(s.secret[:]) }

// Is reports, in constant time, whether secret is that of the token. A nil token takes the same time.
func (t *Token) Is(secret []byte) bool {
	got := sha256.Sum256(secret)
	var want Key
	if t != nil {
		want = t.Hash
	}
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && t != nil
}

// Proof is what a member sends before the joiner sends the secret: an HMAC with the token's hash over the keying
// material that TLS exports for this connection (RFC 8446, section 7.5; RFC 9266). It needs the hash, which voters,
// administrators and the joiner have. A removed member has a certificate still, and not the hash; and the proof of one
// connection is worth nothing in another.
func Proof(hash Key, exported []byte) []byte {
	m := hmac.New(sha256.New, hash[:])
	m.Write([]byte("weft join member 1"))
	m.Write(exported)
	return m.Sum(nil)
}

// Proved reports, in constant time, whether proof is that of this connection.
func (s Secret) Proved(proof, exported []byte) bool {
	return hmac.Equal(proof, Proof(s.Hash(), exported))
}
