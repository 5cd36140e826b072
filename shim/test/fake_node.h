/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's side of the session, as little of it as the shim's tests need: one
 * session, in a thread of the tested process itself, so that announced
 * addresses can be used as they are. It executes the commands of the ABI on queue
 * pairs connected to each other and is strict about what it is sent.
 */
#ifndef FAKE_NODE_H
#define FAKE_NODE_H

#include <stdbool.h>
#include <stdint.h>

/* Runs the program again with a node's directory and the library preloaded, and
 * exits as that run does. Returns at once in that second run. */
void fake_exec(char **argv, const char *preload);
/* Starts the node's thread. */
void fake_start(void);

/* Closes the session as a node that dies does. */
void fake_kill(void);

/* Whether the fake uses this descriptor. */
bool fake_owns(int fd);

/* Takes no element off the send rings while set. */
extern _Atomic bool fake_hold;
/* Uses receive elements of shared queues in the order of their arrival, two by
 * two swapped, while set. */
extern _Atomic bool fake_swap;
/* Takes an element of each shared queue ahead of the message for it, while set. */
extern _Atomic bool fake_ahead;

/* What the fake has seen. */
extern _Atomic uint32_t fake_inline_elements, fake_list_elements, fake_kicks, fake_bells;

/* Raises an asynchronous event. */
void fake_event(uint32_t type, uint32_t object);
/* Raises it count times, those that find no buffer when the bell of the event
 * ring has rung. */
void fake_events(uint32_t type, uint32_t object, uint32_t count);

#endif
