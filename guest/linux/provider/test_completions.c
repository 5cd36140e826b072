// SPDX-License-Identifier: Apache-2.0
/* Tests of completion queues: what is read from completions, buffers, arming. */
#include "test.h"

struct completions {
	struct vroce_cq cq;
	struct device device;
	_Atomic uint32_t arm, wanted;
};

static struct completions *completions_new(uint32_t size, uint32_t elements)
{
	struct completions *c = calloc(1, sizeof(*c));
	struct vroce_ring *ring = &c->cq.ring;

	device_init(&c->device, ring, size, elements, 48, true, false);
	pthread_spin_init(&c->cq.lock.spin, PTHREAD_PROCESS_PRIVATE);
	/* The module makes all buffers available. */
	for (uint32_t i = 0; i < elements; i++)
		device_avail(&c->device)->ring[i] = i;
	device_avail(&c->device)->idx = elements;
	vroce_ring_init(ring, &c->device.map, true, false);
	c->cq.arm_word = &c->arm;
	c->cq.wanted = &c->wanted;
	vroce_set_poll_functions(&c->cq);
	return c;
}

static void completions_free(struct completions *c)
{
	device_free(&c->device);
	free(c);
}

static void complete(struct completions *c, const uint8_t *octets)
{
	uint16_t number = device_take(&c->device);

	memcpy(device_element(&c->device, number), octets, 48);
	device_use(&c->device, number, false);
}

static void test_completions(void)
{
	struct completions *c = completions_new(8, 6);
	struct ibv_poll_cq_attr attr = {};
	struct ibv_cq_ex *ex = &c->cq.verbs.cq_ex;
	uint8_t octets[48];
	struct ibv_wc wc[8];

	memset(octets, POISON, sizeof(octets));
	put(octets, 0, 0x0102030405060708, 8);
	octets[8] = 0;
	octets[9] = 3;
	put(octets, 12, 0x11121314, 4);
	put(octets, 16, 0x21222324, 4);
	memcpy(octets + 20, "\x31\x32\x33\x34", 4);
	put(octets, 24, 0x00414243, 4);
	put(octets, 28, 0x00515253, 4);
	put(octets, 32, 3, 4);
	put(octets, 36, 0x6162, 2);
	put(octets, 38, 0x7172, 2);
	octets[40] = 2;
	octets[41] = 9;
	CHECK(!vroce_poll_cq(&c->cq.verbs.cq, 8, wc));
	complete(c, octets);
	octets[0] = 9;
	put(octets, 32, 0x100, 4);
	complete(c, octets);
	CHECK(device_waiting(&c->device) == 4);
	CHECK(vroce_poll_cq(&c->cq.verbs.cq, 1, wc) == 1);
	CHECK(wc->wr_id == 0x0102030405060708 && wc->status == IBV_WC_SUCCESS && wc->opcode == IBV_WC_RECV);
	CHECK(wc->vendor_err == 0x11121314 && wc->byte_len == 0x21222324 && wc->qp_num == 0x414243);
	CHECK(wc->imm_data == htobe32(0x31323334) && wc->src_qp == 0x515253);
	CHECK(wc->wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc->pkey_index == 0x6162 && wc->slid == 0x7172);
	CHECK(wc->sl == 2 && wc->dlid_path_bits == 9);
	CHECK(device_waiting(&c->device) == 5);
	CHECK(vroce_poll_cq(&c->cq.verbs.cq, 8, wc) == 1);
	CHECK(wc->wr_id == 0x0102030405060709 && wc->wc_flags == IBV_WC_WITH_INV);
	CHECK(wc->invalidated_rkey == 0x34333231);
	CHECK(device_waiting(&c->device) == 6);

	CHECK(ex->start_poll(ex, &attr) == ENOENT);
	complete(c, octets);
	octets[0] = 10;
	octets[8] = 11;
	complete(c, octets);
	CHECK(!ex->start_poll(ex, &attr));
	CHECK(ex->wr_id == 0x0102030405060709 && ex->status == IBV_WC_SUCCESS);
	CHECK(ex->read_opcode(ex) == IBV_WC_RECV && ex->read_vendor_err(ex) == 0x11121314);
	CHECK(ex->read_byte_len(ex) == 0x21222324 && ex->read_imm_data(ex) == htobe32(0x31323334));
	CHECK(ex->read_qp_num(ex) == 0x414243 && ex->read_src_qp(ex) == 0x515253);
	CHECK(ex->read_wc_flags(ex) == IBV_WC_WITH_INV && ex->read_slid(ex) == 0x7172);
	CHECK(ex->read_sl(ex) == 2 && ex->read_dlid_path_bits(ex) == 9);
	CHECK(!ex->next_poll(ex));
	CHECK(ex->wr_id == 0x010203040506070a && ex->status == IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK(device_waiting(&c->device) == 4);
	CHECK(ex->next_poll(ex) == ENOENT);
	ex->end_poll(ex);
	CHECK(device_waiting(&c->device) == 6);
	complete(c, octets);
	CHECK(!ex->start_poll(ex, &attr));
	ex->end_poll(ex);
	CHECK(device_waiting(&c->device) == 6);
	completions_free(c);
}

static void test_completion_numbers(void)
{
	static const enum ibv_wc_status statuses[] = {
		IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR,
		IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR,
		IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_REM_ABORT_ERR,
		IBV_WC_FATAL_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR,
	};
	static const struct {
		uint8_t number;
		enum ibv_wc_opcode opcode;
	} opcodes[] = {
		{ 0, IBV_WC_SEND }, { 1, IBV_WC_RDMA_WRITE }, { 2, IBV_WC_RDMA_READ }, { 3, IBV_WC_RECV },
		{ 4, IBV_WC_RECV_RDMA_WITH_IMM }, { 0x40, IBV_WC_COMP_SWAP }, { 0x41, IBV_WC_FETCH_ADD },
		{ 0x42, IBV_WC_LOCAL_INV }, { 0x44, IBV_WC_BIND_MW }, { 0x47, 9 },
	};

	for (unsigned int i = 0; i < 16; i++)
		CHECK(vroce_wc_status(i) == statuses[i]);
	CHECK(vroce_wc_status(0x40) == IBV_WC_MW_BIND_ERR);
	CHECK(vroce_wc_status(0xff) == IBV_WC_GENERAL_ERR);
	for (unsigned int i = 0; i < sizeof(opcodes) / sizeof(opcodes[0]); i++)
		CHECK(vroce_wc_opcode(opcodes[i].number) == opcodes[i].opcode);
}

static void test_completion_wrap(void)
{
	struct completions *c = completions_new(16, 11);
	uint64_t written = 0, read = 0;
	struct ibv_wc wc[16];
	uint8_t octets[48] = { [24] = 5 };

	srand(2);
	while (read < 200000) {
		uint32_t batch = rand() % (device_waiting(&c->device) + 1);
		int count;

		for (; batch; batch--) {
			memcpy(octets, &written, 8);
			complete(c, octets);
			written++;
		}
		count = vroce_poll_cq(&c->cq.verbs.cq, 1 + rand() % 16, wc);
		for (int i = 0; i < count; i++)
			CHECK(wc[i].wr_id == read++);
		CHECK(device_waiting(&c->device) == 11 - (written - read));
	}
	completions_free(c);
}

static void test_destroyed_queue_pair(void)
{
	struct completions *c = completions_new(8, 8);
	uint8_t octets[48] = {};
	struct ibv_wc wc[8];

	for (int i = 0; i < 6; i++) {
		octets[0] = i;
		octets[24] = i % 2 ? 7 : 8;
		complete(c, octets);
	}
	vroce_cq_forget(&c->cq, 7);
	octets[0] = 6;
	octets[24] = 7; /* a new queue pair has the number */
	complete(c, octets);
	CHECK(vroce_poll_cq(&c->cq.verbs.cq, 8, wc) == 4);
	CHECK(wc[0].wr_id == 0 && wc[1].wr_id == 2 && wc[2].wr_id == 4 && wc[3].wr_id == 6);
	CHECK(device_waiting(&c->device) == 8);
	completions_free(c);
}

static void test_arm(void)
{
	struct completions *c = completions_new(8, 8);
	struct ibv_cq *cq = &c->cq.verbs.cq;
	static const struct {
		uint32_t before;
		int solicited;
		uint32_t after;
	} cases[] = { { 0, 1, 1 }, { 1, 1, 1 }, { 2, 1, 2 }, { 0, 0, 2 }, { 1, 0, 2 }, { 2, 0, 2 } };

	for (unsigned int i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		c->arm = cases[i].before;
		c->wanted = 0;
		CHECK(!vroce_req_notify_cq(cq, cases[i].solicited));
		CHECK(c->arm == cases[i].after && c->wanted == 1 && !arm_commands);
	}
	c->cq.arm_word = NULL;
	CHECK(!vroce_req_notify_cq(cq, 0) && arm_commands == 1);
	arm_commands = events = 0;
	completions_free(c);
}

static _Atomic bool stop_device;

/* The device and the module: exchanges the arm word as soon as it is set, and delivers the event if it is wanted. */
static void *notify(void *argument)
{
	struct completions *c = argument;

	for (; !stop_device; sched_yield())
		if (atomic_exchange(&c->arm, 0) && atomic_exchange(&c->wanted, 0))
			events++;
	return NULL;
}

/* An event follows every arming, whatever the order of the device's and the driver's steps. */
static void test_arm_races(void)
{
	struct completions *c = completions_new(8, 8);
	pthread_t device;

	CHECK(!pthread_create(&device, NULL, notify, c));
	for (unsigned int i = 0; i < 20000; i++) {
		unsigned int before = events;

		CHECK(!vroce_req_notify_cq(&c->cq.verbs.cq, i % 2));
		for (unsigned int spin = 0; events == before; spin++) {
			CHECK(spin < 10000000);
			sched_yield();
		}
	}
	stop_device = true;
	pthread_join(device, NULL);
	completions_free(c);
}

void test_completion_queues(void)
{
	test_completions();
	test_completion_numbers();
	test_completion_wrap();
	test_destroyed_queue_pair();
	test_arm();
	test_arm_races();
}
