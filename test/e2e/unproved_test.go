// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/test/lab"
)

// initialsEnv has this binary send first datagrams of handshakes, from addresses that no host has.
const initialsEnv = "WEFT_E2E_INITIALS"

// initialLen is the length of the smallest first datagram of a handshake (docs/notes/trunk.md).
const initialLen = 52

// serveInitials is that program: "INTERFACE MAC ADDRESS FIRST COUNT RATE SECONDS". The sources are COUNT addresses from
// FIRST on.
func serveInitials(what string) int {
	var ifname, mac, to, first string
	var count, rate, seconds int
	_, err := fmt.Sscan(what, &ifname, &mac, &to, &first, &count, &rate, &seconds)
	if err == nil {
		err = initials(ifname, mac, netip.MustParseAddr(to), netip.MustParseAddr(first), count, rate,
			time.Duration(seconds)*time.Second)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func initials(ifname, mac string, to, first netip.Addr, count, rate int, during time.Duration) error {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return err
	}
	dst, err := net.ParseMAC(mac)
	if err != nil {
		return err
	}
	sock, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	at := &unix.SockaddrLinklayer{Ifindex: i.Index, Halen: 6}
	copy(at.Addr[:], dst)
	const eth, ip, udp = 14, 20, 8
	f := make([]byte, eth+ip+udp+initialLen)
	copy(f, dst)
	copy(f[6:], []byte{2, 0, 0, 0x81, 0xee, 0xee})
	be := binary.BigEndian
	be.PutUint16(f[12:], unix.ETH_P_IP)
	h := f[eth:]
	h[0], h[8], h[9] = 0x45, 64, unix.IPPROTO_UDP
	be.PutUint16(h[2:], ip+udp+initialLen)
	dest := to.As4()
	copy(h[16:], dest[:])
	u := h[ip:] // without a checksum
	be.PutUint16(u[0:], 4792)
	be.PutUint16(u[2:], 4792)
	be.PutUint16(u[4:], udp+initialLen)
	d := u[udp:]
	d[0], d[1], d[2] = 0x57, 2<<4|3, 1 // an Initial of the end that begins
	began, source := time.Now(), first
	for n := 0; time.Since(began) < during; {
		for ; n < int(time.Since(began).Seconds()*float64(rate)); n++ {
			if n%count == 0 {
				source = first
			}
			from := source.As4()
			source = source.Next()
			copy(h[12:], from[:])
			be.PutUint16(h[10:], 0)
			sum := uint32(0)
			for k := 0; k < ip; k += 2 {
				sum += uint32(be.Uint16(h[k:]))
			}
			sum = sum>>16 + sum&0xffff
			be.PutUint16(h[10:], ^uint16(sum+sum>>16))
			be.PutUint32(d[8:], uint32(n+1))  // its index
			be.PutUint64(d[16:], uint64(n+1)) // its claim
			if err := unix.Sendto(sock, f, 0, at); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return err
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Println("sent")
	return nil
}

// TestUnprovedSources: a host sends thousands of first datagrams of handshakes a second, from addresses of the network
// that no host has. The answers wait in the kernel until it gives the addresses up; trunks stay up meanwhile, carry
// data, and that of a member that starts again comes up.
func TestUnprovedSources(t *testing.T) {
	t.Parallel()
	lab.NeedNetNS(t)
	seconds := 12
	if lab.Soak {
		seconds = 90
	}
	m, err := lab.NewMembers(2, 1500)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if err == nil {
		err = m.AddLeaf(1500) // addresses of strangers get an answer where a peer may be anywhere
	}
	if err != nil {
		t.Fatal(err)
	}
	up := func(n int) error {
		return lab.Until(fmt.Sprintf("%d trunks are up", n), time.Minute, func() (bool, error) {
			var list []api.Trunk
			err := m.Nodes[0].Query(&list, "trunk")
			k := 0
			for _, x := range list {
				if x.Up {
					k++
				}
			}
			return k == n, err
		}, m.Nodes[0].Proc)
	}
	if err := up(2); err != nil {
		t.Fatal(err)
	}
	for _, n := range m.Nodes[:2] {
		if out, err := n.Weft("wait", "--for=active", "--timeout", "1m"); err != nil {
			t.Fatal(err, out)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	since := downs(m.Nodes...)
	flood, err := lab.Start(lab.Cmd{NetNS: m.Hub.Name, Args: []string{exe}, Env: []string{fmt.Sprintf(
		"%s=eth0 %s %s 10.81.0.100 90 5000 %d", initialsEnv, m.MAC(0), m.Nodes[0].NetNS.V4, seconds)}})
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Kill()
	bed := &testbed{Testbed: lab.Testbed{Server: m.Nodes[0], Client: m.Nodes[1], Device: "weft_ib0"}}
	// The answers of three seconds wait at the end of that time.
	half := time.Now().Add(time.Duration(seconds) * time.Second / 2)
	rounds := 0
	for ; time.Now().Before(half); rounds++ {
		if p, err := bed.runPairOnce(time.Minute, nil, "ibv_rc_pingpong"); err != nil {
			t.Fatalf("round %d: %v%s", rounds, err, p.Outputs())
		}
	}
	if n := since(); n != 0 {
		t.Errorf("trunks went down %d times", n)
	}
	m.Nodes[1].Proc.Signal(syscall.SIGTERM)
	if err := m.Nodes[1].Proc.Wait(time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := up(1); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := m.Nodes[1].Again(); err != nil {
		t.Fatal(err)
	}
	if err := up(2); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	select {
	case <-flood.Done():
		t.Fatal("the flood was over before the trunk was up")
	default:
	}
	if took > 5*time.Second {
		t.Errorf("the trunk of a member that starts again came up after %v", took)
	}
	counters, err := m.Nodes[0].Counters()
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, c := range counters {
		switch c.Name {
		case "cookies_sent", "drop_hs_cookie_limit", "drop_hs_cookie_rate", "drop_cookies", "drop_hellos":
			seen = append(seen, fmt.Sprint(c.Name, " ", c.Value))
		}
	}
	t.Logf("%d rounds of pingpong; the trunk of a member that starts again came up after %v; %s", rounds, took,
		strings.Join(seen, ", "))
	if err := flood.Wait(time.Minute); err != nil {
		t.Errorf("%v: %s", err, flood.Output())
	}
}
