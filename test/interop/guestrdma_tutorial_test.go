// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// tutorial runs the commands of docs/tutorial.md that are for guests, and compares what they print with what the page
// shows. TestDocs runs the commands for hosts.
func (f *rdmaFleet) tutorial(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(lab.Root(), "docs", "tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands, err := lab.PageCommands(string(text))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, c := range commands {
		if !c.OfGuest() {
			continue
		}
		ran++
		var i int
		if n, err := fmt.Sscanf(c.Host, "guest%d", &i); n != 1 || i < 1 || i > len(f.guests) {
			t.Fatalf("line %d: no guest %q: %v", c.Line, c.Host, err)
		}
		if command, background := strings.CutSuffix(c.Text, " &"); background {
			f.serveUntil(i-1, command, "rdma resource show cm_id | grep -q LISTEN")
			continue
		}
		out, err := f.runFor(i-1, c.Text, time.Minute)
		for try := 1; err == nil && c.Compare(out) != nil && strings.HasPrefix(c.Text, "ibv_") && try < 20; try++ {
			out, err = f.runFor(i-1, "usleep 200000; "+c.Text, time.Minute) // the GIDs follow the addresses
		}
		if err == nil {
			err = c.Compare(out)
		}
		if err != nil {
			t.Fatalf("docs/tutorial.md:%d: %s: %v\nit printed:\n%s", c.Line, c.Text, err, out)
		}
	}
	if ran < 5 {
		t.Fatalf("docs/tutorial.md has %d commands for guests", ran)
	}
	for i := range f.guests {
		f.run(i, fmt.Sprintf("ip addr del 10.3.0.3%d/24 dev eth0", i+1))
	}
}
