// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// otherWords are words that other tools have for a command, with the command line of weft.
var otherWords = map[string]string{
	"diagnose":   "doctor",
	"verify":     "doctor",
	"test":       "doctor",
	"ping":       "check",
	"trace":      "check",
	"traceroute": "check",
	"path":       "check",
	"connect":    "join HOST",
	"enter":      "join HOST",
	"invite":     "token",
	"tokens":     "token",
	"members":    "member",
	"host":       "member",
	"hosts":      "member",
	"cluster":    "member",
	"drain":      "member drain",
	"peer":       "trunk",
	"peers":      "trunk",
	"link":       "fabric links",
	"links":      "fabric links",
	"nodes":      "fabric nodes",
	"topology":   "fabric topo",
	"start":      "up",
	"init":       "up",
	"daemon":     "up",
	"stop":       "down",
	"end":        "down",
	"kill":       "down",
	"shutdown":   "down",
	"quit":       "down",
	"restart":    "down",
	"top":        "stat",
	"stats":      "stat",
	"counters":   "stat",
	"ps":         "res",
	"ls":         "dev",
	"list":       "dev",
	"device":     "dev",
	"devices":    "dev",
	"info":       "status",
	"show":       "status",
	"health":     "status",
	"exec":       "run",
	"partition":  "pkey",
	"partitions": "pkey",
	"switch":     "vesw",
	"ethernet":   "vesw",
	"eth":        "vesw",
	"ip":         "ipoib",
	"qemu":       "vm",
	"guest":      "vm",
	"multicast":  "mcast",
	"dump":       "capture",
	"tcpdump":    "capture",
	"opensm":     "sm",
	"drop":       "fault add",
	"man":        "help",
}

// otherVerbs are words for subcommands, with those that may exist in their place.
var otherVerbs = map[string][]string{
	"add": {"create", "join"}, "create": {"add"}, "new": {"add", "create"}, "make": {"create", "add"},
	"ls": {"list"}, "show": {"list", "status"}, "info": {"show", "status"}, "get": {"show", "list"},
	"change": {"set"}, "modify": {"set"}, "edit": {"set"}, "update": {"set"},
	"detach": {"delete"}, "leave": {"delete"}, "stop": {"delete"}, "clear": {"delete", "flush"}, "destroy": {"delete"},
	"up": {"add"}, "down": {"delete"}, "members": {"list", "show"},
}

// logWords are commands of other tools that show the log, which is a file.
var logWords = []string{"log", "logs", "journal"}

// unknownCommand names the command that was probably meant.
func unknownCommand(cmd *cobra.Command, name string) error {
	fix := cmd.CommandPath() + " --help"
	if !cmd.HasParent() && slices.Contains(logWords, name) {
		return usage("read node.log in the directory that weft status shows", "unknown command %q", name)
	}
	if s := suggestion(cmd, strings.ToLower(name)); s != "" {
		fix = cmd.CommandPath() + " " + s
	}
	return usage(fix, "unknown command %q", name)
}

// suggestion returns the subcommand that is nearest to name: another word for it, one that begins with name, or one at
// an edit distance that a slip makes. It is empty where none is near.
func suggestion(cmd *cobra.Command, name string) string {
	if s, ok := otherWords[name]; ok && !cmd.HasParent() {
		return s
	}
	best, found := min(3, (len(name)+2)/2), ""
	for _, c := range cmd.Commands() {
		if c.Hidden || !c.IsAvailableCommand() && c.Name() != "help" {
			continue
		}
		for _, known := range append([]string{c.Name()}, c.Aliases...) {
			d := editDistance(name, known)
			if len(name) >= 2 && strings.HasPrefix(known, name) {
				d = 0
			}
			if d < best {
				best, found = d, c.Name()
			}
		}
	}
	if best == 0 {
		return found
	}
	for _, verb := range otherVerbs[name] {
		for _, c := range cmd.Commands() {
			if c.Name() == verb {
				return verb
			}
		}
	}
	return found
}

// editDistance is the number of bytes inserted, deleted, changed or swapped
// with their neighbour between two flag names.
func editDistance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := d[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			d[i][j] = min(change, d[i-1][j]+1, d[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
