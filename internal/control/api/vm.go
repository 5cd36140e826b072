// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"regexp"
	"strings"

	"weft/internal/proto/abi"
)

// Bounds of a virtual machine's network card.
const (
	MaxVMQueues = 32
	// maxVMSocket is what a socket's address has room for.
	maxVMSocket = 107
)

// NewVM is a network card of a virtual machine to add: a function of the node that exchanges frames with the machine by
// vhost-user.
type NewVM struct {
	Name string `json:"name" order:"1"`
	// VESW is the virtual Ethernet switch that it is to be in, by name or number; empty: the manager of the switches
	// assigns one.
	VESW string `json:"vesw"`
	// MAC is the card's address; empty: the node chooses one, for good.
	MAC string `json:"mac"`
	// Queues is how many queue pairs it has; 0: 1.
	Queues int `json:"queues"`
	// Socket is where the machine's emulator connects; empty: one below the node's directory.
	Socket string `json:"socket"`
	// Connect is, instead, where the emulator listens, and the node connects.
	Connect string `json:"connect"`
	// AllowUID is the user of an emulator that may connect to Socket, besides root and the node's own one; 0: no other.
	AllowUID int `json:"allow_uid"`
	// Packed has the machine use packed rings.
	Packed bool `json:"packed"`
	// RDMA gives the card a RoCE half (VIRTIO_NET_F_ROCE): the guest has an adapter with an address of its own.
	RDMA bool `json:"rdma"`
	// QPs and CQs are how many queue pairs and completion queues the programs of the guest may have; 0:
	// DefaultVMQPs, DefaultVMCQs. Only with RDMA.
	QPs int `json:"qp"`
	CQs int `json:"cq"`
	// Memory is the memory of the machine in the options for its emulator, as QEMU's -m takes it; empty: the node does
	// not know it.
	Memory string `json:"memory"`
}

// memorySize is a size as QEMU's -m takes it: a number with an optional unit.
var memorySize = regexp.MustCompile(`^[1-9][0-9]{0,9}[kKmMgGtT]?$`)

// ValidateMemory reports why a text is no memory size.
func ValidateMemory(s string) error {
	if !memorySize.MatchString(s) {
		return fmt.Errorf("the memory must be a number with K, M, G or T, such as 512M, not %q", s)
	}
	return nil
}

// Validate reports all that is wrong with the request.
func (v *NewVM) Validate() error {
	var errs []error
	if !functionName.MatchString(v.Name) {
		errs = append(errs, fmt.Errorf("the name must be a letter and up to 31 letters, digits or underscores, all lower case, not %q", v.Name))
	}
	if v.MAC != "" {
		if _, err := ParseMAC(v.MAC); err != nil {
			errs = append(errs, err)
		}
	}
	if v.Queues < 0 || v.Queues > MaxVMQueues {
		errs = append(errs, fmt.Errorf("queue pairs must be 1 to %d, not %d", MaxVMQueues, v.Queues))
	}
	if v.Socket != "" && v.Connect != "" {
		errs = append(errs, errors.New("either the node listens (socket) or the emulator does (connect), not both"))
	}
	if v.AllowUID < 0 || v.AllowUID > math.MaxUint32-1 {
		errs = append(errs, fmt.Errorf("%d is no user of an emulator", v.AllowUID))
	}
	if v.AllowUID != 0 && v.Connect != "" {
		errs = append(errs, errors.New("who reaches the socket of an emulator (connect) is not for the node to allow"))
	}
	if v.Memory != "" {
		errs = append(errs, ValidateMemory(v.Memory))
	}
	errs = append(errs, v.validateRDMA())
	for _, s := range []string{v.Socket, v.Connect} {
		switch {
		case s == "":
		case !filepath.IsAbs(s):
			errs = append(errs, fmt.Errorf("the path of a socket must begin with /, %q does not", s))
		case len(s) > maxVMSocket:
			errs = append(errs, fmt.Errorf("the path of a socket has %d bytes at most, %q has %d", maxVMSocket, s,
				len(s)))
		case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == ',' || r == 0x7f }):
			errs = append(errs, fmt.Errorf("the path of a socket must be without blanks and commas, not %q", s))
		}
	}
	return errors.Join(errs...)
}

// A card with RDMA has DefaultVMQPs queue pairs for programs and DefaultVMCQs completion queues by default.
const (
	DefaultVMQPs = 64
	DefaultVMCQs = 32
)

// reservedQPs are the queue pairs of a card that are not for programs: 0, which is never given out, and the GSI queue
// pair.
const reservedQPs = 2

// QPSlots is how many queue pairs the card has in all (max_rdma_qps), those included that are not for programs.
func (v *NewVM) QPSlots() int { return v.QPs + reservedQPs }

// Rings is how many virtqueues a card has: its receive and transmit queues, the control queue, and with RDMA its
// completion queues, and a send and a receive queue for each queue pair.
func (v *NewVM) Rings() int {
	rings := abi.Rings{Pairs: max(v.Queues, 1)}
	if v.RDMA {
		rings.CQs, rings.QPs = v.CQs, v.QPSlots()
	}
	return rings.Total()
}

// Complete fills in the defaults of the numbers of queues.
func (v *NewVM) Complete() {
	if v.Queues == 0 {
		v.Queues = 1
	}
	if v.RDMA && v.QPs == 0 {
		v.QPs = DefaultVMQPs
	}
	if v.RDMA && v.CQs == 0 {
		v.CQs = DefaultVMCQs
	}
}

// validateRDMA reports what is wrong with the request's RoCE half.
func (v *NewVM) validateRDMA() error {
	if !v.RDMA {
		if v.QPs != 0 || v.CQs != 0 {
			return errors.New("only a card with RDMA (rdma) has queue pairs (qp) and completion queues (cq) of it")
		}
		return nil
	}
	full := *v
	full.Complete()
	switch {
	case v.QPs < 0 || v.CQs < 0:
		return fmt.Errorf("%d queue pairs of RDMA and %d completion queues: both must be positive", v.QPs, v.CQs)
	case v.Packed:
		return errors.New("a card has either RDMA (rdma) or packed rings (packed): the rings of RDMA are split")
	case v.Connect != "":
		return errors.New("the emulator connects to a card with RDMA (rdma), not the node to the emulator (connect): " +
			"QEMU ends when a node that starts again connects a second time")
	case full.QPs > abi.MaxVhostRings || full.CQs > abi.MaxVhostRings || full.Rings() > abi.MaxVhostRings:
		return fmt.Errorf("%d Ethernet queue pairs, %d queue pairs of RDMA and %d completion queues take %d "+
			"virtqueues, and vhost-user has %d: 2 for each Ethernet queue pair, 1 for control, 1 for each completion "+
			"queue, and 2 for each queue pair of RDMA and for 2 more", full.Queues, full.QPs, full.CQs, full.Rings(),
			abi.MaxVhostRings)
	}
	return nil
}

// ParseMAC reads the address of a station.
func ParseMAC(s string) (mac [6]byte, err error) {
	b, err := net.ParseMAC(s)
	if err != nil || len(b) != len(mac) {
		return mac, fmt.Errorf("%q is no MAC address", s)
	}
	copy(mac[:], b)
	if mac[0]&1 != 0 || mac == ([6]byte{}) {
		return mac, fmt.Errorf("%s is not the MAC address of a station", s)
	}
	return mac, nil
}

// VM is a network card of a virtual machine as it is. What NewVM leaves open is filled in.
type VM struct {
	NewVM
	Number   int    `json:"number"` // of its function
	PortGUID string `json:"port_guid"`
	// Guest reports whether an emulator is connected; Reason is the reason where none is.
	Guest  bool   `json:"guest"`
	Reason string `json:"reason"`
	PID    int    `json:"pid"` // of the emulator
	UID    int    `json:"uid"`
	// Running reports whether the machine's driver uses the card.
	Running  bool `json:"running"`
	Sessions int  `json:"sessions"` // that there have been
	// VESWNumber is the virtual Ethernet switch that it is in, 0: none, VPort its port of the function.
	VESWNumber int  `json:"vesw_number"`
	VPort      int  `json:"vport"`
	MTU        int  `json:"mtu"` // the longest, 0: not known
	Carrier    bool `json:"carrier"`
	// CarrierReason is the reason of no carrier.
	CarrierReason string `json:"carrier_reason"`
	// Kept is whether it is there after the node starts again, NotKept why not.
	Kept    bool   `json:"kept"`
	NotKept string `json:"not_kept"`
	// RoCE is the RoCE half as the guest uses it; nil: the card has none, or no emulator is connected.
	RoCE *VMRoCE `json:"roce"`
}

// VMRoCE is the RoCE half of a card as its guest uses it.
type VMRoCE struct {
	// Negotiated reports whether the driver of the guest uses it.
	Negotiated bool `json:"negotiated"`
	// NeedsReset is why the device stands still until the driver resets it, empty: it does not. Resets is how often it
	// needed one.
	NeedsReset string `json:"needs_reset"`
	Resets     uint64 `json:"resets"`
	// Broken are rings of objects that a program of the guest, or its driver, broke. Only these objects are in error.
	Broken []VMBroken `json:"broken"`
	// GIDs are the addresses that the driver gave the card.
	GIDs []GID `json:"gids"`
	// How many objects there are.
	PDs  int `json:"pd"`
	MRs  int `json:"mr"`
	MWs  int `json:"mw"`
	CQs  int `json:"cq"`
	SRQs int `json:"srq"`
	AHs  int `json:"ah"`
	// QPs are the queue pairs.
	QPs []VMQP `json:"qps"`
	// Refused are the last commands that were refused, the latest last.
	Refused []VMRefusal `json:"refused" order:"given: in the order of time"`
}

// VMBroken is the broken ring of a queue pair, of a shared receive queue or of a completion queue of a guest. The object
// is in error, and the ring is not looked at, until the guest destroys the object.
type VMBroken struct {
	Ring  int    `json:"ring" order:"1"`
	Queue string `json:"queue"` // the object: its kind and its number
	Why   string `json:"why"`
}

// VMQP is a queue pair of a guest.
type VMQP struct {
	QPN       uint32 `json:"qpn" order:"1"`
	Type      string `json:"type"`
	State     string `json:"state"`
	RemoteGID string `json:"rgid"` // empty: it is not connected
	RemoteQPN uint32 `json:"rqpn"`
}

// VMRefusal is a command of a guest that was refused.
type VMRefusal struct {
	AgoNS   int64  `json:"ago_ns"`
	Command string `json:"command"`
	Why     string `json:"why"`
}

// VMRingSize is the length of the virtqueues of a card with RDMA: the most that QEMU has.
const VMRingSize = 1024

// qemuRDMA returns the options of a card with RDMA. QEMU's own network card keeps the control queue to itself, so the
// card is a generic device of QEMU 11 or later. It must not reconnect (docs/notes/qemu.md).
func (v *VM) qemuRDMA(memory string) []string {
	return []string{
		"-m " + memory,
		fmt.Sprintf("-object memory-backend-memfd,id=mem-%s,size=%s,share=on", v.Name, memory),
		"-machine memory-backend=mem-" + v.Name,
		fmt.Sprintf("-chardev socket,id=chr-%s,path=%s", v.Name, v.Socket),
		fmt.Sprintf("-device vhost-user-test-device-pci,id=card-%s,chardev=chr-%[1]s,virtio-id=1,num_vqs=%d,vq_size=%d,"+
			"config_size=%d,page-per-vq=on", v.Name, v.Rings(), VMRingSize, abi.ConfigSize),
	}
}

// QEMU returns the options that give a machine of QEMU 7.2 or later the card, one or two words each; with RDMA it must
// be QEMU 11 or later. memory is the machine's, as -m takes it: the node has to share it.
func (v *VM) QEMU(memory string) []string {
	if v.RDMA {
		return v.qemuRDMA(memory)
	}
	chardev := fmt.Sprintf("socket,id=chr-%s,path=%s", v.Name, v.Socket)
	if v.Connect != "" {
		chardev = fmt.Sprintf("socket,id=chr-%s,path=%s,server=on,wait=off", v.Name, v.Connect)
	} else {
		chardev += ",reconnect=1"
	}
	netdev := fmt.Sprintf("vhost-user,id=net-%s,chardev=chr-%[1]s", v.Name)
	device := fmt.Sprintf("virtio-net-pci,netdev=net-%s,mac=%s,rx_queue_size=1024,tx_queue_size=1024", v.Name, v.MAC)
	if v.Queues > 1 {
		netdev += fmt.Sprintf(",queues=%d", v.Queues)
		device += fmt.Sprintf(",mq=on,vectors=%d", 2*v.Queues+2)
	}
	if v.Packed {
		device += ",packed=on"
	}
	if v.MTU != 0 && v.MTU != defaultMTU {
		device += fmt.Sprintf(",host_mtu=%d", v.MTU)
	}
	return []string{
		"-m " + memory,
		fmt.Sprintf("-object memory-backend-memfd,id=mem-%s,size=%s,share=on", v.Name, memory),
		"-machine memory-backend=mem-" + v.Name,
		"-chardev " + chardev,
		"-netdev " + netdev,
		"-device " + device,
	}
}

// defaultMTU is that of an Ethernet interface without configuration.
const defaultMTU = 1500

// Libvirt returns what a domain of libvirt needs for the card.
func (v *VM) Libvirt() string {
	path, mode := v.Socket, "client"
	if v.Connect != "" {
		path, mode = v.Connect, "server"
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<memoryBacking>
  <source type='memfd'/>
  <access mode='shared'/>
</memoryBacking>
<interface type='vhostuser'>
  <mac address='%s'/>
`, v.MAC)
	if mode == "client" {
		fmt.Fprintf(&b, "  <source type='unix' path='%s' mode='client'>\n    <reconnect enabled='yes' timeout='1'/>\n  </source>\n", xmlText(path))
	} else {
		fmt.Fprintf(&b, "  <source type='unix' path='%s' mode='server'/>\n", xmlText(path))
	}
	b.WriteString("  <model type='virtio'/>\n  <driver")
	if v.Queues > 1 {
		fmt.Fprintf(&b, " queues='%d'", v.Queues)
	}
	b.WriteString(" rx_queue_size='1024' tx_queue_size='1024'")
	if v.Packed {
		b.WriteString(" packed='on'")
	}
	b.WriteString("/>\n")
	if v.MTU != 0 && v.MTU != defaultMTU {
		fmt.Fprintf(&b, "  <mtu size='%d'/>\n", v.MTU)
	}
	b.WriteString("</interface>\n")
	return b.String()
}

var xmlText = strings.NewReplacer("&", "&amp;", "<", "&lt;", "'", "&apos;").Replace
