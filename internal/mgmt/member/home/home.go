// SPDX-License-Identifier: Apache-2.0

// Package home keeps a member's own keys, certificate and roster in the directory of its node.
//
// What comes in: the directory; what goes out: what was kept, or why it cannot be used. Callers: the node, weft join.
// Files are written aside and renamed: a crash leaves the old or the new one. Private keys are in files of mode 0600 in
// a directory of mode 0700; where another user may read them, they are refused, since they may have been read.
package home

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"weft/internal/mgmt/member"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// Names below the node's directory.
const (
	Folder   = "member"
	identity = "identity.json" // Membership, with private keys
	pending  = "joining.json"  // keys of a join that has not ended
	roster   = RosterFile
	// RosterFile is the roster.
	RosterFile = "roster.json"
	// The same as PEM, for programs and libraries that read files: the certificate with that of its CA, the key, the
	// CAs.
	CertFile = "certificate.pem"
	KeyFile  = "key.pem"
	CAFile   = "ca.pem"

	reserve     = "reserve" // holds the space that the end of a join needs
	reserveSize = 256 << 10
)

// version is that of the files.
const version = 1

// Membership is what a member keeps of itself. It holds private keys.
type Membership struct {
	Version     int         `json:"version"`
	Fabric      string      `json:"fabric"`
	Name        string      `json:"name"`
	GUID        ib.GUID     `json:"guid"`
	Keys        []byte      `json:"keys"` // member.Identity.Encode
	Certificate []byte      `json:"certificate"`
	CAs         []member.CA `json:"cas"` // as of the certificate; the roster's are newer
	// Addresses are HOST:PORT at which other members reach the node, as weft join --address named them; none: those of
	// its interfaces, as they are at a time.
	Addresses []string `json:"addresses,omitempty"`
	// Voters are records of some voters, by which a node that cannot read its roster finds the fabric again.
	Voters []member.Record `json:"voters,omitempty"`
}

// Identity decodes the private keys.
func (m *Membership) Identity() (*member.Identity, error) { return member.DecodeIdentity(m.Keys) }

// String hides the private keys.
func (m Membership) String() string { return m.Name + " of fabric " + m.Fabric }

// GoString hides the private keys.
func (m Membership) GoString() string { return m.String() }

// joining is a join that has not ended: its keys serve the next attempt, so that the fabric recognizes the host.
type joining struct {
	Version int     `json:"version"`
	GUID    ib.GUID `json:"guid"`
	Keys    []byte  `json:"keys"`
}

// Dir is the folder of a node's membership.
type Dir struct{ path string }

// Open returns the folder of a node's directory, without touching it.
func Open(node string) Dir { return Dir{filepath.Join(node, Folder)} }

// ErrNone is the error where the node is in no fabric.
var ErrNone = errors.New("the node is in no fabric")

// Load returns what is kept; ErrNone where nothing is.
func (d Dir) Load() (*Membership, error) {
	var m Membership
	if err := d.read(identity, &m); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	} else if err != nil {
		return nil, err
	}
	_, err := m.Identity()
	if m.Version != version {
		err = fmt.Errorf("it is of version %d, this weft reads version %d", m.Version, version)
	}
	if err == nil {
		err = member.CheckName(m.Name)
	}
	if err != nil {
		return nil, d.damaged(identity, err)
	}
	return &m, nil
}

// Join begins a join of a node: it returns the keys to join with, those of an earlier attempt that did not end or new
// ones, after they are on disk together with the space for the rest. A full disk is found here, before anything changes
// elsewhere.
func (d Dir) Join(g ib.GUID) (*member.Identity, error) {
	if _, err := d.Load(); !errors.Is(err, ErrNone) {
		if err == nil {
			err = problem.New("cannot join the fabric", "this node is in a fabric already", "weft leave")
		}
		return nil, err
	}
	var j joining
	if err := d.read(pending, &j); err == nil && j.Version == version && j.GUID == g {
		if id, err := member.DecodeIdentity(j.Keys); err == nil {
			return id, d.write(reserve, make([]byte, reserveSize))
		}
	}
	id, err := member.NewIdentity()
	if err != nil {
		return nil, err
	}
	keys, err := id.Encode()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(joining{version, g, keys})
	if err != nil {
		return nil, err
	}
	if err := d.write(reserve, make([]byte, reserveSize)); err != nil {
		return nil, err
	}
	return id, d.write(pending, text)
}

// Pending reports whether keys of an attempt that did not end are there.
func (d Dir) Pending() bool {
	_, err := os.Lstat(filepath.Join(d.path, pending))
	return err == nil
}

// Abandon ends a join that was refused: nothing is left.
func (d Dir) Abandon() error {
	err := errors.Join(d.remove(pending), d.remove(reserve))
	os.Remove(d.path) // if nothing else is in it
	return err
}

// Commit ends a join, or replaces what is kept.
func (d Dir) Commit(m *Membership, r *member.Roster) error {
	if err := d.remove(reserve); err != nil {
		return err
	}
	if err := d.SaveRoster(r); err != nil {
		return err
	}
	if err := d.Save(m); err != nil {
		return err
	}
	return d.remove(pending)
}

// Save replaces what is kept.
func (d Dir) Save(m *Membership) error {
	x := *m
	x.Version = version
	text, err := json.Marshal(x)
	if err != nil {
		return err
	}
	if err := d.writePEM(m); err != nil {
		return err
	}
	return d.write(identity, text)
}

// writePEM writes certificate and key. The key never changes while a node is a member, so that the two files agree at
// any moment.
func (d Dir) writePEM(m *Membership) error {
	id, err := m.Identity()
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(id.Sign)
	if err != nil {
		return err
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.Certificate})
	if leaf, err := x509.ParseCertificate(m.Certificate); err == nil {
		for _, ca := range m.CAs {
			if x, err := x509.ParseCertificate(ca.Certificate); err == nil && leaf.CheckSignatureFrom(x) == nil {
				chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate})...)
			}
		}
	}
	if err := d.write(KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})); err != nil {
		return err
	}
	return d.write(CertFile, chain)
}

// Path is the path of one of the PEM files.
func (d Dir) Path(file string) string { return filepath.Join(d.path, file) }

// SaveRoster replaces the roster.
func (d Dir) SaveRoster(r *member.Roster) error {
	text, err := member.Encode(*r)
	if err != nil {
		return err
	}
	// Without the frozen ones: what reads the file cannot compare certificates with records.
	var cas []byte
	for _, ca := range r.CAs {
		if ca.State != member.CAFrozen {
			cas = append(cas, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate})...)
		}
	}
	if err := d.write(CAFile, cas); err != nil {
		return err
	}
	return d.write(roster, text)
}

// Roster returns the roster that was kept last.
func (d Dir) Roster() (*member.Roster, error) {
	text, err := d.readFile(roster, member.MaxRoster)
	if err != nil {
		return nil, err
	}
	r, err := member.Decode[member.Roster](text)
	if err != nil {
		return nil, d.damaged(roster, err)
	}
	return &r, nil
}

// Leave removes all that is kept: the node is in no fabric any more. The keys go first.
func (d Dir) Leave() error {
	return errors.Join(d.remove(identity), d.remove(KeyFile), d.remove(pending), d.remove(roster), d.remove(reserve),
		os.RemoveAll(d.path))
}

// read reads a JSON file strictly.
func (d Dir) read(name string, v any) error {
	text, err := d.readFile(name, 1<<20)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return d.damaged(name, err)
	}
	return nil
}

const cannotUse = "cannot use the identity of the node"

// readFile reads a file of at most limit octets that no other user may read, without following a link.
func (d Dir) readFile(name string, limit int64) ([]byte, error) {
	path := filepath.Join(d.path, name)
	if err := d.private(d.path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, d.failed(err)
	}
	defer f.Close()
	i, err := f.Stat()
	if err != nil {
		return nil, d.failed(err)
	}
	if err := exposed(path, i); err != nil {
		return nil, err
	}
	if !i.Mode().IsRegular() {
		return nil, problem.New(cannotUse, path+" is not a file", "weft member remove --force NAME, on a member; weft leave; weft join")
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than %d octets", path, limit)
	}
	if err != nil {
		return nil, d.failed(err)
	}
	return text, nil
}

// private returns why a folder does not protect what is in it.
func (d Dir) private(path string) error {
	i, err := os.Lstat(path)
	if err != nil {
		return d.failed(err)
	}
	if !i.IsDir() {
		return problem.New(cannotUse, path+" is not a directory", "remove it, and weft join again")
	}
	return exposed(path, i)
}

// exposed returns an error where another user may read, or owns, what is at path.
func exposed(path string, i fs.FileInfo) error {
	if i.Mode().Perm()&0o077 != 0 {
		return problem.New(cannotUse, fmt.Sprintf("other users may read %s (mode %04o), and may have its keys", path,
			i.Mode().Perm()), "weft member remove --force NAME, on a member; weft leave and weft join here")
	}
	if s, ok := i.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Geteuid() {
		return problem.New(cannotUse, fmt.Sprintf("%s belongs to uid %d, the node runs as uid %d", path, s.Uid,
			os.Geteuid()), "run the node as its owner")
	}
	return nil
}

func (d Dir) damaged(name string, err error) error {
	return &problem.Error{What: cannotUse, Why: filepath.Join(d.path, name) + " is damaged: " + err.Error(),
		Fix: "restore it from a backup, or weft member remove --force NAME, on a member; weft leave; weft join, with a " +
			"new token", Err: err}
}

// failed adds what people need to an error of the disk. fs.ErrNotExist stays what it is.
func (d Dir) failed(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fix := "make " + d.path + " readable and writable for the node's user"
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		fix = "free space on the disk of " + d.path
	}
	return &problem.Error{What: "cannot keep the identity of the node", Why: err.Error(), Fix: fix, Err: err}
}

// write replaces a file: written aside with mode 0600, flushed to disk, renamed, and the folder flushed.
func (d Dir) write(name string, text []byte) error {
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return d.failed(err)
	}
	if err := d.private(d.path); err != nil {
		return err
	}
	path := filepath.Join(d.path, name)
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d.failed(err)
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return d.failed(err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return d.failed(err)
	}
	return d.flush()
}

func (d Dir) flush() error {
	f, err := os.Open(d.path)
	if err != nil {
		return d.failed(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return d.failed(err)
	}
	return nil
}

func (d Dir) remove(name string) error {
	if err := os.Remove(filepath.Join(d.path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d.failed(err)
	}
	return nil
}
