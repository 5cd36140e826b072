// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdserver"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/voters"
)

// Backup is the content of a store. It has M_Keys and other secrets in it.
type Backup struct {
	Version  int             `json:"weft_store_backup"`
	Group    voters.Identity `json:"group"`
	Revision store.Rev       `json:"revision"`
	Entries  []BackupEntry   `json:"entries"`
	Sum      string          `json:"sha256"` // of the same with an empty Sum
}

// BackupEntry is a key with its value.
type BackupEntry struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// BackupVersion is the version of Backup that this package writes.
const BackupVersion = 1

// Bounds of a backup that is read.
const (
	maxBackup        = 4 * MaxSize / 3
	maxBackupEntries = 1 << 20
)

func (b *Backup) sum() (string, error) {
	c := *b
	c.Sum = ""
	raw, err := json.Marshal(&c)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

// Encode returns the file of a backup.
func (b *Backup) Encode() ([]byte, error) {
	var err error
	if b.Sum, err = b.sum(); err != nil {
		return nil, err
	}
	return json.Marshal(b)
}

// ParseBackup reads the file of a backup. What is cut or changed is ErrInvalid.
func ParseBackup(raw []byte) (*Backup, error) {
	bad := func(why string, args ...any) (*Backup, error) {
		return nil, &store.Error{Kind: store.ErrInvalid, What: "cannot read the backup", Why: fmt.Sprintf(why, args...),
			Fix: "use a file that weft store backup wrote"}
	}
	if len(raw) > maxBackup {
		return bad("it has %d octets, at most %d are read", len(raw), maxBackup)
	}
	var b Backup
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&b); err != nil {
		return bad("%v", err)
	}
	sum, err := b.sum()
	switch {
	case err != nil:
		return nil, err
	case b.Version != BackupVersion:
		return bad("version %d, this program reads %d", b.Version, BackupVersion)
	case sum != b.Sum:
		return bad("it is damaged: its sum is not that of its content")
	case len(b.Entries) > maxBackupEntries:
		return bad("it has %d entries", len(b.Entries))
	}
	seen := map[string]bool{}
	for _, e := range b.Entries {
		if err := store.CheckKey(e.Key); err != nil {
			return bad("%v", err)
		}
		if seen[e.Key] || len(e.Value) > store.MaxValue {
			return bad("the key %s is in it twice, or its value is too long", e.Key)
		}
		seen[e.Key] = true
	}
	return &b, nil
}

// volatile are trees that belong to a group and not to the fabric.
var volatile = []string{treePresent, treeRoster}

// Backup returns what the replica's own copy has: all that is committed where the replica is a voter of a group with a
// leader, and otherwise what it received. Keys that end with a lease are left out.
func (s *Server) Backup(ctx context.Context) (*Backup, error) {
	if why := s.down(); why != "" {
		return nil, s.broken(why, nil)
	}
	namespace := cmp.Or(s.c.Namespace, DefaultNamespace)
	r, err := s.copied(ctx, namespace+"/", namespace+"0")
	if err != nil {
		return nil, err
	}
	generation, err := s.generation(ctx)
	if err != nil {
		return nil, err
	}
	b := &Backup{Version: BackupVersion, Revision: store.Rev(r.Rev),
		Group: voters.Identity{Cluster: s.ClusterID(), Generation: generation}}
	for _, kv := range r.KVs {
		key := strings.TrimPrefix(string(kv.Key), namespace+"/")
		if kv.Lease == 0 && key != keyGeneration && !isVolatile(key) {
			b.Entries = append(b.Entries, BackupEntry{key, kv.Value})
		}
	}
	return b, nil
}

func isVolatile(key string) bool {
	for _, t := range volatile {
		if store.Below(t, key) {
			return true
		}
	}
	return false
}

// Copy lists the entries below tree in the replica's own copy, also without a leader.
func (s *Server) Copy(ctx context.Context, tree string) (store.Listing, error) {
	if err := store.CheckTree(tree); err != nil {
		return store.Listing{}, err
	}
	prefix := cmp.Or(s.c.Namespace, DefaultNamespace)
	if tree != "" {
		prefix += "/" + tree
	}
	r, err := s.copied(ctx, prefix+"/", prefix+"0")
	if err != nil {
		return store.Listing{}, err
	}
	l := store.Listing{Rev: store.Rev(r.Rev)}
	c := Client{namespace: cmp.Or(s.c.Namespace, DefaultNamespace) + "/"}
	for _, kv := range r.KVs {
		l.Entries = append(l.Entries, c.entry(kv))
	}
	return l, nil
}

// fill puts the entries of a backup into a new group.
func fill(ctx context.Context, c store.Store, b *Backup) error {
	var ops []store.Op
	size := 0
	flush := func() error {
		if len(ops) == 0 {
			return nil
		}
		_, err := c.Txn(ctx, store.Txn{Do: ops})
		ops, size = nil, 0
		return err
	}
	for _, e := range b.Entries {
		n := len(e.Key) + len(e.Value)
		if len(ops) == store.MaxTxn || size+n > store.MaxBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		ops = append(ops, store.PutOp(e.Key, e.Value))
		size += n
	}
	return flush()
}

// Defrag writes the file of the replica anew, without what is free in it. Calls of this node wait meanwhile.
func (s *Server) Defrag() (before, after int64, err error) {
	type sizes struct{ before, after int64 }
	z, err := inside(context.Background(), s.etcd, func(_ context.Context, e *etcdserver.EtcdServer) (sizes, error) {
		var z sizes
		z.before = e.Backend().Size()
		err := e.Defragment()
		z.after = e.Backend().Size()
		return z, err
	})
	if err != nil {
		return 0, 0, &store.Error{Kind: store.ErrUnavailable, What: "cannot defragment the store", Why: reason(err),
			Fix: "weft store status", Err: err}
	}
	return z.before, z.after, nil
}
