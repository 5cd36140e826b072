/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the emulated character devices share (umad.c, rdmacm.c): how they reach
 * the node, and which of them a call of libc is for.
 */
#ifndef WEFT_DEVICE_H
#define WEFT_DEVICE_H

#include "weft.h"

/*
 * Connects to a socket of the node's directory with records; type adds
 * SOCK_CLOEXEC. Returns the descriptor, or -1 with errno: ENXIO where there is no
 * node, EPERM where the user does not trust it.
 */
int weft_node_connect(const char *name, int type);

/* Sends one record and waits for one, of exactly anslen bytes, whatever signals
 * come. Returns 0 or EIO. It is no point where a thread can be cancelled. */
int weft_node_ask(int fd, const void *req, size_t reqlen, void *ans, size_t anslen);

/* ---- rdmacm.c ---- */

extern _Atomic int weft_cm_channels;

/* Whether there may be channels of the connection manager. */
static inline bool weft_cm_any(void)
{
	return atomic_load_explicit(&weft_cm_channels, memory_order_relaxed) != 0;
}

int weft_cm_open(int flags);
/* Whether what is written to fd is a command of the connection manager. */
bool weft_cm_owns(int fd, const void *buf, size_t n);
ssize_t weft_cm_write(int fd, const void *buf, size_t n);

#endif
