// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/host/shimlib"
)

// Build describes this program.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Time     string `json:"time,omitempty"` // of the revision
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ThisBuild returns what the linker recorded of this program.
func ThisBuild() Build {
	b := Build{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version = info.Main.Version
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.time":
				b.Time = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	return b
}

func (b Build) String() string { return fmt.Sprintf("weft %s, %s, %s", b.Version, b.Go, b.Platform) }

// installation is a build with what belongs to it on this machine.
type installation struct {
	Build
	Libraries []shimlib.Library `json:"libraries"`
	Serves    string            `json:"serves,omitempty"` // what the libraries fit to
	Node      *runningNode      `json:"node,omitempty"`   // nil: none runs in the directory
}

// runningNode is the node in the directory of the command, which may be of another build.
type runningNode struct {
	Dir     string `json:"dir"`
	Version string `json:"version"`
}

func versionCommand(a *app) *cobra.Command {
	var verbose bool
	cmd := a.show(&cobra.Command{
		Use:   "version",
		Short: "show the version of this program",
		Long: `Show the version of this program.

With -v it shows the revision, the libraries that programs load, and the version
of the node that runs: after an upgrade a node goes on with its former program.`,
		Args: cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print printer) error {
		b := ThisBuild()
		if !verbose {
			return print(b, func(w *screen) { fmt.Fprintln(w, b) })
		}
		i := installation{Build: b, Libraries: shimlib.List(a.env.Libraries), Serves: shimlib.Serves(a.env.Libraries)}
		if s, err := get(cmd.Context(), a, api.GetStatus); err == nil {
			i.Node = &runningNode{s.Dir, s.Version}
		}
		return print(i, i.print)
	})
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the revision, the libraries, and the version of the node")
	return cmd
}

func (i *installation) print(w *screen) {
	fmt.Fprintln(w, i.Build)
	revision := i.Revision
	if revision == "" {
		revision = "unknown"
	}
	if i.Time != "" {
		revision += ", " + i.Time
	}
	if i.Modified {
		revision += ", modified"
	}
	fmt.Fprintf(w, "revision  %s\n", revision)
	if len(i.Libraries) == 0 {
		fmt.Fprintln(w, "library   none: this weft runs nodes, and no programs")
	}
	for _, l := range i.Libraries {
		fmt.Fprintf(w, "library   %-16s  %s\n", l.Name, l.Digest)
	}
	if i.Serves != "" {
		fmt.Fprintf(w, "serves    %s\n", i.Serves)
	}
	switch n := i.Node; {
	case n == nil:
		fmt.Fprintln(w, "node      none runs")
	case n.Version == i.Version:
		fmt.Fprintf(w, "node      the same version, in %s\n", printable(n.Dir))
	default:
		fmt.Fprintf(w, "node      weft %s, in %s: restart it for this version\n", printable(n.Version), printable(n.Dir))
	}
}
