/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test of the queues, without a kernel: it plays the device by the text of
 * docs/notes/virtio-roce.md, over rings in ordinary memory.
 */
#ifndef VROCE_TEST_H
#define VROCE_TEST_H

#include "provider.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);          \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* Calls of the functions of commands to the kernel; an arming by the kernel delivers an event. */
extern unsigned int send_commands, recv_commands, srq_commands;
extern _Atomic unsigned int arm_commands, events;

/* All tests of completion queues. */
void test_completion_queues(void);

/* Writes an integer at an octet of a structure. */
static inline void put(uint8_t *to, size_t at, uint64_t value, size_t length)
{
	memcpy(to + at, &value, length);
}

/* ---- the device's side of a ring ---- */

/* Memory that the device left: octets that the driver does not write stay 0xa5. */
enum { POISON = 0xa5 };

struct device {
	struct vroce_ring_map map;
	struct vroce_ring *ring;
	uint16_t next; /* position of the available ring */
	uint16_t door; /* what the driver wrote to the doorbell */
	uint16_t words[16];
};

static inline void device_init(struct device *device, struct vroce_ring *ring, uint32_t size, uint32_t elements,
			uint32_t element_size, bool event_idx, bool in_order)
{
	const size_t avail = 6 + 2 * size, used_at = (avail + 3) / 4 * 4, length = used_at + 6 + 8 * size;

	memset(device, 0, sizeof(*device));
	device->ring = ring;
	device->map = (struct vroce_ring_map){
		.ring_size = size,
		.elements = elements,
		.element_size = element_size,
		.elements_at = 64,
		.avail_at = 16,
		.used_at = 16 + used_at,
		.door_at = 6,
		.queue = 77,
	};
	ring->map_ring.base = calloc(1, 16 + length);
	ring->map_elements.base = malloc(64 + (size_t)elements * element_size);
	memset(ring->map_elements.base, POISON, 64 + (size_t)elements * element_size);
	ring->map_door.base = device->words;
	vroce_ring_init(ring, &device->map, event_idx, in_order);
}

static inline void device_free(struct device *device)
{
	free(device->ring->map_ring.base);
	free(device->ring->map_elements.base);
}

static inline struct vroce_avail *device_avail(struct device *device)
{
	return (struct vroce_avail *)((uint8_t *)device->ring->map_ring.base + device->map.avail_at);
}

static inline struct vroce_used *device_used(struct device *device)
{
	return (struct vroce_used *)((uint8_t *)device->ring->map_ring.base + device->map.used_at);
}

/* The position from which on the doorbell must be rung. */
static inline void device_wants(struct device *device, uint16_t position)
{
	memcpy(&device_used(device)->ring[device->map.ring_size], &position, sizeof(position));
}

/* Elements that the device has not taken. */
static inline uint16_t device_waiting(struct device *device)
{
	return device_avail(device)->idx - device->next;
}

/* Takes the next element; returns its number. */
static inline uint16_t device_take(struct device *device)
{
	CHECK(device_waiting(device));
	return device_avail(device)->ring[device->next++ % device->map.ring_size];
}

static inline uint8_t *device_element(struct device *device, uint16_t number)
{
	CHECK(number < device->map.elements);
	return (uint8_t *)device->ring->map_elements.base + 64 + (size_t)number * device->map.element_size;
}

/* Uses an element. If quiet is set, the driver must not have enabled an interrupt for it. */
static inline void device_use(struct device *device, uint16_t number, bool quiet)
{
	struct vroce_used *used = device_used(device);
	uint16_t old = used->idx, event = device_avail(device)->ring[device->map.ring_size];

	used->ring[old % device->map.ring_size].id = number;
	used->ring[old % device->map.ring_size].len = 0;
	used->idx = old + 1;
	if (quiet && device->ring->event_idx)
		CHECK(event != old);
}

static inline bool device_rung(struct device *device)
{
	bool rung = device->words[3] == 77;

	for (int i = 0; i < 16; i++)
		CHECK(i == 3 || !device->words[i]);
	device->words[3] = 0;
	return rung;
}

#endif
