// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/proto/problem"
)

// retain changes the content of a restore so that what the fabric revoked since stays revoked, by the roster of this
// node: members that were removed, CAs that were replaced, M_Keys that removed members had. own is what this node's
// copy has, nil where it has none. A backup of another fabric, or of a host that was alone, is refused.
func retain(next, own *etcd.Backup, r *member.Roster, now time.Time) error {
	const what, fix = "cannot restore the store", "weft store restore FILE, with a backup of this fabric"
	c := content{}
	for _, e := range next.Entries {
		c[e.Key] = e.Value
	}
	fabric, err := member.Decode[member.Fabric](c[member.KeyFabric])
	switch {
	case c[member.KeyFabric] == nil:
		return problem.New(what, "the backup is from before the fabric was made: it has no members in it", fix)
	case err != nil:
		return problem.New(what, "the backup has no fabric that can be read: "+err.Error(), fix)
	case fabric.ID != r.Fabric:
		return problem.New(what, fmt.Sprintf("the backup is of fabric %s, this is fabric %s", fabric.ID, r.Fabric), fix)
	}
	had := content{}
	if own != nil {
		for _, e := range own.Entries {
			had[e.Key] = e.Value
		}
	}
	if err := c.keepRemoved(r, now); err != nil {
		return err
	}
	if err := c.keepMembers(r); err != nil {
		return problem.New(what, err.Error(), "weft member list")
	}
	if err := c.keepCAs(had, fabric, r); err != nil {
		return err
	}
	if err := c.endReports(had, r); err != nil {
		return err
	}
	if k := had[manager.KeyMKey]; k != nil { // it has the earlier keys in it
		c[manager.KeyMKey] = k
	}
	next.Entries = next.Entries[:0]
	for k, v := range c {
		next.Entries = append(next.Entries, etcd.BackupEntry{Key: k, Value: v})
	}
	slices.SortFunc(next.Entries, func(a, b etcd.BackupEntry) int { return strings.Compare(a.Key, b.Key) })
	return nil
}

// content is what a store has, by key.
type content map[string][]byte

func (c content) deleteBelow(tree string, which func(key string) bool) {
	for k := range c {
		if store.Below(tree, k) && which(k) {
			delete(c, k)
		}
	}
}

// keepRemoved takes the members out again that were removed after the backup. The M_Key that they had is in force until
// a voter replaces it, which the records have it do.
func (c content) keepRemoved(r *member.Roster, now time.Time) error {
	for i := range r.Removed {
		g := r.Removed[i]
		key := member.TreeGone + "/" + g.Key.String()
		if now.After(g.Until) || c[key] != nil {
			continue
		}
		g.MKey = true
		b, err := member.Encode[member.Gone](g)
		if err != nil {
			return err
		}
		c[key] = b
		c.deleteBelow(member.TreeToken, func(string) bool { return true }) // it may have seen them
		guid := member.GUIDKey(g.GUID)
		record := member.TreeRecord + "/" + guid
		m, err := member.Decode[member.Record](c[record])
		if c[record] == nil || err == nil && m.Key != g.Key {
			continue
		}
		for _, tree := range []string{member.TreeRecord, member.TreeReport, member.TreeStoreMember,
			member.TreeStorePresent} {
			delete(c, tree+"/"+guid)
		}
		c.deleteBelow(member.TreeName, func(k string) bool { return string(c[k]) == guid })
		c.deleteBelow(member.TreeSealed, func(k string) bool { return strings.HasSuffix(k, "/"+guid) })
	}
	return nil
}

// keepMembers keeps the members that joined after the backup, the certificates that members have now, and the CAs
// with keys that members got since. A voter without a record would have the key of a CA, and no removal would replace
// that. A record with an earlier certificate than its member uses would put the member out when its CA is replaced.
func (c content) keepMembers(r *member.Roster) error {
	for i := range r.Members {
		m := r.Members[i]
		if c[member.TreeGone+"/"+m.Key.String()] != nil {
			continue // the backup is later than the roster
		}
		guid := member.GUIDKey(m.GUID)
		key := member.TreeRecord + "/" + guid
		if old, err := member.Decode[member.Record](c[key]); c[key] != nil && err == nil && old.Key == m.Key {
			for _, e := range m.Epochs {
				if !slices.Contains(old.Epochs, e) {
					old.Epochs = append(old.Epochs, e)
				}
			}
			old.Certificate = member.LaterCertificate(m.Certificate, old.Certificate)
			m = old
		} else {
			c.deleteBelow(member.TreeName, func(k string) bool { return string(c[k]) == guid })
			if c[member.TreeName+"/"+m.Name] != nil { // another member has been renamed since
				m.Name += "-" + m.Key.Short()
			}
			if err := member.CheckName(m.Name); err != nil {
				return err
			}
			c[member.TreeName+"/"+m.Name] = []byte(guid)
		}
		b, err := member.Encode[member.Record](m)
		if err != nil {
			return err
		}
		c[key] = b
	}
	return nil
}

// endReports keeps of each report only the addresses of its member and the users that it named: the rest may have
// changed since. Each member reports again when it finds its report without its incarnation.
func (c content) endReports(had content, r *member.Roster) error {
	for i := range r.Members {
		x := &r.Members[i]
		key := member.TreeReport + "/" + member.GUIDKey(x.GUID)
		m, err := member.Decode[member.Record](c[member.TreeRecord+"/"+member.GUIDKey(x.GUID)])
		if err != nil || m.Key != x.Key {
			continue
		}
		if c[key] == nil {
			c[key] = had[key]
		}
		last, err := member.Decode[member.Report](c[key])
		if err != nil {
			last = member.Report{}
		}
		c[key], err = member.Encode[member.Report](member.Report{GUID: x.GUID, Program: last.Program, Users: last.Users,
			More: last.More, Addresses: x.Addresses, Store: x.Store, Switch: x.Switch})
		if err != nil {
			return err
		}
	}
	for key, value := range c {
		if !store.Below(member.TreeReport, key) {
			continue
		}
		if last, err := member.Decode[member.Report](value); err != nil {
			delete(c, key)
		} else if last.Incarnation != 0 { // of a member that the roster has not
			last.Incarnation, last.Clock, last.CAs, last.Signed = 0, time.Time{}, nil, 0
			if c[key], err = member.Encode[member.Report](last); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepCAs has the CAs of the roster where they are later than those of the backup, with the keys that this node's copy
// has. A voter that got the key of a CA has it in its record, as its removal needs it.
func (c content) keepCAs(had content, f member.Fabric, r *member.Roster) error {
	if len(r.CAs) == 0 || r.CAs[len(r.CAs)-1].Epoch < f.NextEpoch()-1 {
		return nil // the backup is later
	}
	f.CAs = r.CAs
	b, err := member.Encode[member.Fabric](f)
	if err != nil {
		return err
	}
	c[member.KeyFabric] = b
	valid := func(epoch uint32) bool {
		return slices.ContainsFunc(f.CAs, func(ca member.CA) bool { return ca.Epoch == epoch })
	}
	c.deleteBelow(member.TreeSealed, func(k string) bool { n, _, ok := sealedFor(k); return ok && !valid(n) })
	for k, v := range had {
		n, guid, ok := sealedFor(k)
		record := member.TreeRecord + "/" + guid
		if !ok || !valid(n) || c[record] == nil {
			continue
		}
		m, err := member.Decode[member.Record](c[record])
		if err != nil {
			continue // it is in no roster either
		}
		c[k] = v
		if !slices.Contains(m.Epochs, n) {
			m.Epochs = append(m.Epochs, n)
			if c[record], err = json.Marshal(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// sealedFor is the epoch and the voter in the key of a CA's key that is sealed to it.
func sealedFor(key string) (epoch uint32, guid string, ok bool) {
	number, guid, ok := strings.Cut(strings.TrimPrefix(key, member.TreeSealed+"/"), "/")
	n, err := strconv.ParseUint(number, 10, 32)
	return uint32(n), guid, ok && err == nil && store.Below(member.TreeSealed, key)
}
