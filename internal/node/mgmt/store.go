// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/rundir"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/mgmt/store/voters"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/problem"
)

// openStore opens the store that the configuration names.
func (n *Network) openStore(ctx context.Context) error {
	log := n.cfg.Log.With("part", "store")
	switch n.cfg.Settings.StoreKind() {
	case config.StoreMemory:
		n.store = store.NewMemory()
		return nil
	case config.StoreEmbedded:
		if s := &n.cfg.Settings; s.StoreCAFile+s.StoreCertFile+s.StoreUserFile != "" {
			return &api.Error{What: "cannot use the store",
				Why: "certificates and a user were named for an etcd cluster, and the store is embedded",
				Fix: "weft up --store https://10.0.0.1:2379, or without --store-ca-file, --store-cert-file, " +
					"--store-user-file"}
		}
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		c := etcd.MemberConfig{Dir: filepath.Join(n.cfg.Settings.Dir, rundir.StoreDir), Name: "weft", Now: n.cfg.Now,
			Settings: voters.Settings{ReplaceAfter: n.cfg.Settings.StoreReplaceAfter}, Log: log}
		if f := n.fabric.Load(); f != nil {
			c.Name, c.Listen, c.Advertise = f.Name, f.Listen, f.Advertise
			c.Moved = f.Moved
			c.Seeds, c.Joins, c.Fabric, c.Unable, c.Security = f.Seeds, f.Joins, f.ID, f.Unable, f.Security
		} else {
			c.ListenURL = n.cfg.Settings.StoreListen
		}
		m, err := etcd.OpenMember(ctx, c)
		if err != nil {
			return err
		}
		n.storeMember, n.store = m, m
		return nil
	}
	c := etcd.ClientConfig{Endpoints: n.cfg.Settings.StoreURLs(), Log: log}
	if err := n.storeCredentials(&c); err != nil {
		return err
	}
	s, err := etcd.Connect(c)
	if err != nil {
		return err
	}
	n.store = s
	return nil
}

// storeCredentials reads how the node authenticates itself to an etcd elsewhere, and that etcd to it.
func (n *Network) storeCredentials(c *etcd.ClientConfig) error {
	s := &n.cfg.Settings
	fail := func(file string, why error) error {
		return &api.Error{What: "cannot use the store", Why: file + ": " + why.Error(),
			Fix: "weft up --help lists the files of the store; they are readable by the node's user"}
	}
	if s.StoreCAFile != "" || s.StoreCertFile != "" {
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if s.StoreCAFile != "" {
		b, err := os.ReadFile(s.StoreCAFile)
		if err != nil {
			return fail(s.StoreCAFile, err)
		}
		c.TLS.RootCAs = x509.NewCertPool()
		if !c.TLS.RootCAs.AppendCertsFromPEM(b) {
			return fail(s.StoreCAFile, errors.New("no certificate is in it"))
		}
	}
	if s.StoreCertFile != "" {
		if _, err := tls.LoadX509KeyPair(s.StoreCertFile, s.StoreKeyFile); err != nil {
			return fail(s.StoreCertFile, err)
		}
		// Read for each connection: certificates are renewed.
		c.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(s.StoreCertFile, s.StoreKeyFile)
			return &cert, err
		}
	}
	if s.StoreUserFile != "" {
		b, err := os.ReadFile(s.StoreUserFile)
		if err != nil {
			return fail(s.StoreUserFile, err)
		}
		user, password, ok := strings.Cut(strings.TrimSpace(string(b)), ":")
		if !ok || user == "" {
			return fail(s.StoreUserFile, errors.New("it is not one line USER:PASSWORD"))
		}
		c.User, c.Password = user, password
	}
	return nil
}

// storeTimeout bounds the start of the embedded store.
const storeTimeout = 10 * time.Second

func (n *Network) closeStore() {
	if n.store != nil {
		n.store.Close()
	}
}

// Start opens the store and starts the subnet manager behind port 0 of the switch. A node that shall not manage
// has a store only if one is named. The management goroutine runs. Where the store cannot be used at present the node
// serves without a manager, and reports it.
func (n *Network) Start(ctx context.Context) error {
	manages := n.cfg.Settings.SM == config.SMAuto && !n.fabric.Load().noManager()
	if n.sub == nil || !manages && n.cfg.Settings.Store == config.StoreAuto && n.fabric.Load() == nil {
		return nil
	}
	if err := n.openStore(ctx); errors.Is(err, store.ErrUnavailable) {
		n.cfg.Log.Error("no store, and so no subnet manager", "err", err)
		n.closeStore()
		n.store, n.storeMember, n.noStore = nil, nil, err
		if manages {
			n.noManager = err
		}
		return nil
	} else if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	if !manages {
		return nil // the store keeps the node's devices
	}
	key, err := nodeMKey(n.cfg.Settings.MKeyFile)
	if err != nil {
		return err
	}
	var own manager.Copy
	if n.storeMember != nil {
		own = n.storeMember
	}
	m, err := manager.New(manager.Config{Node: n.name(), Address: n.cfg.Settings.Dir, PortGUID: n.cfg.GUID,
		Priority: uint8(n.cfg.Settings.SMPriority), TIDs: uint32(manager.RandomMKey()), Store: n.store, Copy: own,
		Shared: n.cfg.Settings.StoreShared() || n.fabric.Load() != nil, MKey: key, Transit: n.Transit.load(),
		BroadcastMTU: broadcastMTU(n.cfg.Settings.IPoIBMTU), BroadcastQKey: ib.QKey(n.cfg.Settings.IPoIBQKey),
		Log: n.cfg.Log.With("part", "manager"), Now: n.cfg.Now, Post: func(f func()) { n.sub.Post(f) }})
	if err != nil {
		return err
	}
	n.manager = m
	n.sub.Do(func() {
		n.sub.Manager = m
		n.sub.Switch.SetCapability(n.cfg.Now(), mad.CapIsSM, true)
	})
	return nil
}

// nodeMKey reads the M_Key from the file that was given to the node, 0 without one.
func nodeMKey(file string) (uint64, error) {
	if file == "" {
		return 0, nil
	}
	const what, fix = "cannot read the M_Key", "write one number to it, such as 0x1122334455667788, readable by the node's user"
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, &api.Error{What: what, Why: err.Error(), Fix: fix}
	}
	key, err := api.ParseMKey(string(b))
	if err != nil {
		return 0, &api.Error{What: what, Why: file + ": " + err.Error(), Fix: fix}
	}
	return key, nil
}

// broadcastMTU is the code of an MTU in bytes that was checked.
func broadcastMTU(bytes int) ib.MTU {
	if bytes == 4096 {
		return ib.MTU4096
	}
	return ib.MTU2048
}

// showStore is the fix of an error of the store without one.
const showStore = "weft store status"

// unmanaged lists why the manager of this node does not work.
func (n *Network) unmanaged(ctx context.Context) []api.Degraded {
	switch {
	case n.noManager != nil:
		p := problem.Of("", n.noManager)
		return []api.Degraded{{What: "no_manager", Why: problem.Text(p.What, p.Why, ""),
			Fix: cmp.Or(p.Fix, showStore)}}
	case n.store == nil:
		return nil
	}
	if n.manager != nil {
		if p := n.manager.Unreadable(); p != nil {
			return []api.Degraded{{What: "intent_unreadable", Why: problem.Text(p.What, p.Why, ""),
				Fix: cmp.Or(p.Fix, showStore)}}
		}
	}
	if m := n.storeMember; m != nil {
		p := m.Part()
		if p.Room != nil {
			w := problem.Of("", p.Room)
			return []api.Degraded{{What: "store_disk", Why: problem.Text(w.What, w.Why, ""),
				Fix: cmp.Or(w.Fix, showStore)}}
		}
		if p.Alone {
			return []api.Degraded{noMajority(&p, etcd.FindOthers(ctx, m), n.fabric.Load())}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, StorePatience)
	defer cancel()
	down := n.store.Status(ctx).Down
	if down == nil {
		return nil
	}
	d := api.Degraded{What: "store_down", Why: "no answer from " + n.cfg.Settings.StoreKind(),
		Fix: "start it or make it reachable, or name another: weft up --store URL"}
	if n.fabric.Load() != nil {
		d.Fix = "start the members that have a copy of the store: weft member list, weft store status"
	}
	if ctx.Err() == nil {
		p := problem.Of("", down)
		d.Why, d.Fix = problem.Text(p.What, p.Why, ""), cmp.Or(p.Fix, showStore)
	}
	return []api.Degraded{d}
}

// noMajority is what a node with a copy of the store reports when it reaches no majority of the group. If another voter
// has a leader, the group works without this node, and a restore here would make a second store.
func noMajority(p *etcd.MemberStatus, o etcd.Others, f *Fabric) api.Degraded {
	if len(o.Leading) > 0 {
		d := api.Degraded{What: "store_path",
			Why: fmt.Sprintf("the store works at %s, and this node does not reach its leader: the configuration "+
				"cannot be changed from here; traffic goes on", f.label(o.Leading[0].Name)),
			Fix: "weft store status, there"}
		if len(o.Silent) > 0 {
			at := o.Silent[0]
			host, port := at.URL, ""
			if u, err := url.Parse(at.URL); err == nil {
				host, port = u.Hostname(), u.Port()
			}
			d.Why += "; " + f.label(at.Name) + " does not answer here"
			d.Fix = "ping " + host + "; open TCP port " + port + " between this host and " + f.label(at.Name)
		}
		return d
	}
	var names []string
	for _, r := range p.Replicas {
		if !r.Learner {
			names = append(names, f.label(r.Name))
		}
	}
	return api.Degraded{What: "store_no_majority",
		Why: fmt.Sprintf("no majority of the voters of the store (%s) can be reached: the configuration cannot be "+
			"changed; traffic goes on", strings.Join(names, ", ")),
		Fix: "start those nodes; where they are lost for good: weft store restore"}
}

// storeError is the error of a request that the store refused: with the store's fix, or the command that shows its
// state.
func storeError(err error) error {
	return describe.Problem(api.CodeInternal, "", err, "weft store status")
}

// refusedChange is the error of a change of the store: that the group has no majority, where that is why.
func refusedChange(m *etcd.Member, f *Fabric, err error) error {
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		if alone := withoutMajority(m, f); alone != nil {
			return alone
		}
	}
	return storeError(err)
}

// withoutMajority is the refusal of a change while the group of the store has no majority; nil while it has one.
func withoutMajority(m *etcd.Member, f *Fabric) error {
	if m == nil {
		return nil
	}
	p := m.Part()
	if !p.Alone {
		return nil
	}
	// The context of the change may have ended already. FindOthers ends by itself after some seconds.
	d := noMajority(&p, etcd.FindOthers(context.Background(), m), f)
	return &api.Error{Code: api.CodeInternal, Why: d.Why, Fix: d.Fix}
}

// Close ends the manager and closes the store.
func (n *Network) Close() {
	offices{n}.passOn()
	n.closeStore()
}
