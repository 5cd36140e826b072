// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"slices"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/node/describe"
	"weft/internal/proto/problem"
)

var errNoStore = &api.Error{Code: api.CodeNotFound, Why: "the node has no store, since it has no subnet manager",
	Fix: "weft up --sm auto"}

func (n *Network) getStore(ctx context.Context) (api.Store, error) {
	if n.store == nil {
		return api.Store{}, errNoStore
	}
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	return n.describeStore(n.store.Status(ctx)), nil
}

// describeStore turns the state of the store into what people see of it.
func (n *Network) describeStore(s store.Status) api.Store {
	down := ""
	if s.Down != nil {
		down = s.Down.Error()
	}
	v := api.Store{Kind: s.Kind, Version: s.Version, Dir: s.Dir, Endpoints: s.Endpoints, Leader: s.Leader,
		Members: s.Members, Revision: int64(s.Revision),
		SizeBytes: s.SizeBytes, UsedBytes: s.UsedBytes, MaxBytes: s.MaxBytes, Down: down}
	if n.storeMember == nil || n.fabric.Load() == nil {
		return v
	}
	p := n.storeMember.Part()
	v.Role, v.Generation, v.SetAside = p.Role.String(), int64(p.Group.Generation), p.Why
	for _, r := range p.Replicas {
		role := "voter"
		switch {
		case r.Learner:
			role = "learner"
		case r.Name == p.Leader:
			role = "leader"
		}
		v.Replicas = append(v.Replicas, api.StoreReplica{Member: n.fabric.Load().label(r.Name), URL: r.URL, Role: role})
	}
	return v
}

func (n *Network) storeEntries(ctx context.Context, tree string) (list []api.StoreEntry, err error) {
	if n.store == nil {
		return nil, errNoStore
	}
	if tree != "" {
		if err := store.CheckTree(tree); err != nil {
			return nil, describe.Invalid("weft store list", "%v", err)
		}
	}
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	l, err := reads(n.store, n.storeMember).List(ctx, tree)
	if err != nil {
		return nil, storeError(err)
	}
	for _, e := range l.Entries {
		list = append(list, api.StoreEntry{Key: e.Key, Revision: int64(e.Rev), Size: len(e.Value),
			Leased: e.Lease != 0, Value: string(e.Value)})
		if secret(e.Key) {
			list[len(list)-1].Value = "" // reading the status gives no right to manage
		}
	}
	return list, nil
}

// secrets are the trees with values that no status shows: M_Keys, sealed keys of the CA, tokens.
var secrets = []string{manager.KeyMKey, "member/sealed", "member/token"}

func secret(key string) bool {
	return slices.ContainsFunc(secrets, func(tree string) bool {
		return key == tree || strings.HasPrefix(key, tree+".") || store.Below(tree, key)
	})
}

// embedded returns the store on this node's disk, or why there is none.
func (n *Network) embedded() (*etcd.Member, error) {
	switch {
	case n.storeMember != nil:
		return n.storeMember, nil
	case n.store == nil:
		return nil, errNoStore
	}
	return nil, &api.Error{Code: api.CodeNotFound, Why: "the store is not Weft's own: " + n.cfg.Settings.StoreKind(),
		Fix: "etcdctl snapshot, for an etcd cluster"}
}

func (n *Network) backupStore(ctx context.Context) (b api.StoreBackup, err error) {
	m, err := n.embedded()
	if err != nil {
		return b, err
	}
	content, err := m.Backup(ctx)
	if err != nil {
		return b, storeError(err)
	}
	b.Entries, b.Revision = len(content.Entries), int64(content.Revision)
	b.Content, err = content.Encode()
	return b, err
}

// restoreTime bounds a restore.
const restoreTime = time.Minute

func (n *Network) restoreStore(ctx context.Context, r api.StoreRestore) (v api.Store, err error) {
	m, err := n.embedded()
	if err != nil {
		return v, err
	}
	if f := n.fabric.Load(); f != nil && f.MayRestore != nil {
		if err := f.MayRestore(); err != nil {
			return v, err
		}
	}
	var b *etcd.Backup
	if len(r.Content) > 0 {
		if b, err = etcd.ParseBackup(r.Content); err != nil {
			return v, describe.Invalid("use a file that weft store backup wrote", "%v", problem.Of("", err).Why)
		}
	}
	// A caller that leaves does not stop it half way.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), restoreTime)
	defer stop()
	if err := m.Restore(ctx, b, r.Force); err != nil {
		return v, storeError(err)
	}
	n.cfg.Log.Warn("the store was restored on this node", "from_backup", b != nil, "force", r.Force)
	v = n.describeStore(n.store.Status(ctx))
	v.Generation = int64(m.Part().Group.Generation)
	return v, nil
}

func (n *Network) defragStore(context.Context) (d api.StoreDefrag, err error) {
	m, err := n.embedded()
	if err != nil {
		return d, err
	}
	if d.Before, d.After, err = m.Defrag(); err != nil {
		return d, storeError(err)
	}
	return d, nil
}

// reads is the store to read the intent from: the node's own copy while the store has no majority.
func reads(s store.Store, m *etcd.Member) store.Store {
	if m != nil && m.Alone() {
		return copied{s, m}
	}
	return s
}

// copied is a store with reads that are those of a copy.
type copied struct {
	store.Store
	m *etcd.Member
}

func (c copied) List(ctx context.Context, tree string) (store.Listing, error) {
	return c.m.Copy(ctx, tree)
}

func (c copied) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := store.CheckKey(key); err != nil {
		return store.Entry{}, err
	}
	tree := ""
	if i := strings.LastIndexByte(key, '/'); i > 0 {
		tree = key[:i]
	}
	l, err := c.m.Copy(ctx, tree)
	if err != nil {
		return store.Entry{}, err
	}
	if i := slices.IndexFunc(l.Entries, func(e store.Entry) bool { return e.Key == key }); i >= 0 {
		return l.Entries[i], nil
	}
	return store.Entry{}, store.NotFound(key)
}
