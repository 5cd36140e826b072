// SPDX-License-Identifier: Apache-2.0

// Package arch proves the rules of the tree: which package may import which,
// where unsafe and raw system calls may stand, and how files begin.
//
// What comes in: the source as the go command and git list it; what goes out:
// test failures that say what to do. It has no code of its own, and no package
// imports it. ARCHITECTURE.md has the same rules in words.
package arch
