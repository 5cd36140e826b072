// SPDX-License-Identifier: Apache-2.0

package rocefront

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// Feature bits of the device.
const (
	FeatureGuestOffloads        = 1 << 2 // VIRTIO_NET_F_CTRL_GUEST_OFFLOADS
	FeatureMTU                  = 1 << 3
	FeatureMAC                  = 1 << 5
	FeatureStatus               = 1 << 16
	FeatureCtrlVQ               = 1 << 17
	FeatureCtrlRX               = 1 << 18
	FeatureMQ                   = 1 << 22
	FeatureCtrlMAC              = 1 << 23
	FeatureIndirect             = 1 << 28
	FeatureEventIdx             = 1 << 29
	featureProtocol             = 1 << 30 // VHOST_USER_F_PROTOCOL_FEATURES
	FeatureVersion1             = 1 << 32
	FeatureRoCE                 = 1 << 55
	required             uint64 = FeatureCtrlVQ | FeatureVersion1 | FeatureRoCE
)

// Bits of the device status field (virtio 1.2, 2.1).
const (
	statusAcknowledge = 1
	statusDriver      = 2
	statusDriverOK    = 4
	statusFeaturesOK  = 8
)

// Options are how a driver uses a device. The zero value announces memory by ADD_MEM_REG, sends a command in four
// descriptors, and negotiates only what RoCE requires.
type Options struct {
	Features uint64 // wanted besides the required ones; the device must offer them all
	MemTable bool   // announce memory by SET_MEM_TABLE
	Framing  Framing
}

// Config is the device's configuration space: struct virtio_net_config with the two fields of the RFC.
type Config struct {
	MAC                    [6]byte
	Status, MaxPairs, MTU  uint16
	Speed                  uint32
	Duplex, RSSMaxKeySize  uint8
	RSSMaxTable            uint16
	SupportedHashes        uint32
	MaxRDMAQPs, MaxRDMACQs uint32
}

// Device is a driver's end of a device.
type Device struct {
	Memory   *Memory
	Offered  uint64 // feature bits that the device offers
	Features uint64 // feature bits that are negotiated
	Config   Config

	opts  Options
	conn  *connection
	rings map[int]*ring // that are started, by their index
	ctrl  *ring
	// Guest memory of control commands.
	request, result uint64
	net             *netQueue
	addrs           []netip.Addr // that the guest's IP stack has
	serving, closed bool

	// Beside are devices of guests that run while this one waits: their IP stacks answer.
	Beside []*Device
}

// Open connects to the socket of a device and initializes the device: virtio 1.2, 3.1.1.
func Open(path string, o Options) (*Device, error) {
	conn, err := dial(path)
	if err != nil {
		return nil, err
	}
	d := &Device{opts: o, conn: conn, rings: map[int]*ring{}}
	if d.Memory, err = newMemory(); err != nil {
		conn.sock.Close()
		return nil, err
	}
	if err := d.initialize(); err != nil {
		return nil, errors.Join(fmt.Errorf("initialize the device at %s: %w", path, err), d.release())
	}
	return d, nil
}

func (d *Device) initialize() (err error) {
	c := d.conn
	if d.Offered, err = c.get64(getFeatures); err != nil {
		return err
	}
	want := required | featureProtocol | d.opts.Features
	if missing := want &^ d.Offered; missing != 0 {
		return fmt.Errorf("the device does not offer feature bits %#x", missing)
	}
	protocol, err := c.get64(getProtocolFeatures)
	if err != nil {
		return err
	}
	need := uint64(protocolConfig | protocolReplyAck | protocolStatus | protocolMQ)
	if !d.opts.MemTable {
		need |= protocolMemSlots
	}
	if missing := need &^ protocol; missing != 0 {
		return fmt.Errorf("the device does not offer protocol feature bits %#x", missing)
	}
	if err := c.do(setProtocolFeatures, u64(need)); err != nil {
		return err
	}
	c.replyAck = true
	if err := c.do(setOwner, nil); err != nil {
		return err
	}
	if err := d.setStatus(statusAcknowledge, statusAcknowledge|statusDriver); err != nil {
		return err
	}
	if err := d.readConfig(); err != nil {
		return err
	}
	if err := c.do(setFeatures, u64(want)); err != nil {
		return err
	}
	d.Features = want
	if err := d.setStatus(statusAcknowledge | statusDriver | statusFeaturesOK); err != nil {
		return err
	}
	if s, err := c.get64(getStatus); err != nil || s&statusFeaturesOK == 0 {
		return errors.Join(err, fmt.Errorf("the device does not accept features %#x: status %#x", want, s))
	}
	if err := c.announce(d.Memory, d.opts.MemTable); err != nil {
		return err
	}
	d.request, d.result = d.Memory.Alloc(1<<20), d.Memory.Alloc(pageSize)
	if d.ctrl, err = d.startRing(2*d.pairs(), 64); err != nil {
		return err
	}
	if err := d.startNet(); err != nil {
		return err
	}
	return d.setStatus(statusAcknowledge | statusDriver | statusFeaturesOK | statusDriverOK)
}

// setStatus sets the device status field to each of the values.
func (d *Device) setStatus(list ...uint64) error {
	for _, v := range list {
		if err := d.conn.do(setStatus, u64(v)); err != nil {
			return err
		}
	}
	return nil
}

func (d *Device) readConfig() error {
	const size = 32
	head := le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, 0), size), 0)
	b, err := d.conn.get(getConfig, append(head, make([]byte, size)...))
	if err == nil && len(b) != 12+size {
		err = fmt.Errorf("the configuration space: a reply of %d octets, not %d", len(b), 12+size)
	}
	if err == nil {
		err = decode(b[12:], &d.Config)
	}
	return err
}

// pairs is the RFC's N: how many pairs of Ethernet queues there are.
func (d *Device) pairs() int {
	if d.Features&FeatureMQ != 0 {
		return int(d.Config.MaxPairs)
	}
	return 1
}

// Indices of the queues of RoCE, by the RFC's list of virtqueues.
func (d *Device) completeQueue(cqn uint32) int { return 2*d.pairs() + 1 + int(cqn) }

func (d *Device) transmitQueue(qpn uint32) int {
	return 2*d.pairs() + 1 + int(d.Config.MaxRDMACQs) + 2*int(qpn)
}

func (d *Device) receiveQueue(qpn uint32) int { return d.transmitQueue(qpn) + 1 }

// HardwareAddr is the card's MAC address.
func (d *Device) HardwareAddr() net.HardwareAddr { return d.Config.MAC[:] }

// Ended returns whether the device closed the connection.
func (d *Device) Ended() bool { return d.conn.ended() }

// Close resets the device and closes the connection.
func (d *Device) Close() error {
	var err error
	for _, r := range d.rings {
		_, err2 := r.stop()
		err = errors.Join(err, err2)
	}
	return errors.Join(err, d.setStatus(0), d.release())
}

// Kill closes the connection as the end of an emulator does, with all rings running.
func (d *Device) Kill() error {
	for _, r := range d.rings {
		r.closeEvents()
	}
	return d.release()
}

func (d *Device) release() error {
	d.closed = true
	return errors.Join(d.conn.sock.Close(), d.Memory.close())
}
