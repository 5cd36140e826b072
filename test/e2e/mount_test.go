// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/test/lab"
)

// TestMount: under weft run --mount, programs find the devices of a node in /sys/class without a preloaded library, and
// are otherwise as they would be without it.
func TestMount(t *testing.T) {
	t.Parallel()
	needs(t, "busybox", "curl", "perfquery", "prometheus-node-exporter")
	m := &managed{testbed: openTestbed(t, 1500, false, lab.Nobody, fabricFlags...)}
	m.Device = nativeDevice
	m.awaitActive(t)
	run := func(t *testing.T, script string) (out string, err error) {
		t.Helper()
		return lab.Run(m.Server.Program("--mount", "--", "busybox", "sh", "-c", script), diagLimit)
	}

	t.Run("static program", func(t *testing.T) {
		out, err := run(t, `cd /sys/class
			echo net:; ls net
			echo lo: $(cat net/lo/address) $(readlink -f net/lo)
			echo devices: $(ls infiniband)
			cat infiniband/`+nativeDevice+`/ports/1/link_layer
			cd -P infiniband/`+nativeDevice+`/../..
			echo parent: $(cat numa_node) $(ls -d infiniband*)
			touch /sys/class/x`)
		if err == nil {
			t.Error("a program wrote to /sys/class")
		}
		for _, want := range []string{"busybox finds the devices in /sys, but can use none: it is statically linked. fix: ",
			"\nlo: 00:00:00:00:00:00 /sys/devices/virtual/net/lo\n", "\ndevices: weft0 " + nativeDevice + "\nInfiniBand\n",
			"\nparent: -1 infiniband infiniband_mad infiniband_verbs\n", "x: Read-only file system"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
	})

	t.Run("process", func(t *testing.T) {
		out, err := lab.Run(m.Server.Program("--mount", "--", "sh", "-c", `id -u; id -g; pwd; exit 7`), diagLimit)
		var plain string
		if plain, _ = lab.Run(m.Server.Program("sh", "-c", `id -u; id -g; pwd`), diagLimit); plain != out {
			t.Errorf("without --mount:\n%s\nwith:\n%s", plain, out)
		}
		if err == nil || !strings.Contains(err.Error(), "exit status 7") {
			t.Errorf("exit code: %v", err)
		}
		p, err := lab.Start(m.Server.Program("--mount", "--", "sh", "-c", "echo pid $$; exec sleep 60"))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Kill()
		if line, err := p.Expect("pid", diagLimit); err != nil || line != "pid "+strconv.Itoa(p.PID()) {
			t.Errorf("process %d printed %q, %v", p.PID(), line, err)
		}
		p.Signal(syscall.SIGTERM)
		if err := p.Wait(diagLimit); err == nil || !strings.Contains(err.Error(), "signal: terminated") {
			t.Errorf("it ended with %v", err)
		}
	})

	t.Run("refused", func(t *testing.T) {
		// A user namespace with the bound 0 stands for a host with it.
		c := m.Server.Program("--mount", "--", "true")
		c.Args = append([]string{"unshare", "--user", "--map-user=" + strconv.Itoa(lab.Nobody), "--keep-caps", "sh", "-c",
			`echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all "$@"`, "sh"},
			c.Args...)
		out, err := lab.Run(c, diagLimit)
		const want = "weft: cannot run true with --mount: the kernel makes no user namespace " +
			"(user.max_user_namespaces is 0). fix: as root, sysctl -w user.max_user_namespaces=10000; then the same again\n"
		if err == nil || !strings.Contains(err.Error(), "exit status 126") || out != want {
			t.Errorf("%v:\n%s", err, out)
		}
	})

	t.Run("exporter", func(t *testing.T) {
		m.pairWith(t, 60*time.Second, []string{"--mount"}, "ibv_rc_pingpong", "-n", "300", "-s",
			"5000")
		m.compareExporter(t)
	})
}

// exported are the metrics of a port that prometheus-node-exporter has for files of counters: what perfquery prints for
// each, and its unit in the metric.
var exported = map[string]struct {
	field string
	unit  float64
}{
	"excessive_buffer_overrun_errors_total":     {"ExcessiveBufferOverrunErrors", 1},
	"link_downed_total":                         {"LinkDownedCounter", 1},
	"link_error_recovery_total":                 {"LinkErrorRecoveryCounter", 1},
	"local_link_integrity_errors_total":         {"LocalLinkIntegrityErrors", 1},
	"multicast_packets_received_total":          {"PortMulticastRcvPkts", 1},
	"multicast_packets_transmitted_total":       {"PortMulticastXmitPkts", 1},
	"port_constraint_errors_received_total":     {"PortRcvConstraintErrors", 1},
	"port_constraint_errors_transmitted_total":  {"PortXmitConstraintErrors", 1},
	"port_data_received_bytes_total":            {"PortRcvData", 4},
	"port_data_transmitted_bytes_total":         {"PortXmitData", 4},
	"port_discards_transmitted_total":           {"PortXmitDiscards", 1},
	"port_errors_received_total":                {"PortRcvErrors", 1},
	"port_packets_received_total":               {"PortRcvPkts", 1},
	"port_packets_transmitted_total":            {"PortXmitPkts", 1},
	"port_receive_remote_physical_errors_total": {"PortRcvRemotePhysicalErrors", 1},
	"port_receive_switch_relay_errors_total":    {"PortRcvSwitchRelayErrors", 1},
	"port_transmit_wait_total":                  {"PortXmitWait", 1},
	"symbol_error_total":                        {"SymbolErrorCounter", 1},
	"unicast_packets_received_total":            {"PortUnicastRcvPkts", 1},
	"unicast_packets_transmitted_total":         {"PortUnicastXmitPkts", 1},
	"vl15_dropped_total":                        {"VL15Dropped", 1},
}

// compareExporter expects prometheus-node-exporter, which reads /sys without libc, to export what perfquery prints of
// the port: every counter, and no other.
func (m *managed) compareExporter(t *testing.T) {
	listen := fmt.Sprintf("127.0.0.1:%d", lab.Port())
	p, err := lab.Start(m.Server.Program("--mount", "--", "prometheus-node-exporter", "--collector.disable-defaults",
		"--collector.infiniband", "--web.listen-address="+listen))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if _, err := p.Expect("Listening on", diagLimit); err != nil {
		t.Fatalf("%v:\n%s", err, p.Output())
	}
	perf := regexp.MustCompile(`(?m)^(\w+):\.+(\d+)$`)
	query := func() (values map[string]string) {
		values = map[string]string{}
		for _, form := range []string{"perfquery {lid1} 1", "perfquery -x {lid1} 1"} { // the second has 64 bits
			for _, f := range perf.FindAllStringSubmatch(m.run(t, strings.Fields(m.words.Replace(form))...), -1) {
				values[f[1]] = f[2]
			}
		}
		return values
	}
	metric := regexp.MustCompile(`(?m)^node_infiniband_(\w+)\{device="` + nativeDevice + `",port="1"\} (\S+)$`)
	scrape := func() (values map[string]string, out string) {
		out, err := lab.Run(lab.Cmd{NetNS: m.Server.NetNS.Name, Args: []string{"curl", "-sS", "--max-time", "10",
			"http://" + listen + "/metrics"}, Peers: []lab.Peer{p}}, diagLimit)
		if err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		values = map[string]string{}
		for _, f := range metric.FindAllStringSubmatch(out, -1) {
			values[f[1]] = f[2]
		}
		return values, out
	}
	var diff, out string
	if err := lab.Until("the exporter and perfquery agree", diagLimit, func() (bool, error) {
		want := map[string]string{}
		values := query()
		for name, e := range exported {
			v, err := strconv.ParseFloat(values[e.field], 64)
			if err != nil {
				return false, fmt.Errorf("perfquery has no %s: %v", e.field, values)
			}
			want[name] = strconv.FormatFloat(v*e.unit, 'g', -1, 64)
		}
		var got map[string]string
		got, out = scrape()
		for _, state := range []string{"state_id", "physical_state_id", "rate_bytes_per_second"} {
			if got[state] == "" {
				return false, fmt.Errorf("the exporter has no %s:\n%s", state, out)
			}
			delete(got, state)
		}
		for name, text := range got { // 1.5e+06 is 1500000
			if v, err := strconv.ParseFloat(text, 64); err == nil {
				got[name] = strconv.FormatFloat(v, 'g', -1, 64)
			}
		}
		diff = cmp.Diff(want, got)
		return diff == "", nil
	}, m.Server.Proc, p); err != nil {
		t.Fatalf("%v: -perfquery +exporter\n%s\n%s", err, diff, out)
	}
	if got, _ := scrape(); got["port_data_transmitted_bytes_total"] == "0" {
		t.Error("no traffic was counted")
	}
	if !strings.Contains(out, `node_infiniband_port_packets_transmitted_total{device="weft0",port="1"}`) {
		t.Errorf("the Ethernet port is missing:\n%s", out)
	}
}
