/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring: what an MPI library gets over a fabric, every byte checked. Each rank
 * sends to the next and receives from the one before, at all boundary sizes up
 * to 4 MiB, alone and many at once; then collectives and one-sided operations.
 *
 * usage: mpirun … ring [--forever]
 *
 * Prints "ring: ok" once, from rank 0. With --forever it exchanges until it is
 * ended, and rank 0 prints "ring: working" after the first round.
 */
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, POISON = 0xa5, LARGEST = 4 << 20, WINDOW = 64 };

static int rank, ranks;

static void fail(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "ring: rank %d: ", rank);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

/* What byte i of message seq of a rank is: neither shifted nor swapped parts agree. */
static uint8_t byte_of(int from, uint32_t seq, size_t i)
{
	uint32_t x = (uint32_t)i * 2654435761u ^ (seq * 40503u + (uint32_t)from * 9973u);

	return (uint8_t)(x ^ x >> 15 ^ x >> 24);
}

static void fill(uint8_t *p, int from, uint32_t seq, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = byte_of(from, seq, i);
}

static void check(const char *what, const uint8_t *p, int from, uint32_t seq, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != byte_of(from, seq, i))
			fail("%s: %zu bytes of rank %d, message %u: byte %zu is 0x%02x, not 0x%02x", what, n,
			     from, seq, i, p[i], byte_of(from, seq, i));
	for (size_t i = n; i < n + GUARD; i++)
		if (p[i] != POISON)
			fail("%s: %zu bytes of rank %d, message %u: byte %zu behind it was written", what, n,
			     from, seq, i - n);
}

static void *memory(size_t n)
{
	void *p = malloc(n);

	if (!p)
		fail("no memory for %zu bytes", n);
	return p;
}

static void exchange(uint8_t *out, uint8_t *in, uint32_t seq, size_t n)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, got;
	MPI_Status s;

	fill(out, rank, seq, n);
	memset(in, POISON, n + GUARD);
	MPI_Sendrecv(out, (int)n, MPI_BYTE, next, (int)seq, in, (int)n, MPI_BYTE, before, (int)seq,
		     MPI_COMM_WORLD, &s);
	MPI_Get_count(&s, MPI_BYTE, &got);
	if (got != (int)n || s.MPI_SOURCE != before)
		fail("exchange: %d bytes from rank %d, want %zu from %d", got, s.MPI_SOURCE, n, before);
	check("exchange", in, before, seq, n);
}

/* Many messages of different sizes under way at once, received in order. */
static void window(uint32_t seq)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	size_t most = 40000;
	uint8_t *out = memory(WINDOW * most), *in = memory(WINDOW * (most + GUARD));
	MPI_Request r[2 * WINDOW];

	memset(in, POISON, WINDOW * (most + GUARD));
	for (int i = 0; i < WINDOW; i++)
		MPI_Irecv(in + i * (most + GUARD), (int)most, MPI_BYTE, before, 7, MPI_COMM_WORLD, &r[i]);
	for (int i = 0; i < WINDOW; i++) {
		size_t n = (size_t)i * 7919 % most;

		fill(out + i * most, rank, seq + i, n);
		MPI_Isend(out + i * most, (int)n, MPI_BYTE, next, 7, MPI_COMM_WORLD, &r[WINDOW + i]);
	}
	MPI_Waitall(2 * WINDOW, r, MPI_STATUSES_IGNORE);
	for (int i = 0; i < WINDOW; i++)
		check("window", in + i * (most + GUARD), before, seq + i, (size_t)i * 7919 % most);
	free(out);
	free(in);
}

static void collective(void)
{
	enum { N = 100003 };
	int64_t *in = memory(N * sizeof *in), *out = memory(N * sizeof *out);

	for (int i = 0; i < N; i++)
		in[i] = (int64_t)i * (rank + 1);
	MPI_Allreduce(in, out, N, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < N; i++)
		if (out[i] != (int64_t)i * ranks * (ranks + 1) / 2)
			fail("Allreduce: element %d is %lld", i, (long long)out[i]);
	MPI_Barrier(MPI_COMM_WORLD);
	free(in);
	free(out);
}

/* All ranks count at rank 0: every number must be handed out exactly once. */
static void count(MPI_Win w)
{
	enum { EACH = 500 };
	int64_t one = 1, mine[EACH], *all = NULL;
	char *seen;

	for (int i = 0; i < EACH; i++) {
		MPI_Fetch_and_op(&one, &mine[i], MPI_INT64_T, 0, 0, MPI_SUM, w);
		MPI_Win_flush(0, w);
		if (i > 0 && mine[i] <= mine[i - 1])
			fail("Fetch_and_op gave %lld after %lld", (long long)mine[i], (long long)mine[i - 1]);
	}
	if (rank == 0)
		all = memory(sizeof mine * (size_t)ranks);
	MPI_Gather(mine, EACH, MPI_INT64_T, all, EACH, MPI_INT64_T, 0, MPI_COMM_WORLD);
	if (rank != 0)
		return;
	seen = memory((size_t)EACH * (size_t)ranks);
	memset(seen, 0, (size_t)EACH * (size_t)ranks);
	for (int i = 0; i < EACH * ranks; i++) {
		if (all[i] < 0 || all[i] >= EACH * ranks || seen[all[i]])
			fail("Fetch_and_op gave %lld twice, or out of turn", (long long)all[i]);
		seen[all[i]] = 1;
	}
	free(seen);
	free(all);
}

static void one_sided(void)
{
	enum { AT = 64 };
	size_t n = 1000003;
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	uint8_t *base, *back = memory(n + GUARD), *out = memory(n);
	int64_t want = rank, mark = 100 + rank, was;
	MPI_Win w;

	MPI_Win_allocate((MPI_Aint)(AT + n + GUARD), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &w);
	MPI_Win_lock_all(0, w);
	memset(base, 0, AT);
	memset(base + AT, POISON, n + GUARD);
	MPI_Win_sync(w);
	MPI_Barrier(MPI_COMM_WORLD);

	count(w);

	fill(out, rank, 77, n);
	MPI_Put(out, (int)n, MPI_BYTE, next, AT, (int)n, MPI_BYTE, w);
	MPI_Win_flush(next, w);
	memset(back, POISON, n + GUARD);
	MPI_Get(back, (int)n, MPI_BYTE, next, AT, (int)n, MPI_BYTE, w);
	MPI_Win_flush(next, w);
	check("Get", back, rank, 77, n);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_sync(w);
	check("Put", base + AT, before, 77, n);

	/* One turn after the other, each rank must find what the one before left. */
	for (int i = 0; i < ranks; i++) {
		MPI_Barrier(MPI_COMM_WORLD);
		if (i != rank)
			continue;
		want = rank == 0 ? 0 : 100 + rank - 1;
		MPI_Compare_and_swap(&mark, &want, &was, MPI_INT64_T, 0, 8, w);
		MPI_Win_flush(0, w);
		if (was != want)
			fail("Compare_and_swap found %lld, not %lld", (long long)was, (long long)want);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_unlock_all(w);
	MPI_Win_free(&w);
	free(back);
	free(out);
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 0, 1, 2, 3, 7, 8, 63, 64, 65, 255, 1000, 1023, 1024, 1025, 4095,
		4096, 4097, 8191, 8192, 8193, 16384, 65535, 65536, 65537, 262144, 1000003, 1 << 20,
		(1 << 20) + 1, LARGEST - 1, LARGEST };
	size_t total = 0;
	uint32_t seq = 1;
	uint8_t *out, *in;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks < 2)
		fail("there are %d ranks, which is no ring", ranks);
	out = memory(LARGEST);
	in = memory(LARGEST + GUARD);
	if (argc > 1 && !strcmp(argv[1], "--forever")) {
		for (;; seq++) {
			exchange(out, in, seq % 30000, sizes[seq % 24]);
			if (seq == 48 && rank == 0) {
				puts("ring: working");
				fflush(stdout);
			}
		}
	}
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (int k = 0; k < 3; k++, seq++, total += sizes[i])
			exchange(out, in, seq, sizes[i]);
	window(seq);
	collective();
	one_sided();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("ring: ok: %d ranks, %zu bytes in %u messages from each\n", ranks, total, seq - 1);
	free(out);
	free(in);
	MPI_Finalize();
	return 0;
}
