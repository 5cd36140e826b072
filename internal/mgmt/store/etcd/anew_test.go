// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/x509"
	"strings"
	"testing"
)

// TestDamagedFilesOfMember: a member with damaged files is not told to move its directory away, which has its keys.
func TestDamagedFilesOfMember(t *testing.T) {
	alone := &Server{}
	if err := alone.broken("x", nil); !strings.Contains(err.Error(), "move the directory away") {
		t.Error(err)
	}
	m := &Server{c: ServerConfig{Admit: func(*x509.Certificate) (Caller, error) { return Caller{}, nil }}}
	if err := m.broken("x", nil); strings.Contains(err.Error(), "move the") ||
		!strings.Contains(err.Error(), "weft leave") {
		t.Error(err)
	}
}
