// SPDX-License-Identifier: Apache-2.0
/*
 * The functions that the library in libibverbs' place brings along, against the
 * installed library's: the same for every value, and byte for byte.
 *
 * usage: replacement_test OURS INSTALLED DIRECTORY
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static void *ours, *installed;

static void *find(void *lib, const char *name)
{
	void *fn = dlsym(lib, name);

	if (!fn) {
		fprintf(stderr, "replacement: %s\n", dlerror());
		exit(1);
	}
	return fn;
}

static void names(const char *fn)
{
	const char *(*a)(int) = find(ours, fn), *(*b)(int) = find(installed, fn);

	for (int i = -3; i < 64; i++)
		if (strcmp(a(i), b(i))) {
			fprintf(stderr, "replacement: %s(%d): %s, not %s\n", fn, i, a(i), b(i));
			exit(1);
		}
}

static void numbers(const char *fn, int most)
{
	int (*a)(int) = find(ours, fn), (*b)(int) = find(installed, fn);

	for (int i = -3; i < most; i++)
		if (a(i) != b(i)) {
			fprintf(stderr, "replacement: %s(%d): %d, not %d\n", fn, i, a(i), b(i));
			exit(1);
		}
}

/* Any bytes in, and what is not written stays what it was. */
static void copies(const char *fn, size_t to, size_t from)
{
	void (*a)(void *, void *) = find(ours, fn), (*b)(void *, void *) = find(installed, fn);
	unsigned char src[1024], da[1024], db[1024];

	CHECK(to <= sizeof(da) && from <= sizeof(src));
	for (int turn = 0; turn < 1000; turn++) {
		for (size_t i = 0; i < sizeof(src); i++)
			src[i] = (unsigned char)rand();
		memset(da, turn, sizeof(da));
		memset(db, turn, sizeof(db));
		a(da, src);
		b(db, src);
		if (memcmp(da, db, sizeof(da))) {
			size_t i = 0;

			while (da[i] == db[i])
				i++;
			fprintf(stderr, "replacement: %s: byte %zu is 0x%02x, not 0x%02x\n", fn, i, da[i], db[i]);
			exit(1);
		}
	}
}

static void files(const char *dir)
{
	int (*a)(const char *, const char *, char *, size_t) = find(ours, "ibv_read_sysfs_file");
	int (*b)(const char *, const char *, char *, size_t) = find(installed, "ibv_read_sysfs_file");
	/* An empty file ends ours as text, and leaves the other's buffer as it was. */
	static const char *const texts[] = { "x", "x\n", "1234567", "1234567\n", "12345678", "12345678\n", "\n", "a\nb\n" };
	char path[256], ba[16], bb[16];

	snprintf(path, sizeof(path), "%s/value", dir);
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		FILE *f = fopen(path, "w");

		CHECK(f && fputs(texts[i], f) >= 0 && !fclose(f));
		memset(ba, 0x5a, sizeof(ba));
		memset(bb, 0x5a, sizeof(bb));
		if (a(dir, "value", ba, 8) != b(dir, "value", bb, 8) || memcmp(ba, bb, sizeof(ba))) {
			fprintf(stderr, "replacement: ibv_read_sysfs_file of %s differs\n", texts[i]);
			exit(1);
		}
	}
	CHECK(!remove(path));
	CHECK(a(dir, "value", ba, 8) == b(dir, "value", bb, 8));
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	ours = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	installed = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
	if (!ours || !installed) {
		fprintf(stderr, "replacement: %s\n", dlerror());
		return 1;
	}
	CHECK(find(ours, "ibv_open_device") != find(installed, "ibv_open_device"));
	names("ibv_wc_status_str");
	names("ibv_event_type_str");
	names("ibv_node_type_str");
	names("ibv_port_state_str");
	numbers("ibv_rate_to_mult", 64);
	numbers("ibv_rate_to_mbps", 64);
	numbers("mult_to_ibv_rate", 1000);
	numbers("mbps_to_ibv_rate", 1300000);
	copies("ibv_copy_ah_attr_from_kern", sizeof(struct ibv_ah_attr), sizeof(struct ib_uverbs_ah_attr));
	copies("ibv_copy_qp_attr_from_kern", sizeof(struct ibv_qp_attr), sizeof(struct ib_uverbs_qp_attr));
	copies("ibv_copy_path_rec_from_kern", sizeof(struct ibv_sa_path_rec), sizeof(struct ib_user_path_rec));
	copies("ibv_copy_path_rec_to_kern", sizeof(struct ib_user_path_rec), sizeof(struct ibv_sa_path_rec));
	files(argv[3]);
	return finish("replacement");
}
