// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// Replug removes the card of a running guest, after the end of the node, and adds it again, as docs/notes/qemu.md
// describes. The node must run again, and the card must be Pluggable.
func (g *Guest) Replug(ctx context.Context, v *api.VM) error {
	options := Card(v, "512M")
	device := options[len(options)-1]
	arguments := map[string]any{"bus": cardPort}
	driver, properties, _ := strings.Cut(device, ",")
	arguments["driver"] = driver
	for property := range strings.SplitSeq(properties, ",") {
		name, value, _ := strings.Cut(property, "=")
		arguments[name] = value
		var number int
		if n, _ := fmt.Sscanf(value, "%d", &number); n == 1 && fmt.Sprint(number) == value {
			arguments[name] = number
		}
		if value == "on" {
			arguments[name] = true
		}
	}
	id, chardev := arguments["id"], arguments["chardev"]
	if _, err := g.execute("device_del", map[string]any{"id": id}); err != nil {
		return err
	}
	// The chardev is busy until the guest has let the card go.
	removed := func() (bool, error) {
		_, err := g.execute("chardev-remove", map[string]any{"id": chardev})
		if err != nil && !strings.Contains(err.Error(), "busy") {
			return false, err
		}
		return err == nil, ctx.Err()
	}
	if err := lab.Until("the guest lets the card go", time.Minute, removed, g); err != nil {
		return fmt.Errorf("%w%s", err, g.Console())
	}
	if _, err := g.execute("chardev-add", map[string]any{"id": chardev, "backend": map[string]any{"type": "socket",
		"data": map[string]any{"server": false, "addr": map[string]any{"type": "unix",
			"data": map[string]any{"path": v.Socket}}}}}); err != nil {
		return err
	}
	_, err := g.execute("device_add", arguments)
	return err
}

// execute executes a command of the machine's control protocol with arguments.
func (g *Guest) execute(command string, arguments map[string]any) (string, error) {
	b, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments})
	if err != nil {
		return "", err
	}
	return g.Command(string(b))
}
