// SPDX-License-Identifier: Apache-2.0

package rundir

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weft/internal/proto/ib"
)

// IdentityFile holds the node's identity: 16 hexadecimal digits.
const IdentityFile = "identity"

// identityMask are the random bits of an identity; the low 16 number the node's GUIDs, and the first octet marks it as
// locally administered.
const (
	identityMask  = 0x00ffffffffff0000
	identityLocal = 0x0200000000000000
)

// Identity returns the base of the node's GUIDs (docs/notes/fabric.md). It is generated once and kept in the directory:
// managers identify nodes by it, and assign the same LIDs again.
func (d *Dir) Identity() (ib.GUID, error) {
	name := filepath.Join(d.path, IdentityFile)
	b, err := readFile(name)
	if err == nil {
		v, perr := strconv.ParseUint(strings.TrimSpace(string(b)), 16, 64)
		if perr != nil || v&^identityMask != identityLocal || v&identityMask == 0 {
			return 0, fmt.Errorf("%s does not hold an identity (16 hexadecimal digits, 02 first, 0000 last). "+
				"fix: remove it, and the node draws another: rm %s", name, name)
		}
		return ib.GUID(v), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	var r [8]byte
	rand.Read(r[:])
	v := binary.BigEndian.Uint64(r[:])&identityMask | identityLocal
	// Written aside and renamed: a node killed in between leaves no half.
	tmp := name + ".new"
	if err := os.WriteFile(tmp, fmt.Appendf(nil, "%016x\n", v), 0o644); err != nil {
		return 0, err
	}
	return ib.GUID(v), os.Rename(tmp, name)
}

// readFile reads a small file, refusing to follow a link.
func readFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, 64)
	n, err := f.Read(b)
	return b[:n], err
}
