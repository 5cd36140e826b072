// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"weft/test/lab"
)

// TestEnv: what weft env prints makes programs of a shell, of root, of another shell and of mpirun find the devices.
func TestEnv(t *testing.T) {
	t.Parallel()
	needs(t, "ibv_devinfo", "mpirun")
	b := openTestbed(t, 1500, true, lab.Nobody)
	n := b.Server
	weft := lab.Bin("weft") + " env --dir " + n.Dir
	sh := func(t *testing.T, uid int, script string) string {
		t.Helper()
		out, err := lab.Run(lab.Cmd{NetNS: n.NetNS.Name, UID: uid, Args: []string{"sh", "-c", script},
			Env: []string{"HOME=/tmp"}, Peers: []lab.Peer{n.Proc}}, diagLimit)
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return out
	}
	const info = "ibv_devinfo -d weft0"
	found := func(t *testing.T, out string, times int) {
		t.Helper()
		if strings.Count(out, "PORT_ACTIVE") != times || strings.Count(out, "\n") > 40*times {
			t.Errorf("%s does not show the device %d times alone:\n%s", info, times, out)
		}
	}
	t.Run("shell", func(t *testing.T) {
		found(t, sh(t, lab.Nobody, `eval "$(`+weft+`)" && `+info), 1)
		out := sh(t, lab.Nobody, `eval "$(`+weft+`)" && eval "$(`+weft+` --unset)" && env`)
		if strings.Contains(out, "LD_PRELOAD") || strings.Contains(out, "WEFT_DIR") {
			t.Errorf("left over:\n%s", out)
		}
	})
	t.Run("sudo", func(t *testing.T) { // which passes its arguments to a program of root, without the environment
		words := sh(t, lab.Nobody, weft+" --sudo")
		found(t, sh(t, 0, "env -i "+strings.TrimSpace(words)+" "+info), 1)
	})
	t.Run("ssh", func(t *testing.T) { // which passes one string to a shell, without the environment
		found(t, sh(t, lab.Nobody, `env -i PATH="$PATH" sh -c "$(`+weft+` --ssh) `+info+`"`), 1)
	})
	t.Run("mpirun", func(t *testing.T) {
		found(t, sh(t, lab.Nobody, "mpirun $("+weft+" --mpirun) --oversubscribe -n 2 "+info), 2)
	})
}
