// SPDX-License-Identifier: Apache-2.0

package census

import (
	"strings"
	"testing"
)

func graphOf(files int, edges ...[2]int) graph {
	g := make(graph, files)
	for i := range g {
		g[i] = make([]bool, files)
	}
	for _, e := range edges {
		g[e[0]][e[1]] = true
	}
	return g
}

func TestBackArrows(t *testing.T) {
	for _, test := range []struct {
		name                  string
		g                     graph
		arrows, back, circles int
	}{
		{"empty", graphOf(3), 0, 0, 0},
		{"a chain in any order", graphOf(4, [2]int{3, 1}, [2]int{1, 0}, [2]int{0, 2}), 3, 0, 0},
		{"two files that call each other", graphOf(3, [2]int{0, 1}, [2]int{1, 0}, [2]int{1, 2}), 3, 1, 2},
		{"two circles with a file in common", graphOf(5, [2]int{0, 1}, [2]int{1, 2}, [2]int{2, 0}, [2]int{2, 3},
			[2]int{3, 4}, [2]int{4, 2}), 6, 2, 6},
	} {
		if a, b, c := test.g.arrows(), test.g.back(), test.g.inCircles(); a != test.arrows || b != test.back ||
			c != test.circles {
			t.Errorf("%s: %d arrows, %d back, %d in circles; want %d, %d, %d", test.name, a, b, c, test.arrows,
				test.back, test.circles)
		}
	}
}

func TestLineKinds(t *testing.T) {
	src := "// Comment.\npackage p // both\n\nvar s = `a\n\nb`\n\n/* x\n\ny */\n"
	if code, comment, blank := lineKinds([]byte(src)); code != 4 || comment != 4 || blank != 2 {
		t.Errorf("%d lines of code, %d of comments, %d blank; want 4, 4, 2", code, comment, blank)
	}
}

func TestProse(t *testing.T) {
	p := Prose{Name: "x"}
	p.count("x.md", 3, "The port | reports\nto the node whose\n-- lane asks. Nobody is here: 42.")
	if p.Words != 13 || p.Odd != 2 || p.Machine != 1 {
		t.Errorf("%+v", p)
	}
	if got := strings.Join(p.Examples, ", "); got != "x.md:4: whose, x.md:5: Nobody" {
		t.Error(got)
	}
}
