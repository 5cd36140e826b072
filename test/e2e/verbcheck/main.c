/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#define VC_LIB
#include "vc.h"

#include <errno.h>
#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct end *A, *B;
int wait_ms = 10000;
bool opt_big, opt_lid, opt_user;
uint64_t opt_seed;
int opt_timeout = 18;
int test_line;

static jmp_buf escape;
static char verdict[512];
enum { PASSED, FAILED, SKIPPED };

void fail(const char *file, int line, const char *fmt, ...)
{
	va_list ap;
	const char *base = strrchr(file, '/');

	file = base ? base + 1 : file;
	va_start(ap, fmt);
	int n = vsnprintf(verdict, sizeof verdict, fmt, ap);
	va_end(ap);
	if (n > 0 && n < (int)sizeof verdict && !strcmp(file, "lib.c"))
		snprintf(verdict + n, sizeof verdict - n, " [test line %d]", test_line);
	else if (n > 0 && n < (int)sizeof verdict)
		snprintf(verdict + n, sizeof verdict - n, " [%s:%d]", file, line);
	longjmp(escape, FAILED);
}

void skip(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(verdict, sizeof verdict, fmt, ap);
	va_end(ap);
	longjmp(escape, SKIPPED);
}

/* tidy destroys what the test left at e; a refusal, or an asynchronous event
 * that the test should not have caused, is a failure. */
static void tidy(struct end *e, int flags, int *result)
{
	struct msg m = { .op = OP_RESET };
	char why[160] = "";

	call(e, &m, NULL, 0, NULL, 0);
	/* What may come at any time: a first packet, a port that came up before the first test. */
	uint64_t events = m.u[0] & ~(1ull << IBV_EVENT_COMM_EST | 1ull << IBV_EVENT_QP_LAST_WQE_REACHED |
		1ull << IBV_EVENT_PORT_ACTIVE |
				     1ull << IBV_EVENT_GID_CHANGE | 1ull << IBV_EVENT_LID_CHANGE | 1ull << IBV_EVENT_PKEY_CHANGE |
				     1ull << IBV_EVENT_SM_CHANGE | 1ull << IBV_EVENT_CLIENT_REREGISTER);
	if (e->rxe) /* raises it unasked */
		events &= ~(1ull << IBV_EVENT_SQ_DRAINED);
	if (m.rc)
		snprintf(why, sizeof why, "destroying the objects at %s (call %d): %s", e->name, m.id, errname(m.rc));
	else if (events && !(flags & ASYNC))
		snprintf(why, sizeof why, "asynchronous event at %s: %s", e->name, ibv_event_type_str(__builtin_ctzll(events)));
	if (why[0] && *result != FAILED) {
		*result = FAILED;
		memcpy(verdict, why, sizeof why);
	}
}

static int run(const struct test *t)
{
	struct timespec a, b;
	volatile int r = PASSED;

	if (t->flags & BIG && !opt_big)
		return NONE;
	verdict[0] = 0;
	clock_gettime(CLOCK_MONOTONIC, &a);
	int j = setjmp(escape);
	if (j)
		r = j;
	else
		t->run();
	int result = r;
	tidy(A, t->flags, &result);
	tidy(B, t->flags, &result);
	clock_gettime(CLOCK_MONOTONIC, &b);
	double ms = (b.tv_sec - a.tv_sec) * 1e3 + (b.tv_nsec - a.tv_nsec) / 1e6;
	switch (result) {
	case PASSED: printf("ok %s (%.0f ms)\n", t->name, ms); break;
	case SKIPPED: printf("skip %s: %s\n", t->name, verdict); break;
	default: printf("FAIL %s: %s\n", t->name, verdict); break;
	}
	fflush(stdout);
	return result;
}

static const char usage[] =
	"usage: verbcheck [options] --local       both ends in this process\n"
	"       verbcheck [options]               serve one client\n"
	"       verbcheck [options] SERVER        run the tests with a server\n"
	"  -d DEV      device (default: the first)\n"
	"  -i PORT     port of the device (default 1)\n"
	"  -g INDEX    GID index (default: the first that is not link-local)\n"
	"  -6          without -g: the first IPv6 GID instead of IPv4\n"
	"  -p PORT     TCP port of the server (default 18550)\n"
	"  -t GLOB     run only tests whose name matches; may be repeated\n"
	"  -x GLOB     leave these out; may be repeated\n"
	"  -l          list the tests\n"
	"  -w SECONDS  how long an expected event may take (default 10)\n"
	"  -T CODE     local ACK timeout of reliable queue pairs, 4.096 us << CODE (default 18; less for lossy links)\n"
	"  -s SEED     of sizes and contents (default: from the clock)\n"
	"  -m LID      InfiniBand: LID of the multicast group ff12:401b:ffff::7665:7201, which both ends have joined\n"
	"  --big       also messages up to 2 GiB\n"
	"  --lid       address by LID alone, without a GRH; given at both ends\n"
	"  --user      the programs are of another user than the nodes, and not root: they are refused what only they may do\n"
	"  --peer=rxe  accept what Linux soft-RoCE does differently, at the ends that are soft-RoCE\n";

static _Noreturn void bad_usage(const char *what)
{
	fprintf(stderr, "verbcheck: %s\n%s", what, usage);
	exit(2);
}

static const char *value(int argc, char **argv, int *i)
{
	if (*i + 1 >= argc)
		bad_usage("an option lacks its value");
	return argv[++*i];
}

static bool matches(const char *const *globs, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (!fnmatch(globs[i], name, 0))
			return true;
	return false;
}

int main(int argc, char **argv)
{
	const char *dev = NULL, *port = "18550", *server = NULL, *only[32], *without[32];
	int ib_port = 1, gid = NONE, nonly = 0, nwithout = 0, count[3] = { 0 };
	bool v6 = false, local = false, list = false, rxe = false;
	const struct test *all[] = { object_tests, state_tests, data_tests, atomic_tests, big_tests, error_tests, memory_tests,
		window_tests, unreliable_tests, mcast_tests, event_tests };
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	opt_seed = (uint64_t)now.tv_sec << 20 ^ now.tv_nsec ^ getpid();
	for (int i = 1; i < argc; i++) {
		const char *a = argv[i];
		if (!strcmp(a, "-d")) dev = value(argc, argv, &i);
		else if (!strcmp(a, "-i")) ib_port = atoi(value(argc, argv, &i));
		else if (!strcmp(a, "-g")) gid = atoi(value(argc, argv, &i));
		else if (!strcmp(a, "-p")) port = value(argc, argv, &i);
		else if (!strcmp(a, "-w")) wait_ms = atoi(value(argc, argv, &i)) * 1000;
		else if (!strcmp(a, "-s")) opt_seed = strtoull(value(argc, argv, &i), NULL, 0);
		else if (!strcmp(a, "-t") && nonly < 32) only[nonly++] = value(argc, argv, &i);
		else if (!strcmp(a, "-x") && nwithout < 32) without[nwithout++] = value(argc, argv, &i);
		else if (!strcmp(a, "-T")) opt_timeout = atoi(value(argc, argv, &i));
		else if (!strcmp(a, "-m")) opt_mlid = strtoul(value(argc, argv, &i), NULL, 0);
		else if (!strcmp(a, "-6")) v6 = true;
		else if (!strcmp(a, "-l")) list = true;
		else if (!strcmp(a, "--local")) local = true;
		else if (!strcmp(a, "--big")) opt_big = true;
		else if (!strcmp(a, "--lid")) opt_lid = true;
		else if (!strcmp(a, "--user")) opt_user = true;
		else if (!strcmp(a, "--peer=rxe")) rxe = true;
		else if (!strcmp(a, "-h") || !strcmp(a, "--help")) return fputs(usage, stdout), 0;
		else if (a[0] == '-' || server) bad_usage(a);
		else server = a;
	}
	if (local && server)
		bad_usage("--local takes no server");
	if (list) {
		for (unsigned k = 0; k < sizeof all / sizeof *all; k++)
			for (const struct test *t = all[k]; t->name; t++)
				puts(t->name);
		return 0;
	}
	if (opt_lid && gid != NONE)
		bad_usage("--lid takes no GID");
	struct exec *x = exec_open(dev, ib_port, gid, v6);
	if (!x)
		return 2;
	if (!local && !server) {
		int rc = wire_serve(port, x);
		exec_close(x);
		return rc;
	}
	struct end a = { .name = "A", .fd = NONE, .x = x }, b = { .name = "B", .fd = NONE };
	A = &a, B = &b;
	if (server) {
		if ((b.fd = wire_connect(server, port)) == NONE)
			return 2;
	} else if (!(b.x = exec_open(exec_device(x), ib_port, gid, v6))) {
		return 2;
	}
	for (int i = 0; i < 2; i++) {
		struct end *e = i ? B : A;
		struct msg m = { .op = OP_HELLO };
		call(e, &m, NULL, 0, &e->h, sizeof e->h);
		if (e->h.magic != HELLO_MAGIC) {
			fprintf(stderr, "verbcheck: the server is another version\n");
			return 2;
		}
		e->rxe = rxe && e->h.vendor_id == RXE_VENDOR;
	}
	printf("verbcheck: %s, seed %llu\n", exec_device(x), (unsigned long long)opt_seed);
	fflush(stdout);
	for (unsigned k = 0; k < sizeof all / sizeof *all; k++)
		for (const struct test *t = all[k]; t->name; t++) {
			if ((nonly && !matches(only, nonly, t->name)) || matches(without, nwithout, t->name))
				continue;
			int r = run(t);
			if (r != NONE)
				count[r]++;
		}
	printf("%d passed, %d failed, %d skipped\n", count[PASSED], count[FAILED], count[SKIPPED]);
	struct msg bye = { .op = OP_BYE };
	if (server)
		call(B, &bye, NULL, 0, NULL, 0);
	else
		exec_close(b.x);
	exec_close(x);
	if (!count[PASSED] && !count[FAILED] && !count[SKIPPED]) {
		fprintf(stderr, "verbcheck: no test has that name. fix: see -l\n");
		return 2;
	}
	return count[FAILED] ? 1 : 0;
}
