// SPDX-License-Identifier: Apache-2.0

// Package shimlib has the two libraries that speak verbs to a node, and unpacks them for the loader.
//
// What comes in: a library's name and the places where it may be unpacked. What goes out: the path of a file with the
// content of that library, which no other user can change, or a problem with its fix. cli calls it before it starts a
// program. It must never follow a link that another user may have made, never hand out a file whose content differs
// from the library, and never remove a file that a program may still load.
//
// A place is a directory with an entry for each library and version, named by the first half of the SHA-256 of the
// library:
//
//	weft-lib/5e884898da28047151d0e56f8dc62927/libweft-verbs.so
//
// The modification time of an entry is when the entry was last used.
package shimlib
