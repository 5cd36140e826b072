// SPDX-License-Identifier: Apache-2.0
/*
 * A program with librdmacm in itself: it connects to itself over the address in its
 * first argument, and sends one message each way.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define PORT "18555"

static void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static struct rdma_cm_id *endpoint(const char *address, int flags)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found;
	struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 16}, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
	struct rdma_cm_id *id;

	need(rdma_getaddrinfo(address, PORT, &hints, &found) == 0, "rdma_getaddrinfo");
	need(rdma_create_ep(&id, found, NULL, &attr) == 0, "rdma_create_ep");
	rdma_freeaddrinfo(found);
	return id;
}

static void exchange(struct rdma_cm_id *id, char *buf, struct ibv_mr *mr, const char *mine, const char *theirs)
{
	struct ibv_wc wc;

	strcpy(buf + 64, mine);
	need(rdma_post_send(id, NULL, buf + 64, 64, mr, 0) == 0, "rdma_post_send");
	need(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "the send");
	need(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "the receive");
	need(strcmp(buf, theirs) == 0, "the contents");
}

static void *serve(void *listening)
{
	static char buf[128];
	struct rdma_cm_id *id;
	struct ibv_mr *mr;

	need(rdma_get_request(listening, &id) == 0, "rdma_get_request");
	mr = rdma_reg_msgs(id, buf, sizeof(buf));
	need(mr != NULL, "rdma_reg_msgs");
	need(rdma_post_recv(id, NULL, buf, 64, mr) == 0, "rdma_post_recv");
	need(rdma_accept(id, NULL) == 0, "rdma_accept");
	exchange(id, buf, mr, "of the server", "of the client");
	return id;
}

int main(int argc, char **argv)
{
	static char buf[128];
	struct rdma_cm_id *listening, *id;
	struct ibv_mr *mr;
	pthread_t server;

	need(argc == 2, "usage: staticcm ADDRESS");
	listening = endpoint(argv[1], RAI_PASSIVE);
	need(rdma_listen(listening, 1) == 0, "rdma_listen");
	need(pthread_create(&server, NULL, serve, listening) == 0, "pthread_create");
	id = endpoint(argv[1], 0);
	mr = rdma_reg_msgs(id, buf, sizeof(buf));
	need(mr != NULL, "rdma_reg_msgs");
	need(rdma_post_recv(id, NULL, buf, 64, mr) == 0, "rdma_post_recv");
	need(rdma_connect(id, NULL) == 0, "rdma_connect");
	exchange(id, buf, mr, "of the client", "of the server");
	need(pthread_join(server, NULL) == 0, "pthread_join");
	puts("staticcm: ok");
	return 0;
}
