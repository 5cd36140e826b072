// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// libvirtSchema is that of Debian's libvirt0.
const libvirtSchema = "/usr/share/libvirt/schemas/domain.rng"

// TestLibvirt: what weft vm show prints for libvirt is valid by libvirt's schema.
func TestLibvirt(t *testing.T) {
	if _, err := os.Stat(libvirtSchema); err != nil {
		lab.Lacks(t, err)
	}
	dir := t.TempDir()
	domain := func(name, snippet string) string {
		memory, card, ok := strings.Cut(snippet, "<interface ")
		if !ok {
			t.Fatalf("no interface in %s", snippet)
		}
		path := filepath.Join(dir, name+".xml")
		text := fmt.Sprintf("<domain type='qemu'><name>web</name><memory unit='GiB'>2</memory><vcpu>2</vcpu>"+
			"<os><type arch='x86_64' machine='pc'>hvm</type></os>%s<devices><interface %s</devices></domain>",
			memory, card)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	lint := func(paths ...string) (string, error) {
		return lab.Run(lab.Cmd{Args: append([]string{"xmllint", "--noout", "--relaxng", libvirtSchema}, paths...)},
			time.Minute)
	}
	card := func(socket, connect string, queues, mtu int, packed bool) *api.VM {
		return &api.VM{NewVM: api.NewVM{Name: "web", MAC: "52:54:00:12:34:56", Socket: socket, Connect: connect,
			Queues: queues, Packed: packed}, MTU: mtu}
	}
	var paths []string
	for i, v := range []*api.VM{card("/run/weft/vm/web.sock", "", 1, 1500, false), card("/run/weft/vm/web.sock", "",
		2, 9000, true), card("", "/run/qemu/web.sock", 8, 0, true),
		card("", "/run/it's <here> & there", 1, 1500, false)} {
		paths = append(paths, domain(fmt.Sprint(i), v.Libvirt()))
	}
	if out, err := lint(paths...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	// That the schema is looked at.
	wrong := strings.Replace(card("/run/weft/vm/web.sock", "", 1, 1500, false).Libvirt(), "mode='client'",
		"mode='neither'", 1)
	if out, err := lint(domain("wrong", wrong)); err == nil {
		t.Errorf("the schema takes anything:\n%s", out)
	}
}
