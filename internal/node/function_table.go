// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"slices"
	"sync"

	"weft/internal/device/vhost"
	"weft/internal/node/vmcard"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// functionTable lists the functions of a node, and has the state of each that any goroutine may read. Every method may
// be called from any goroutine, and waits for none.
type functionTable struct {
	device string // the name of function 0

	// mu guards what follows, and socket, vm and disabled of every function. Only the mutex of a vmcard.Card is
	// locked with mu held.
	mu         sync.Mutex
	list       []*function       // in the order of addition; the first has the host's addresses
	oldEnds    map[string]uint64 // ends of sessions at device sockets that are closed, by reason
	serving    bool              // device sockets are open
	adapterOff bool              // the physical function disabled the whole adapter
}

// newFunctionTable returns a table with function 0.
func newFunctionTable(host *hca.Adapter) *functionTable {
	return &functionTable{device: host.Name, list: []*function{{a: host}}, oldEnds: make(map[string]uint64)}
}

// add adds a function, and reports whether the node serves: the function needs a device socket.
func (t *functionTable) add(f *function) (serving bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, f)
	return t.serving
}

// remove removes a function after its sessions have ended, and keeps the counts of their ends.
func (t *functionTable) remove(f *function) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = slices.DeleteFunc(t.list, func(o *function) bool { return o == f })
	for _, s := range f.servers() {
		for why, c := range s.Ends() {
			t.oldEnds[why] += c
		}
	}
}

// find returns the first function that matches, or nil.
func (t *functionTable) find(match func(*function) bool) *function {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.list, match)
	if i < 0 {
		return nil
	}
	return t.list[i]
}

// named returns the function with a name, or nil.
func (t *functionTable) named(name string) *function {
	return t.find(func(f *function) bool { return f.a.Name == name })
}

// byNumber returns the function with a number, or nil.
func (t *functionTable) byNumber(number uint16) *function {
	return t.find(func(f *function) bool { return f.a.Number() == number })
}

// all lists the functions in the order of their numbers.
func (t *functionTable) all() []*function {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.Clone(t.list)
	slices.SortFunc(list, func(a, b *function) int { return cmp.Compare(a.a.Number(), b.a.Number()) })
	return list
}

// adapters lists the adapters of the functions in the order of their numbers.
func (t *functionTable) adapters() (list []*hca.Adapter) {
	for _, f := range t.all() {
		list = append(list, f.a)
	}
	return list
}

// nativeAdapters lists the adapters with an InfiniBand port.
func (t *functionTable) nativeAdapters() (list []*hca.Adapter) {
	return slices.DeleteFunc(t.adapters(), func(a *hca.Adapter) bool { return a.Port().Link != ib.LinkInfiniBand })
}

// adapter returns the adapter of the function with a name, or nil.
func (t *functionTable) adapter(name string) *hca.Adapter {
	if f := t.named(name); f != nil {
		return f.a
	}
	return nil
}

// fabricPort returns the GUID of a device's InfiniBand port, which may be below an Ethernet port in a virtual Ethernet
// switch; false where it has none.
func (t *functionTable) fabricPort(device string) (ib.GUID, bool) {
	f := t.named(device)
	if f == nil || !f.ethernet() && f.a.Port().Link != ib.LinkInfiniBand {
		return 0, false
	}
	return f.a.NodeGUID + 1, true
}

// managedBy is the LID of the manager that gave a port of this node its LID, 0 where there is none.
func (t *functionTable) managedBy() ib.LID {
	for _, a := range t.nativeAdapters() {
		if p := a.Port(); p.State == ib.PortActive {
			return p.SMLID
		}
	}
	return 0
}

// physical names a device of the physical function, for commands.
func (t *functionTable) physical() string {
	if t.named(firstNative) != nil {
		return firstNative
	}
	return t.device
}

// setSocket gives a function its device socket.
func (t *functionTable) setSocket(f *function, s *vhost.Server) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.socket = s
}

// setCard makes a function the network card of a virtual machine, and reports whether the node serves: the card
// needs a socket.
func (t *functionTable) setCard(f *function, m *vmcard.Card) (serving bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.vm = m
	return t.serving
}

// setServing notes whether functions that are added need a device socket.
func (t *functionTable) setServing(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.serving = on
}

// disable notes whether a function is disabled.
func (t *functionTable) disable(f *function, yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.disabled = yes
}

// disableAdapter notes whether the whole adapter is disabled.
func (t *functionTable) disableAdapter(yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.adapterOff = yes
}

// off reports whether the function is disabled, and whether the whole adapter is.
func (t *functionTable) off(f *function) (function, adapter bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return f.disabled, t.adapterOff
}

// adapterIsOff reports whether the whole adapter is disabled.
func (t *functionTable) adapterIsOff() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.adapterOff
}

// refusals counts what clients were refused on account of quotas, by name.
func (t *functionTable) refusals() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list[0].socket.Refusals()
}

// ends counts the ends of sessions by reason, at all device sockets.
func (t *functionTable) ends() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := make(map[string]uint64, len(t.oldEnds))
	for why, c := range t.oldEnds {
		sum[why] = c
	}
	for _, f := range t.list {
		for _, s := range f.servers() {
			for why, c := range s.Ends() {
				sum[why] += c
			}
		}
	}
	return sum
}

// servers are the device sockets of the function, also that for a guest; the table's mu is held.
func (f *function) servers() (list []*vhost.Server) {
	if f.socket != nil {
		list = append(list, f.socket)
	}
	if f.vm != nil {
		if s := f.vm.Server(); s != nil {
			list = append(list, s)
		}
	}
	return list
}

// virtualFunctions is the number of the first function that is not the physical function's.
const virtualFunctions = 2

// virtual reports whether the function is not the physical function's.
func virtual(a *hca.Adapter) bool { return a.Number() >= virtualFunctions }
