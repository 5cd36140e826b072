/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths: what a program opens below /sys/class/infiniband, /dev/infiniband and
 * their kin is looked up below the node's tree instead. paths.c defines the
 * interposed libc functions; the rest of the library uses what is declared
 * here. Everything is callable from any thread and from signal handlers:
 * nothing allocates and nothing locks.
 */
#ifndef WEFT_PATHS_H
#define WEFT_PATHS_H

#include <stdbool.h>
#include <stddef.h>

#define WEFT_HIDDEN __attribute__((visibility("hidden")))

/* The node's directory ($WEFT_DIR, absolute, no trailing slash), or NULL where
 * the program was started without one. The string lives as long as the
 * process; later changes of the environment are not seen. */
WEFT_HIDDEN const char *weft_dir(void);

/* weft_dir() followed by "/tree", or NULL. */
WEFT_HIDDEN const char *weft_tree(void);

/* Writes the path below the tree that stands for path into out and returns
 * true; false where path is none of the redirected ones, there is no tree, or
 * the result does not fit. */
WEFT_HIDDEN bool weft_rewrite(const char *path, char *out, size_t size);

/*
 * The devices that other parts of the library emulate (rdma_cm, umad). Every
 * interposed open of a path below /dev/infiniband calls the hook first: it
 * returns a descriptor, -1 with errno set, or WEFT_NOT_MINE for the file in
 * the tree to be opened. name is what follows "/dev/infiniband/". Set it once,
 * in a constructor; NULL means no device.
 */
#define WEFT_NOT_MINE (-2)
WEFT_HIDDEN extern int (*weft_device_open)(const char *name, int flags);

/*
 * The real functions behind those defined here, for the rest of the library.
 * Never NULL: the first use resolves them where the constructor has not yet
 * run.
 */
WEFT_HIDDEN int weft_real_open(const char *path, int flags, unsigned int mode);

#endif
