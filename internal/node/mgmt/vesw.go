// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weft/internal/control/api"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// VESWs are the operations on virtual Ethernet switches. Methods may be called where those of Network may.
type VESWs struct{ n *Network }

func (e *VESWs) list(ctx context.Context) (list []api.VESW, err error) {
	i, err := e.intent(ctx, "weft vesw list")
	if err != nil {
		return nil, err
	}
	s, master, t := e.status()
	for k := range i.VESWs {
		list = append(list, describeVESW(&i, &i.VESWs[k], s, master, t))
	}
	return list, nil
}

// Get describes the virtual Ethernet switch with a name or an identifier, as the master does.
func (e *VESWs) Get(ctx context.Context, name string) (api.VESW, error) {
	return api.Via(ctx, e.n.Forwarder(), api.GetVESW, name, e.get)
}

func (e *VESWs) get(ctx context.Context, name string) (v api.VESW, err error) {
	i, err := e.intent(ctx, "weft vesw show "+name)
	if err != nil {
		return v, err
	}
	w, err := findVESW(&i, name)
	if err != nil {
		return v, err
	}
	s, master, t := e.status()
	return describeVESW(&i, w, s, master, t), nil
}

// findVESW finds one by name, or by identifier.
func findVESW(i *em.Intent, name string) (*em.VESW, error) {
	if w := i.Find(name); w != nil {
		return w, nil
	}
	if id, err := strconv.ParseUint(name, 0, 16); err == nil {
		if k := slices.IndexFunc(i.VESWs, func(v em.VESW) bool { return v.ID == uint16(id) }); k >= 0 {
			return &i.VESWs[k], nil
		}
	}
	return nil, noVESW(name)
}

func noVESW(name string) error {
	return describe.NotFound("weft vesw list", "there is no virtual Ethernet switch %q", name)
}

// intent reads the intent from the store.
func (e *VESWs) intent(ctx context.Context, command string) (i em.Intent, err error) {
	d, err := e.n.desired(ctx, command)
	return d.Ethernet, err
}

// status is what this node's Ethernet Manager knows, if it is the master.
func (e *VESWs) status() (s em.Status, master bool, t *topo.Subnet) {
	e.n.sub.Do(func() {
		s, master = e.n.manager.Ethernet()
		t = e.n.manager.Topo()
	})
	return s, master, t
}

// describeVESW describes a virtual Ethernet switch by its intent and its state.
func describeVESW(i *em.Intent, w *em.VESW, s em.Status, master bool, t *topo.Subnet) api.VESW {
	v := api.VESW{Name: w.Name, ID: int(w.ID), PKey: describe.PKey(w.Key()), OwnPartition: w.OwnPartition(),
		FabricID: int(i.FabricID), MTU: int(w.MTU), Flood: w.Flood,
		UserMACs: !w.NoUserMACs, MaxMACs: int(w.MaxMACs), SL: int(w.SL), State: api.VESWUnknown}
	if v.MTU == 0 {
		v.MTU = mad.DefaultEthMTU
	}
	if v.MaxMACs == 0 {
		v.MaxMACs = em.DefaultMaxMACs
	}
	if w.PCP != nil {
		for _, sl := range w.PCP {
			v.PCP = append(v.PCP, int(sl))
		}
	}
	var is *em.VESWStatus
	same := func(x em.VESWStatus) bool { return x.ID == w.ID && x.Name == w.Name }
	if k := slices.IndexFunc(s.VESWs, same); master && k >= 0 {
		is = &s.VESWs[k]
		v.ActiveMTU, v.MACs, v.State = is.MTU, is.MACs, veswState(is)
		if is.MLID != 0 {
			v.MLID = fmt.Sprintf("0x%06x", 0xf00000+int(is.MLID-ib.LIDMulticastFirst))
		}
		for _, p := range is.Problems {
			x := api.VESWProblem{What: p.What, Fix: p.Fix}
			if p.Port != 0 {
				x.Port = p.Port.String()
			}
			v.Problems = append(v.Problems, x)
		}
	}
	for _, m := range w.Members {
		p := api.VESWPort{GUID: m.Port.String(), VPort: int(m.Index), Number: int(m.Num), Gateway: m.Gateway,
			Name: portName(t, m.Port)}
		if is != nil {
			if k := slices.IndexFunc(is.Members, func(x em.MemberStatus) bool { return x.Port == m.Port }); k >= 0 {
				x := &is.Members[k]
				p.LID, p.Agent, p.State, p.Default = int(x.LID), x.Agent, x.State, x.Default
				if x.BaseMAC != (em.MAC{}) {
					p.BaseMAC = x.BaseMAC.String()
				}
				p.MACs, p.Groups = macTexts(x.MACs), macTexts(x.Multicast)
				p.Differs = memberDiffers(x, is.Problems)
			}
		}
		v.Ports = append(v.Ports, p)
	}
	return v
}

// memberDiffers compares the state of a member's port with that of one that forwards.
func memberDiffers(x *em.MemberStatus, problems []em.Problem) (d api.Differs) {
	switch x.State {
	case em.StateForwarding:
		return d
	case em.StateWaiting, em.StateConfiguring, em.StateDropping:
		d = api.Differs{Flag: api.FlagNotYet, Why: "the port is " + x.State}
	case em.StateAbsent:
		d = api.Differs{Flag: api.FlagMissing, Why: sm.Absent}
	default:
		d = api.Differs{Flag: api.FlagMissing, Why: "its interface is " + x.State}
	}
	for _, p := range problems {
		if p.Port == x.Port {
			d = api.Differs{Flag: api.FlagMissing, Why: p.What}
		}
	}
	return d
}

func macTexts(list []em.MAC) (texts []string) {
	for _, m := range list {
		texts = append(texts, m.String())
	}
	return texts
}

// veswState is the state of a VESW in a word.
func veswState(s *em.VESWStatus) string {
	if len(s.Problems) > 0 {
		return api.VESWDegraded
	}
	for _, m := range s.Members {
		switch m.State {
		case em.StateWaiting, em.StateConfiguring, em.StateDropping:
			return api.VESWConfiguring
		}
	}
	return api.VESWUp
}

// edit changes the configuration in the store, and describes one of its virtual Ethernet switches.
func (e *VESWs) edit(ctx context.Context, op, help, name string, f func(*manager.Desired) error) (v api.VESW,
	err error) {
	var after em.Intent
	err = e.n.change(ctx, op, help, func(d *manager.Desired) error {
		if err := f(d); err != nil {
			return err
		}
		after = d.Ethernet
		return nil
	})
	switch {
	case errors.Is(err, em.ErrNoVESW):
		return v, noVESW(name)
	case err != nil:
		return v, err
	}
	if w := after.Find(name); w != nil {
		s, master, t := e.status()
		v = describeVESW(&after, w, s, master, t)
	}
	return v, nil
}

// narrow turns numbers of a request into those of an intent; what does not fit is refused.
func narrow[T uint8 | uint16](v int, what string) (T, error) {
	if v < 0 || int(T(v)) != v {
		return 0, fmt.Errorf("%s: %d is out of range", what, v)
	}
	return T(v), nil
}

func (e *VESWs) create(ctx context.Context, c api.VESWCreate) (api.VESW, error) {
	const help = "weft vesw create --help"
	w := em.VESW{Name: c.Name, Flood: c.Flood, NoUserMACs: c.NoUserMACs}
	var errs [6]error
	w.ID, errs[0] = narrow[uint16](c.ID, "id")
	w.MTU, errs[1] = narrow[uint16](c.MTU, "MTU")
	w.MaxMACs, errs[2] = narrow[uint16](c.MaxMACs, "number of MACs")
	w.SL, errs[3] = narrow[uint8](c.SL, "service level")
	if len(c.PCP) != 0 {
		w.PCP = new([8]uint8)
		if len(c.PCP) != len(w.PCP) {
			errs[4] = fmt.Errorf("%d service levels by priority: want 8", len(c.PCP))
		}
		for k := range min(len(c.PCP), len(w.PCP)) {
			var err error
			if w.PCP[k], err = narrow[uint8](c.PCP[k], "service level"); err != nil {
				errs[4] = err
			}
		}
	}
	if c.PKey != "" {
		w.PKey, errs[5] = describe.ParsePKey(c.PKey)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return api.VESW{}, describe.Invalid(help, "%v", err)
	}
	if err := e.n.editable(ctx, "weft vesw create"); err != nil {
		return api.VESW{}, err
	}
	v, err := e.edit(ctx, "vesw create", help, c.Name, func(d *manager.Desired) error {
		i := &d.Ethernet
		if c.ByteIDs != nil {
			i.ByteIDs = *c.ByteIDs
		}
		if c.FabricID != nil {
			id, err := narrow[uint16](*c.FabricID, "fabric id")
			if err != nil {
				return describe.Invalid(help, "%v", err)
			}
			i.FabricID = id
		}
		if i.Find(c.Name) != nil {
			return &api.Error{Code: api.CodeConflict, Why: fmt.Sprintf("there is a virtual Ethernet switch %q already",
				c.Name), Fix: "weft vesw set " + c.Name}
		}
		if err := i.Create(w); err != nil {
			return describe.Invalid(help, "%v", err)
		}
		return partitionFree(&d.Intent, i.Find(c.Name))
	})
	if err == nil {
		e.n.cfg.Log.Info("virtual Ethernet switch created", "name", c.Name, "id", v.ID)
	}
	return v, err
}

// partitionFree refuses a VESW the partition of others, which would then be in it.
func partitionFree(i *manager.Intent, v *em.VESW) error {
	if !v.OwnPartition() || partition(i, v.Key()) < 0 {
		return nil
	}
	key := describe.PKey(v.Key())
	return &api.Error{Code: api.CodeConflict,
		Why: "partition " + key + ", which it would have for itself, is there already",
		Fix: "weft vesw create NAME --id N with another, or --pkey " + key + " to share it"}
}

func (e *VESWs) change(ctx context.Context, name string, c api.VESWChange) (v api.VESW, err error) {
	const help = "weft vesw set --help"
	if err := e.n.editable(ctx, "weft vesw set"); err != nil {
		return v, err
	}
	return e.editNamed(ctx, "vesw set", help, name, func(d *manager.Desired, w *em.VESW) (err error) {
		if c.PKey != nil {
			if w.PKey = 0; *c.PKey != "" {
				if w.PKey, err = describe.ParsePKey(*c.PKey); err != nil {
					return err
				}
			}
			if err := partitionFree(&d.Intent, w); err != nil {
				return err
			}
		}
		if c.MTU != nil {
			if w.MTU, err = narrow[uint16](*c.MTU, "MTU"); err != nil {
				return err
			}
		}
		if c.MaxMACs != nil {
			if w.MaxMACs, err = narrow[uint16](*c.MaxMACs, "number of MACs"); err != nil {
				return err
			}
		}
		if c.SL != nil {
			if w.SL, err = narrow[uint8](*c.SL, "service level"); err != nil {
				return err
			}
		}
		if c.Flood != nil {
			w.Flood = *c.Flood
		}
		if c.UserMACs != nil {
			w.NoUserMACs = !*c.UserMACs
		}
		return nil
	})
}

// editNamed changes the VESW with a name or an identifier.
func (e *VESWs) editNamed(ctx context.Context, op, help, name string,
	f func(*manager.Desired, *em.VESW) error) (api.VESW, error) {
	i, err := e.intent(ctx, strings.TrimSuffix(help, " --help"))
	if err != nil {
		return api.VESW{}, err
	}
	w, err := findVESW(&i, name)
	if err != nil {
		return api.VESW{}, err
	}
	name = w.Name
	return e.edit(ctx, op, help, name, func(d *manager.Desired) error {
		w := d.Ethernet.Find(name)
		if w == nil {
			return noVESW(name)
		}
		err := f(d, w)
		var known *api.Error
		if err == nil || errors.As(err, &known) || errors.Is(err, em.ErrNoVESW) {
			return err
		}
		return describe.Invalid(help, "%v", err)
	})
}

func (e *VESWs) delete(ctx context.Context, name string) error {
	_, err := e.editNamed(ctx, "vesw delete", "weft vesw list", name, func(d *manager.Desired, w *em.VESW) error {
		return d.Ethernet.Delete(w.Name)
	})
	if err == nil {
		e.n.cfg.Log.Info("virtual Ethernet switch deleted", "name", name)
	}
	return err
}

// AddPort has the master add the port of a device of this node to a virtual Ethernet switch.
func (e *VESWs) AddPort(ctx context.Context, name string, p api.VESWPortAdd) (api.VESW, error) {
	p.Port = e.portOf(p.Port)
	return api.Via(ctx, e.n.Forwarder(), api.AddVESWPort, api.Named[api.VESWPortAdd]{Name: name, Value: p},
		func(ctx context.Context, a api.Named[api.VESWPortAdd]) (api.VESW, error) {
			return e.addPort(ctx, a.Name, a.Value)
		})
}

// portOf is the GUID of the port of a device of this node: the master may not have seen the device yet. A name that is
// none stays as it is.
func (e *VESWs) portOf(device string) string {
	if g, ok := e.n.cfg.DevicePort(device); ok {
		return g.String()
	}
	return device
}

func (e *VESWs) addPort(ctx context.Context, name string, p api.VESWPortAdd) (v api.VESW, err error) {
	const help = "weft vesw port add --help"
	index := -1
	if p.VPort != nil {
		if index = *p.VPort; index < 0 || index > em.MaxIndex {
			return v, describe.Invalid(help, "a vport is 0 to %d, not %d", em.MaxIndex, index)
		}
	}
	if err := e.n.editable(ctx, "weft vesw port add"); err != nil {
		return v, err
	}
	guid, err := e.n.portNamed(ctx, p.Port, e.n.topologyIfKnown())
	if err != nil {
		return v, err
	}
	if host := e.n.cfg.Drained(guid); host != "" {
		return v, &api.Error{Code: api.CodeDrained, Why: host + " is drained: it accepts no new virtual port",
			Fix: "weft member undrain " + host}
	}
	v, err = e.editNamed(ctx, "vesw port add", help, name, func(d *manager.Desired, w *em.VESW) error {
		_, err := d.Ethernet.Add(w.Name, guid, index, p.Gateway)
		return err
	})
	if err == nil {
		e.n.cfg.Log.Info("port added to a virtual Ethernet switch", "name", v.Name, "port", guid)
	}
	return v, err
}

func (e *VESWs) removePort(ctx context.Context, name, port string, vport int) error {
	if err := e.n.editable(ctx, "weft vesw port del"); err != nil {
		return err
	}
	guid, err := e.n.portNamed(ctx, port, e.n.topologyIfKnown())
	if err != nil {
		return err
	}
	_, err = e.editNamed(ctx, "vesw port delete", "weft vesw port del --help", name, func(d *manager.Desired,
		w *em.VESW) error {
		if err := d.Ethernet.Remove(w.Name, guid, vport); err != nil {
			return describe.NotFound("weft vesw show "+w.Name, "port %s is no member of %s", port, w.Name)
		}
		return nil
	})
	if err == nil {
		e.n.cfg.Log.Info("port taken out of a virtual Ethernet switch", "name", name, "port", guid)
	}
	return err
}

// Leave has the master take a device that is about to be deleted out of a virtual Ethernet switch, vesw; empty: it is
// in none. What the request of ctx confirmed was compared with the whole deletion (RefuseDelete), of which this is a
// part; without a confirmation nothing was lost. The error is that contact is lost by now, and the device stays. It is
// deleted even where anything else fails.
func (e *VESWs) Leave(ctx context.Context, vesw, device string) error {
	if vesw == "" {
		return nil
	}
	if api.Confirmed(ctx) != "" {
		ctx = api.Confirm(ctx, api.ConfirmAll)
	}
	_, err := api.Via(ctx, e.n.Forwarder(), api.DeleteVESWPort, api.VESWPortDelete{Name: vesw, Port: e.portOf(device)},
		func(ctx context.Context, p api.VESWPortDelete) (none api.None, err error) {
			return none, e.deletePort(ctx, p)
		})
	var known *api.Error
	switch {
	case errors.As(err, &known) && known.Code == api.CodeContact:
		return err
	case err != nil && !(known != nil && known.Code == api.CodeNotFound):
		e.n.cfg.Log.Warn("a deleted device is still in the configuration of its VESW", "device", device, "vesw", vesw,
			"err", err)
	}
	return nil
}

// deletePort names the vport of the port, none where any of them is meant.
func (e *VESWs) deletePort(ctx context.Context, p api.VESWPortDelete) error {
	vport := -1
	if p.VPort != nil {
		vport = int(*p.VPort)
	}
	return e.removePort(ctx, p.Name, p.Port, vport)
}

// degraded lists the virtual Ethernet switches that differ from the intent.
func (e *VESWs) degraded() (list []api.Degraded) {
	if e.n.sub == nil || e.n.manager == nil {
		return nil
	}
	s, master, t := e.status()
	if !master {
		return nil
	}
	for k := range s.VESWs {
		v := &s.VESWs[k]
		if len(v.Problems) == 0 {
			continue
		}
		p := v.Problems[0]
		why := p.What
		if p.Port != 0 {
			who := p.Port.String()
			if name := portName(t, p.Port); name != "" {
				who = name
			}
			why = who + ": " + why
		}
		fix := p.Fix
		if more := len(v.Problems) - 1; more > 0 {
			why += fmt.Sprintf(", and %d more", more)
			fix = "weft vesw show " + v.Name
		}
		list = append(list, api.Degraded{What: "vesw_" + v.Name, Why: why, Fix: fix})
	}
	return list
}

// keyTaken refuses a partition that a virtual Ethernet switch has for itself.
func keyTaken(i *em.Intent, key ib.PKey) error {
	for k := range i.VESWs {
		if v := &i.VESWs[k]; v.OwnPartition() && (v.Key()^key)&0x7fff == 0 {
			return describe.Invalid("weft vesw show "+v.Name,
				"it is the partition that the virtual Ethernet switch %s has for itself", v.Name)
		}
	}
	return nil
}
