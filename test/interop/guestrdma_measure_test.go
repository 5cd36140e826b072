// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/test/interop/guest"
	"weft/test/lab"
)

// measured is one row of the table of docs/performance.md.
type measured struct {
	name, unit string
	rates      []float64 // in unit, GB/s or Gb/s
	node, qemu []float64 // seconds of processors for each GB, of the node and of both machines
}

func median(list []float64) float64 {
	sorted := slices.Clone(list)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

func (m *measured) String() string {
	return fmt.Sprintf("| %s | %.3g %s | %.3g to %.3g | %.2g | %.2g |", m.name, median(m.rates), m.unit,
		slices.Min(m.rates), slices.Max(m.rates), median(m.node), median(m.qemu))
}

// TestGuestsRDMAMeasured measures the rows of docs/performance.md for guests: 64 KiB WRITEs between two guests of one
// node by the card and by soft-RoCE, and TCP with virtio_roce and with virtio_net as the driver of the card, in turn.
func TestGuestsRDMAMeasured(t *testing.T) {
	lab.OnlySoak(t)
	const rounds, seconds, leastTimes = 5, 5, 20
	f := newRDMANodes(t, guest.Debian12, "--mtu", "9000")
	f.query(0, &f.vms[1], "vm", "add", "h1", "--vesw", "lab", "--rdma")
	f.config.MTU = 9000
	f.fleet.boot([2]guest.Config{f.config, f.config})
	rows := []*measured{
		{name: "`ib_write_bw`, 64 KiB, `vroce0`", unit: "GB/s"},
		{name: "`ib_write_bw`, 64 KiB, soft-RoCE, MTU 4096", unit: "GB/s"},
		{name: "`iperf3`, `virtio_roce`", unit: "Gb/s"},
		{name: "`iperf3`, `virtio_net` alone", unit: "Gb/s"},
	}
	each := func(script string) {
		for i := range f.guests {
			f.run(i, script)
		}
	}
	for range rounds {
		each("load virtio_roce && network")
		f.ready(0)
		f.run(1, until("ibv_devinfo -v | grep -q '::ffff:"+guestAddr(1)+",'", veswLimit))
		f.measure(rows[0], seconds, func() float64 { return f.writes("vroce0", seconds) })
		f.measure(rows[2], seconds, func() float64 { return f.stream(seconds) })
		each("rmmod virtio_roce && network && load rdma_rxe && rdma link add rxe0 type rxe netdev eth0")
		f.reaches(0, guestAddr(1))
		if out := f.run(1, "ibv_devinfo"); !strings.Contains(out, "active_mtu:\t\t4096") {
			t.Fatalf("the MTU of soft-RoCE is not 4096:\n%s", out)
		}
		f.measure(rows[1], seconds, func() float64 { return f.writes("rxe0", seconds) })
		each("rdma link del rxe0 && rmmod rdma_rxe")
		f.measure(rows[3], seconds, func() float64 { return f.stream(seconds) })
	}
	table := []string{"| two guests of one node | median | least to most | node, CPU s/GB | QEMU, CPU s/GB |",
		"|---|---|---|---|---|"}
	for _, r := range rows {
		table = append(table, r.String())
	}
	t.Logf("\n%s", strings.Join(table, "\n"))
	if times := median(rows[0].rates) / median(rows[1].rates); times < leastTimes {
		t.Errorf("WRITEs by the card are %.1f times as fast as by soft-RoCE, want %d times", times, leastTimes)
	} else {
		t.Logf("WRITEs by the card are %.1f times as fast as by soft-RoCE", times)
	}
}

// measure adds a run to a row, with the time that processors worked for it.
func (f *rdmaFleet) measure(m *measured, seconds int, run func() float64) {
	f.t.Helper()
	pids := []int{f.nodes[0].Proc.PID()}
	for _, v := range f.vms {
		f.query(0, &v, "vm", "show", v.Name)
		pids = append(pids, v.PID)
	}
	used := func() (list []time.Duration) {
		for _, pid := range pids {
			u, err := lab.UsageOf(pid)
			if err != nil {
				f.t.Fatal(err)
			}
			list = append(list, u.CPU)
		}
		return list
	}
	before := used()
	rate := run()
	after := used()
	gb := rate * float64(seconds)
	if m.unit == "Gb/s" {
		gb /= 8
	}
	if rate == 0 {
		f.t.Fatalf("%s: nothing arrived", m.name)
	}
	m.rates = append(m.rates, rate)
	m.node = append(m.node, (after[0]-before[0]).Seconds()/gb)
	m.qemu = append(m.qemu, (after[1]-before[1]+after[2]-before[2]).Seconds()/gb)
	f.t.Logf("%s: %.3g %s", m.name, rate, m.unit)
}

// writes returns the rate of 64 KiB WRITEs of guest 0 to guest 1 in GB/s.
func (f *rdmaFleet) writes(device string, seconds int) float64 {
	f.t.Helper()
	// perftest measures without its first and last two seconds.
	p := program{name: "ib_write_bw", args: fmt.Sprintf("-s 65536 -D %d -f 1", seconds)}
	server, client := f.end(1, device, guestAddr(1)), f.end(0, device, guestAddr(0))
	f.serve(1, server.command(p))
	out, err := f.runFor(0, "timeout 60 "+client.command(p)+" "+guestAddr(1), 2*time.Minute)
	theirs, serr := f.servedSoon(1, p.name, err)
	if err != nil || serr != nil {
		f.t.Fatalf("client: %v, server: %v\n%s\n%s", err, serr, out, theirs)
	}
	for line := range strings.Lines(out) {
		if w := strings.Fields(line); len(w) == 5 && w[0] == "65536" {
			if mib, err := strconv.ParseFloat(w[3], 64); err == nil {
				return mib * (1 << 20) / 1e9
			}
		}
	}
	f.t.Fatalf("no result:\n%s", out)
	return 0
}

// stream returns the rate of one TCP stream of guest 0 to guest 1 in Gb/s.
func (f *rdmaFleet) stream(seconds int) float64 {
	f.t.Helper()
	f.run(1, "iperf3 -s -1 -D; "+until(listensOn(5201), veswLimit))
	out, err := f.runFor(0, fmt.Sprintf("iperf3 -J -t %d -c %s", seconds, guestAddr(1)), 2*time.Minute)
	var result struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &result)
	}
	if err != nil {
		f.t.Fatalf("%v\n%s", err, out)
	}
	return result.End.Received.Rate / 1e9
}
