/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "own_dir.h"

_Atomic bool fake_hold, fake_swap, fake_ahead;
_Atomic uint32_t fake_inline_elements, fake_list_elements, fake_kicks, fake_bells;
struct fake fake;
pthread_mutex_t fake_event_mu = PTHREAD_MUTEX_INITIALIZER;
struct weft_event fake_pending;
_Atomic uint32_t fake_have_pending;
_Atomic bool fake_dry;

static void answer(uint32_t request, const void *p, uint32_t size)
{
	struct weft_vu_hdr h = { request, WEFT_VU_VERSION | WEFT_VU_REPLY, size };
	char m[256];

	memcpy(m, &h, sizeof(h));
	memcpy(m + sizeof(h), p, size);
	need(send(fake.sock, m, sizeof(h) + size, MSG_NOSIGNAL) == (ssize_t)(sizeof(h) + size));
}

static bool message(void)
{
	struct weft_vu_hdr h;
	char body[256] = { 0 }, ctl[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { &h, sizeof(h) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof(ctl) };
	struct cmsghdr *c;
	uint64_t v = 0;
	int fd = -1;

	if (recvmsg(fake.sock, &m, 0) != sizeof(h))
		return false;
	if ((c = CMSG_FIRSTHDR(&m)))
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	need((h.flags & 3) == 1 && h.size <= sizeof(body));
	if (h.size)
		need(recv(fake.sock, body, h.size, MSG_WAITALL) == (ssize_t)h.size);
	switch (h.request) {
	case WEFT_VU_HELLO:
		need(h.size == sizeof(struct weft_hello));
		answer(h.request, &(struct weft_hello_reply){ .abi = WEFT_ABI_VERSION, .spin_us = 50 }, 16);
		return true;
	case WEFT_VU_GET_FEATURES:
		v = 1ull << 17 | 1ull << 30 | 1ull << 32 | 1ull << 55;
		answer(h.request, &v, 8);
		return true;
	case WEFT_VU_GET_PROTOCOL_FEATURES:
		v = 1ull << 3 | 1ull << 9 | 1ull << 15 | 1ull << 16 | 1ull << 56;
		answer(h.request, &v, 8);
		return true;
	case WEFT_VU_GET_STATUS:
		v = 0x0b;
		answer(h.request, &v, 8);
		return true;
	case WEFT_VU_GET_CONFIG: {
		struct weft_config conf = { .max_rdma_qps = QPS, .max_rdma_cqs = CQS };

		need(h.size == 44);
		memcpy(body + 12, &conf, sizeof(conf));
		answer(h.request, body, 44);
		return true;
	}
	case WEFT_VU_SET_PROTOCOL_FEATURES:
		return true;
	case WEFT_VU_ADD_MEM_REG: {
		struct weft_vu_mem_reg *r = (void *)body;
		struct stat st;

		need(h.size == sizeof(*r) && fd >= 0 && r->gpa == r->user_addr && !fstat(fd, &st) &&
		     (uint64_t)st.st_size >= r->size && fake.nmem < 64);
		need((fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW));
		fake.mem[fake.nmem].base = r->gpa;
		fake.mem[fake.nmem++].size = r->size;
		break;
	}
	case WEFT_VU_SET_DOORBELL: {
		struct weft_set_doorbell *s = (void *)body;

		need(fd >= 0 && !(s->gpa % 64) && !(s->nbits % 64) && s->nbits >= RINGS &&
		     fake_inside(s->gpa, 128 + s->nbits / 8));
		fake.db = (void *)(uintptr_t)s->gpa;
		fake.nbits = s->nbits;
		fake.kick = fd;
		fd = -1;
		break;
	}
	case WEFT_VU_PROC_MEM: {
		struct weft_proc_mem *p = (void *)body;

		need(pread(fd, &fake.probe_word, 8, (off_t)p->probe_addr) == 8 && fake.probe_word == p->probe_value);
		break;
	}
	case WEFT_VU_SET_RING: {
		struct weft_set_ring *s = (void *)body;
		static struct ring now;

		need(h.size == sizeof(*s) && s->index < RINGS && s->num && !(s->num & (s->num - 1)) &&
		     fake_inside(s->desc, 16ull * s->num) && fake_inside(s->avail, 6 + 2ull * s->num) &&
		     fake_inside(s->used, 6 + 8ull * s->num) && !(s->desc % 16) && !(s->used % 4));
		need((s->flags & WEFT_RING_CALL) == (fd >= 0));
		now = (struct ring){ .on = true, .num = s->num, .desc = (void *)(uintptr_t)s->desc,
			.avail = (void *)(uintptr_t)s->avail, .used = (void *)(uintptr_t)s->used,
			.call = fd, .call_value = s->call_value };
		if (s->flags & WEFT_RING_MOVE) {
			fake_move(&fake.ring[s->index], &now);
			break;
		}
		need(!fake.ring[s->index].on);
		fake.ring[s->index] = now;
		fd = -1;
		break;
	}
	case WEFT_VU_STOP_RING: {
		struct weft_stop_ring *s = (void *)body;

		need(s->index < RINGS && fake.ring[s->index].on);
		if (fake.ring[s->index].call >= 0)
			close(fake.ring[s->index].call);
		fake.ring[s->index] = (struct ring){ .call = -1 };
		break;
	}
	case WEFT_VU_SET_OWNER:
	case WEFT_VU_SET_STATUS:
	case WEFT_VU_SET_FEATURES:
		break;
	default:
		need(!"known request");
	}
	if (fd >= 0)
		close(fd);
	need(h.flags & WEFT_VU_NEED_REPLY);
	v = 0;
	answer(h.request, &v, 8);
	return true;
}

static bool bells(void)
{
	uint32_t words = fake.nbits / 64;
	bool any = false;

	if (!__atomic_exchange_n(&fake.db->summary, 0, __ATOMIC_SEQ_CST))
		return false;
	for (uint32_t w = 0; w < words; w++)
		any |= __atomic_exchange_n(&fake.db->bits[w], 0, __ATOMIC_SEQ_CST) != 0;
	fake_bells++;
	return any;
}

static void *run(void *arg)
{
	int idle = 0;

	(void)arg;
	fake.sock = accept4(fake.listener, NULL, NULL, SOCK_CLOEXEC);
	fake.kick = -1;
	need(fake.sock >= 0);
	for (;;) {
		struct pollfd p[2] = { { fake.sock, POLLIN, 0 }, { fake.kick, POLLIN, 0 } };
		uint64_t k;
		int wait = 0;

		if (fake.db && ++idle > 20) {
			__atomic_store_n(&fake.db->sleeping, 1, __ATOMIC_SEQ_CST);
			if (!__atomic_load_n(&fake.db->summary, __ATOMIC_SEQ_CST) && (!fake_have_pending || fake_dry))
				wait = 20;
		}
		need(poll(p, 2, fake.db ? wait : -1) >= 0 || errno == EINTR);
		if (fake.db)
			__atomic_store_n(&fake.db->sleeping, 0, __ATOMIC_SEQ_CST);
		if (p[1].revents & POLLIN && read(fake.kick, &k, 8) == 8)
			fake_kicks++;
		if (p[0].revents && !message())
			return NULL;
		/* Only rings with a rung bell have work: a lost bell must show. */
		if (fake.db && bells()) {
			idle = 0;
			fake_dry = false;
			while (fake_commands())
				;
			while (fake_work())
				;
		} else if (fake_have_pending && !fake_dry) {
			fake_work();
		}
	}
}

static void put(const char *dir, const char *name, const char *text)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	need(f);
	fputs(text, f);
	fclose(f);
}

static void fill(const char *dir)
{
	char cmd[256], path[256];

	snprintf(cmd, sizeof(cmd), "mkdir -p %s/door %s/tree/sys/class/infiniband/weft0", dir, dir);
	need(!system(cmd));
	snprintf(path, sizeof(path), "%s/tree/sys/class/infiniband/weft0", dir);
	put(path, "node_guid", "0200:00ff:fe00:0001\n");
	put(path, "node_type", "1: CA\n");
}

void fake_exec(char **argv, const char *preload)
{
	own_dir(argv, fill, preload);
}

void fake_start(void)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	pthread_t t;

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/door/weft0.sock", getenv("WEFT_DIR"));
	fake.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	need(!bind(fake.listener, (struct sockaddr *)&sa, sizeof(sa)) && !listen(fake.listener, 4));
	need(!pthread_create(&t, NULL, run, NULL));
}

void fake_kill(void)
{
	shutdown(fake.sock, SHUT_RDWR);
}

bool fake_owns(int fd)
{
	bool own = fd == fake.listener || fd == fake.sock || fd == fake.kick;

	for (uint32_t i = 0; i < RINGS; i++)
		own |= fake.ring[i].on && fake.ring[i].call == fd;
	return own;
}

void fake_events(uint32_t type, uint32_t object, uint32_t count)
{
	pthread_mutex_lock(&fake_event_mu);
	fake_pending = (struct weft_event){ .type = type, .object = object };
	fake_have_pending = count;
	pthread_mutex_unlock(&fake_event_mu);
	while (fake_have_pending && !fake_dry)
		usleep(100);
}

void fake_event(uint32_t type, uint32_t object)
{
	fake_events(type, object, 1);
}
