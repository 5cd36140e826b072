/* SPDX-License-Identifier: Apache-2.0 */
/* The whole test framework: a check that prints where it failed and goes on. */
#ifndef WEFT_TEST_CHECK_H
#define WEFT_TEST_CHECK_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

__attribute__((weak)) int failures; /* of all files of a test */

#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED); \
			fprintf(stderr, "%s:%d: %s: not so (errno %s)\n", __FILE__, __LINE__, \
				#cond, strerror(errno)); \
		} \
	} while (0)

static inline int finish(const char *name)
{
	if (failures)
		fprintf(stderr, "%s: %d failed\n", name, failures);
	else
		printf("%s: ok\n", name);
	return failures != 0;
}

#endif
