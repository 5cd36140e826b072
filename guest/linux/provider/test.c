// SPDX-License-Identifier: Apache-2.0
/* Tests of requests: elements octet by octet, positions that wrap, refusals, doorbells. */
#include "test.h"

/* ---- what libibverbs and the kernel do ---- */

unsigned int send_commands, recv_commands, srq_commands;
_Atomic unsigned int arm_commands, events;

int ibv_cmd_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	(void)qp, (void)bad_wr;
	CHECK(!wr);
	send_commands++;
	return 0;
}

int ibv_cmd_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	(void)qp, (void)bad_wr;
	CHECK(!wr);
	recv_commands++;
	return 0;
}

int ibv_cmd_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	(void)srq, (void)bad_wr;
	CHECK(!wr);
	srq_commands++;
	return 0;
}

int ibv_cmd_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	(void)cq, (void)solicited_only;
	arm_commands++;
	events++;
	return 0;
}

/* ---- queue pairs ---- */

static const uint64_t all_extensions = VROCE_EXT_ATOMIC | VROCE_EXT_MEM_MGT | VROCE_EXT_MW | VROCE_EXT_ATOMIC_WRITE;

struct pair {
	struct vroce_qp qp;
	struct device send, recv;
};

static struct pair *pair_new(enum ibv_qp_type type, bool compact, uint32_t size, uint32_t elements, bool event_idx)
{
	struct pair *pair = calloc(1, sizeof(*pair));
	struct vroce_qp *qp = &pair->qp;

	pthread_spin_init(&qp->send_lock.spin, PTHREAD_PROCESS_PRIVATE);
	pthread_spin_init(&qp->recv_lock.spin, PTHREAD_PROCESS_PRIVATE);
	device_init(&pair->send, &qp->send, size, elements, compact ? 128 : 640, event_idx, true);
	device_init(&pair->recv, &qp->recv, size, elements, 64, event_idx, true);
	qp->qp.qp_type = type;
	qp->datagram = type == IBV_QPT_UD;
	qp->opcodes = vroce_opcodes(type, all_extensions);
	qp->max_send_sge = 4;
	qp->max_recv_sge = 2;
	qp->max_inline = compact ? 64 : 512;
	qp->list_at = compact ? 48 : 560;
	qp->inline_at = compact ? 64 : 48;
	vroce_set_wr_functions(qp, 1);
	return pair;
}

static void pair_free(struct pair *pair)
{
	device_free(&pair->send);
	device_free(&pair->recv);
	free(pair);
}

static void post(struct pair *pair, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;

	CHECK(!vroce_post_send(&pair->qp.qp, wr, &bad));
	CHECK(!bad);
}

/* The wanted octets of a send element, by the tables of the text. */
struct wanted {
	uint8_t octets[640];
	size_t list_at;
};

static struct wanted want(bool compact, uint64_t wr_id, uint8_t opcode, uint8_t flags)
{
	struct wanted wanted = { .list_at = compact ? 48 : 560 };

	memset(wanted.octets, POISON, sizeof(wanted.octets));
	memset(wanted.octets, 0, 48);
	memset(wanted.octets + wanted.list_at, 0, 16);
	put(wanted.octets, 0, wr_id, 8);
	put(wanted.octets, 8, opcode, 1);
	put(wanted.octets, 9, flags, 1);
	return wanted;
}

static void want_sge(struct wanted *wanted, uint64_t addr, uint32_t length, uint32_t lkey)
{
	uint8_t *list = wanted->octets + wanted->list_at;
	size_t at = wanted->list_at + 16 + 16 * list[0];

	list[0]++;
	put(wanted->octets, at, addr, 8);
	put(wanted->octets, at + 8, length, 4);
	put(wanted->octets, at + 12, lkey, 4);
}

/* Takes one element and compares all its octets. */
static void see(struct pair *pair, const struct wanted *wanted)
{
	uint16_t number = device_take(&pair->send);
	uint8_t *element = device_element(&pair->send, number);

	for (uint32_t i = 0; i < pair->send.map.element_size; i++)
		if (element[i] != wanted->octets[i]) {
			fprintf(stderr, "octet %u is %02x, want %02x\n", i, element[i], wanted->octets[i]);
			exit(1);
		}
	memset(element, POISON, pair->send.map.element_size);
	device_use(&pair->send, number, true);
}

/* ---- tests ---- */

static void test_send_elements(bool compact)
{
	struct pair *pair = pair_new(IBV_QPT_RC, compact, 16, 16, true);
	struct ibv_sge list[2] = { { 0x1112131415161718, 0x21222324, 0x31323334 },
				   { 0x4142434445464748, 0x51525354, 0x61626364 } };
	struct ibv_mr mr = { .lkey = 0x71727374 };
	struct ibv_send_wr wr = { .wr_id = 0x0102030405060708, .sg_list = list, .num_sge = 2 };
	struct wanted wanted;

	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
	wr.imm_data = htobe32(0xa1a2a3a4);
	wr.wr.rdma.remote_addr = 0x8182838485868788;
	wr.wr.rdma.rkey = 0x91929394;
	post(pair, &wr);
	wanted = want(compact, wr.wr_id, 1, 6);
	memcpy(wanted.octets + 12, "\xa1\xa2\xa3\xa4", 4);
	put(wanted.octets, 16, 0x8182838485868788, 8);
	put(wanted.octets, 24, 0x91929394, 4);
	want_sge(&wanted, 0x1112131415161718, 0x21222324, 0x31323334);
	want_sge(&wanted, 0x4142434445464748, 0x51525354, 0x61626364);
	see(pair, &wanted);

	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.num_sge = 0;
	wr.send_flags = IBV_SEND_FENCE;
	post(pair, &wr);
	wanted = want(compact, wr.wr_id, 0, 1);
	put(wanted.octets, 16, 0x8182838485868788, 8);
	put(wanted.octets, 24, 0x91929394, 4);
	see(pair, &wanted);

	wr.opcode = IBV_WR_RDMA_READ;
	wr.num_sge = 1;
	wr.send_flags = 0;
	post(pair, &wr);
	wanted = want(compact, wr.wr_id, 4, 0);
	put(wanted.octets, 16, 0x8182838485868788, 8);
	put(wanted.octets, 24, 0x91929394, 4);
	want_sge(&wanted, 0x1112131415161718, 0x21222324, 0x31323334);
	see(pair, &wanted);

	wr.opcode = IBV_WR_SEND;
	post(pair, &wr);
	wanted = want(compact, wr.wr_id, 2, 0);
	want_sge(&wanted, 0x1112131415161718, 0x21222324, 0x31323334);
	see(pair, &wanted);

	wr.opcode = IBV_WR_SEND_WITH_IMM;
	post(pair, &wr);
	wanted = want(compact, wr.wr_id, 3, 0);
	memcpy(wanted.octets + 12, "\xa1\xa2\xa3\xa4", 4);
	want_sge(&wanted, 0x1112131415161718, 0x21222324, 0x31323334);
	see(pair, &wanted);

	wr.opcode = IBV_WR_SEND_WITH_INV;
	wr.invalidate_rkey = 0xb1b2b3b4;
	post(pair, &wr);
	wanted = want(compact, wr.wr_id, 0x42, 0);
	put(wanted.octets, 12, 0xb1b2b3b4, 4);
	want_sge(&wanted, 0x1112131415161718, 0x21222324, 0x31323334);
	see(pair, &wanted);

	wr.opcode = IBV_WR_LOCAL_INV;
	post(pair, &wr);
	wanted = want(compact, wr.wr_id, 0x43, 0);
	put(wanted.octets, 12, 0xb1b2b3b4, 4);
	see(pair, &wanted);

	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.remote_addr = 0xc1c2c3c4c5c6c7c8;
	wr.wr.atomic.compare_add = 0xd1d2d3d4d5d6d7d8;
	wr.wr.atomic.swap = 0xe1e2e3e4e5e6e7e8;
	wr.wr.atomic.rkey = 0xf1f2f3f4;
	post(pair, &wr);
	wanted = want(compact, wr.wr_id, 0x40, 0);
	put(wanted.octets, 16, 0xc1c2c3c4c5c6c7c8, 8);
	put(wanted.octets, 24, 0xd1d2d3d4d5d6d7d8, 8);
	put(wanted.octets, 32, 0xe1e2e3e4e5e6e7e8, 8);
	put(wanted.octets, 40, 0xf1f2f3f4, 4);
	want_sge(&wanted, 0x1112131415161718, 0x21222324, 0x31323334);
	see(pair, &wanted);

	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	post(pair, &wr);
	wanted.octets[8] = 0x41;
	put(wanted.octets, 32, 0, 8);
	see(pair, &wanted);

	wr.opcode = IBV_WR_BIND_MW;
	wr.bind_mw.rkey = 0xabacadae;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ &mr, 0x5152535455565758, 0x6162636465666768,
							  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };
	post(pair, &wr);
	wanted = want(compact, wr.wr_id, 0x45, 0);
	put(wanted.octets, 16, 0x5152535455565758, 8);
	put(wanted.octets, 24, 0x6162636465666768, 8);
	put(wanted.octets, 32, 0x71727374, 4);
	put(wanted.octets, 36, 0xabacadae, 4);
	put(wanted.octets, 40, 6, 4);
	see(pair, &wanted);
	pair_free(pair);
}

static void test_inline(bool compact)
{
	struct pair *pair = pair_new(IBV_QPT_RC, compact, 4, 4, true);
	static char text[520] = "written from two places";
	struct ibv_sge list[2] = { { (uintptr_t)text, 8, 0 }, { (uintptr_t)text + 8, 15, 0 } };
	struct ibv_send_wr *bad, wr = {
		.wr_id = 5,
		.sg_list = list,
		.num_sge = 2,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_INLINE,
	};
	struct wanted wanted = want(compact, 5, 2, 8);

	post(pair, &wr);
	memcpy(wanted.octets + (compact ? 64 : 48), text, 23);
	put(wanted.octets, wanted.list_at, 23, 4);
	see(pair, &wanted);

	list[0].length = pair->qp.max_inline;
	list[1].length = 1;
	CHECK(vroce_post_send(&pair->qp.qp, &wr, &bad) == EINVAL && bad == &wr);
	list[1].length = ~0U;
	CHECK(vroce_post_send(&pair->qp.qp, &wr, &bad) == EINVAL && bad == &wr);
	list[1].length = 0;
	CHECK(!vroce_post_send(&pair->qp.qp, &wr, &bad));
	wr.opcode = IBV_WR_RDMA_READ;
	CHECK(vroce_post_send(&pair->qp.qp, &wr, &bad) == EINVAL && bad == &wr);
	pair_free(pair);
}

static void test_datagram(void)
{
	struct pair *pair = pair_new(IBV_QPT_UD, true, 4, 4, true);
	struct vroce_ah ah = { .number = 0x81828384 };
	struct ibv_send_wr *bad, wr = { .wr_id = 9, .opcode = IBV_WR_SEND };
	struct wanted wanted = want(true, 9, 2, 0);

	CHECK(vroce_post_send(&pair->qp.qp, &wr, &bad) == EINVAL && bad == &wr);
	wr.wr.ud.ah = &ah.ah;
	wr.wr.ud.remote_qpn = 0x00010203;
	wr.wr.ud.remote_qkey = 0x11111111;
	post(pair, &wr);
	put(wanted.octets, 16, 0x00010203, 4);
	put(wanted.octets, 20, 0x11111111, 4);
	put(wanted.octets, 24, 0x81828384, 4);
	see(pair, &wanted);
	pair_free(pair);
}

static void test_receive_elements(void)
{
	struct pair *pair = pair_new(IBV_QPT_RC, true, 4, 4, false);
	struct ibv_sge list[3] = { { 1, 2, 3 }, { 4, 5, 6 } };
	struct ibv_recv_wr *bad, second = { .wr_id = 8, .num_sge = 3, .sg_list = list };
	struct ibv_recv_wr first = { .wr_id = 7, .num_sge = 2, .sg_list = list, .next = &second };
	uint8_t octets[64];

	CHECK(vroce_post_recv(&pair->qp.qp, &first, &bad) == EINVAL && bad == &second);
	CHECK(device_waiting(&pair->recv) == 1);
	memset(octets, POISON, sizeof(octets));
	memset(octets, 0, 56);
	octets[0] = 7;
	octets[8] = 2;
	for (int i = 0; i < 2; i++) {
		octets[24 + 16 * i] = 3 * i + 1;
		octets[32 + 16 * i] = 3 * i + 2;
		octets[36 + 16 * i] = 3 * i + 3;
	}
	CHECK(!memcmp(device_element(&pair->recv, device_take(&pair->recv)), octets, sizeof(octets)));
	second.num_sge = -1;
	CHECK(vroce_post_recv(&pair->qp.qp, &second, &bad) == EINVAL && bad == &second);
	pair->qp.qp.srq = (struct ibv_srq *)pair;
	CHECK(vroce_post_recv(&pair->qp.qp, &first, &bad) == EINVAL && bad == &first);
	pair_free(pair);
}

static void test_refusals(void)
{
	struct pair *pair = pair_new(IBV_QPT_RC, true, 4, 3, true);
	struct ibv_sge list[5] = {};
	struct ibv_send_wr *bad, wr[5];

	for (int i = 0; i < 5; i++)
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = list, .next = i < 4 ? &wr[i + 1] : NULL,
					      .opcode = IBV_WR_SEND };
	CHECK(vroce_post_send(&pair->qp.qp, wr, &bad) == ENOMEM && bad == &wr[3]);
	CHECK(device_waiting(&pair->send) == 3);
	CHECK(vroce_post_send(&pair->qp.qp, &wr[4], &bad) == ENOMEM && bad == &wr[4]);
	device_use(&pair->send, device_take(&pair->send), true);
	wr[4].num_sge = 5;
	CHECK(vroce_post_send(&pair->qp.qp, &wr[4], &bad) == EINVAL && bad == &wr[4]);
	wr[4].send_flags = IBV_SEND_INLINE;
	CHECK(vroce_post_send(&pair->qp.qp, &wr[4], &bad) == EINVAL && bad == &wr[4]);
	wr[4].send_flags = 0;
	wr[4].num_sge = -1;
	CHECK(vroce_post_send(&pair->qp.qp, &wr[4], &bad) == EINVAL && bad == &wr[4]);
	wr[4].num_sge = 4;
	wr[4].send_flags = IBV_SEND_IP_CSUM;
	CHECK(vroce_post_send(&pair->qp.qp, &wr[4], &bad) == EINVAL && bad == &wr[4]);
	wr[4].send_flags = 0;
	wr[4].opcode = IBV_WR_TSO;
	CHECK(vroce_post_send(&pair->qp.qp, &wr[4], &bad) == EINVAL && bad == &wr[4]);
	wr[4].opcode = 1000;
	CHECK(vroce_post_send(&pair->qp.qp, &wr[4], &bad) == EINVAL && bad == &wr[4]);
	wr[4].opcode = IBV_WR_SEND;
	post(pair, &wr[4]);
	pair->qp.opcodes = vroce_opcodes(IBV_QPT_UD, all_extensions);
	CHECK(pair->qp.opcodes == (1 << IBV_WR_SEND | 1 << IBV_WR_SEND_WITH_IMM));
	CHECK(!(vroce_opcodes(IBV_QPT_RC, 0) >> IBV_WR_ATOMIC_CMP_AND_SWP & 1));
	CHECK(!(vroce_opcodes(IBV_QPT_UC, all_extensions) >> IBV_WR_RDMA_READ & 1));
	CHECK(!vroce_opcodes(IBV_QPT_RAW_PACKET, all_extensions));
	pair_free(pair);
}

/* More than 2^17 requests in batches: positions wrap, elements come in order, none is interrupted for. */
static void test_wrap(uint32_t size, uint32_t elements, bool event_idx)
{
	struct pair *pair = pair_new(IBV_QPT_RC, true, size, elements, event_idx);
	uint64_t sent = 0, seen = 0;
	struct ibv_send_wr *wr = calloc(elements + 1, sizeof(*wr)), *bad;

	srand(size);
	while (seen < 140000 + 4 * (uint64_t)size) {
		uint32_t outstanding = sent - seen, batch = 1 + rand() % elements, waiting;

		for (uint32_t i = 0; i < batch; i++)
			wr[i] = (struct ibv_send_wr){ .wr_id = sent + i, .opcode = IBV_WR_SEND,
						      .next = i + 1 < batch ? &wr[i + 1] : NULL };
		if (outstanding + batch <= elements) {
			post(pair, wr);
			sent += batch;
		} else {
			CHECK(vroce_post_send(&pair->qp.qp, wr, &bad) == ENOMEM);
			CHECK(bad == &wr[elements - outstanding]);
			sent += elements - outstanding;
		}
		CHECK(device_waiting(&pair->send) == sent - seen);
		for (waiting = rand() % (sent - seen + 1); waiting; waiting--) {
			uint16_t number = device_take(&pair->send);

			CHECK(number == seen % elements);
			CHECK(!memcmp(device_element(&pair->send, number), &seen, 8));
			device_use(&pair->send, number, true);
			seen++;
		}
	}
	free(wr);
	pair_free(pair);
}

static void test_doorbell(void)
{
	struct pair *pair = pair_new(IBV_QPT_RC, true, 8, 8, true);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, second = { .opcode = IBV_WR_SEND, .next = &wr };
	struct ibv_recv_wr *bad, receive = {};

	/* avail_event is 0: the device waits for the first element. */
	post(pair, &second);
	CHECK(device_rung(&pair->send));
	post(pair, &wr);
	CHECK(!device_rung(&pair->send));
	device_wants(&pair->send, 4);
	post(pair, &wr);
	CHECK(!device_rung(&pair->send));
	post(pair, &second);
	CHECK(device_rung(&pair->send));
	CHECK(!vroce_post_recv(&pair->qp.qp, &receive, &bad) && device_rung(&pair->recv));
	pair->qp.recv.door = NULL;
	device_wants(&pair->recv, 1);
	CHECK(!vroce_post_recv(&pair->qp.qp, &receive, &bad) && recv_commands == 1);
	pair_free(pair);

	pair = pair_new(IBV_QPT_RC, true, 8, 8, false);
	post(pair, &wr);
	CHECK(device_rung(&pair->send));
	device_used(&pair->send)->flags = 1;
	post(pair, &wr);
	CHECK(!device_rung(&pair->send));
	device_used(&pair->send)->flags = 0;
	pair->qp.send.door = NULL;
	post(pair, &wr);
	CHECK(send_commands == 1);
	pair_free(pair);
}

/* The device uses elements of a shared receive queue in any order. */
static void test_shared_receive_queue(void)
{
	struct vroce_srq srq = { .max_sge = 2 };
	struct device device;
	uint64_t posted = 0;
	bool in_use[5] = {};
	uint16_t held[5];
	unsigned int count = 0;
	struct ibv_recv_wr *bad, receive = {};

	device_init(&device, &srq.ring, 8, 5, 64, true, false);
	pthread_spin_init(&srq.lock.spin, PTHREAD_PROCESS_PRIVATE);
	srand(1);
	while (posted < 200000) {
		receive.wr_id = posted;
		if (count == 5) {
			CHECK(vroce_post_srq_recv(&srq.srq, &receive, &bad) == ENOMEM && bad == &receive);
		} else {
			CHECK(!vroce_post_srq_recv(&srq.srq, &receive, &bad));
			held[count] = device_take(&device);
			CHECK(!memcmp(device_element(&device, held[count]), &posted, 8));
			CHECK(!in_use[held[count]]);
			in_use[held[count++]] = true;
			posted++;
		}
		if (count == 5 || rand() % 2) {
			unsigned int i = rand() % count;

			in_use[held[i]] = false;
			device_use(&device, held[i], true);
			held[i] = held[--count];
		}
	}
	device_free(&device);
}

/* ---- the functions of ibv_qp_ex ---- */

static void test_extended_requests(bool compact)
{
	struct pair *pair = pair_new(IBV_QPT_RC, compact, 4, 4, true);
	struct ibv_qp_ex *ex = &pair->qp.ex;
	struct ibv_sge list[5] = { { 1, 2, 3 }, { 4, 5, 6 } };
	void (*atomic_write)(struct ibv_qp_ex *, uint32_t, uint64_t, const void *);
	struct wanted wanted;

	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write_imm(ex, 0x91929394, 0x8182838485868788, htobe32(0xa1a2a3a4));
	ibv_wr_set_sge(ex, 3, 1, 2);
	ex->wr_id = 2;
	ex->wr_flags = 0;
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 2, list);
	ex->wr_id = 3;
	ibv_wr_send_imm(ex, htobe32(0xa1a2a3a4));
	ibv_wr_set_inline_data(ex, "abcde", 5);
	CHECK(!device_waiting(&pair->send));
	CHECK(!ibv_wr_complete(ex));
	CHECK(device_waiting(&pair->send) == 3 && device_rung(&pair->send));
	wanted = want(compact, 1, 1, 2);
	memcpy(wanted.octets + 12, "\xa1\xa2\xa3\xa4", 4);
	put(wanted.octets, 16, 0x8182838485868788, 8);
	put(wanted.octets, 24, 0x91929394, 4);
	want_sge(&wanted, 1, 2, 3);
	see(pair, &wanted);
	wanted = want(compact, 2, 2, 0);
	want_sge(&wanted, 1, 2, 3);
	want_sge(&wanted, 4, 5, 6);
	see(pair, &wanted);
	wanted = want(compact, 3, 3, 8);
	memcpy(wanted.octets + 12, "\xa1\xa2\xa3\xa4", 4);
	memcpy(wanted.octets + (compact ? 64 : 48), "abcde", 5);
	wanted.octets[wanted.list_at] = 5;
	see(pair, &wanted);

	ibv_wr_start(ex);
	ibv_wr_rdma_read(ex, 5, 6);
	ibv_wr_set_sge(ex, 3, 1, 2);
	ibv_wr_abort(ex);
	CHECK(!device_waiting(&pair->send));

	/* A refused request refuses its batch. */
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, 3, 1, 2);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 5, list);
	ibv_wr_send(ex);
	CHECK(ibv_wr_complete(ex) == EINVAL && !device_waiting(&pair->send));
	ibv_wr_start(ex);
	for (int i = 0; i < 5; i++)
		ibv_wr_send(ex);
	CHECK(ibv_wr_complete(ex) == ENOMEM && !device_waiting(&pair->send));

	ibv_wr_start(ex);
	ex->wr_id = 4;
	ibv_wr_atomic_cmp_swp(ex, 0x11, 0x22, 0x33, 0x44);
	ibv_wr_set_sge(ex, 3, 1, 8);
	ibv_wr_local_inv(ex, 0xb1b2b3b4);
	memcpy(&atomic_write, &ex->wr_abort + 1, sizeof(atomic_write));
	atomic_write(ex, 0x55, 0x66, "ABCDEFGH");
	CHECK(!ibv_wr_complete(ex));
	wanted = want(compact, 4, 0x40, 0);
	put(wanted.octets, 16, 0x22, 8);
	put(wanted.octets, 24, 0x33, 8);
	put(wanted.octets, 32, 0x44, 8);
	put(wanted.octets, 40, 0x11, 4);
	want_sge(&wanted, 1, 8, 3);
	memset(device_element(&pair->send, 3) + wanted.list_at + 32, POISON, 32);
	see(pair, &wanted);
	CHECK(device_waiting(&pair->send) == 2);
	pair_free(pair);
}

int main(void)
{
	for (int compact = 0; compact < 2; compact++) {
		test_send_elements(compact);
		test_inline(compact);
		test_extended_requests(compact);
	}
	test_datagram();
	test_receive_elements();
	test_refusals();
	test_wrap(8, 8, true);
	test_wrap(8, 5, false);
	test_wrap(1024, 1000, true);
	test_wrap(32768, 32768, true);
	test_wrap(1, 1, true);
	test_doorbell();
	test_shared_receive_queue();
	test_completion_queues();
	puts("the queues are as the text has them");
	return 0;
}
