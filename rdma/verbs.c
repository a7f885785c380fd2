//go:build rdma && linux && cgo

#include "verbs.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_reg_mr
#undef ibv_query_port

// Functions of libibverbs that are not inline in its header.
#define SYMBOLS(X)                                                                               \
	X(struct ibv_device **, ibv_get_device_list, (int *))                                         \
	X(void, ibv_free_device_list, (struct ibv_device **))                                         \
	X(const char *, ibv_get_device_name, (struct ibv_device *))                                   \
	X(struct ibv_context *, ibv_open_device, (struct ibv_device *))                               \
	X(int, ibv_close_device, (struct ibv_context *))                                              \
	X(int, ibv_query_device, (struct ibv_context *, struct ibv_device_attr *))                    \
	X(int, ibv_query_port, (struct ibv_context *, uint8_t, struct ibv_port_attr *))               \
	X(int, ibv_query_gid, (struct ibv_context *, uint8_t, int, union ibv_gid *))                  \
	X(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *))                                      \
	X(int, ibv_dealloc_pd, (struct ibv_pd *))                                                     \
	X(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *, void *, size_t, int))                        \
	X(int, ibv_dereg_mr, (struct ibv_mr *))                                                       \
	X(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *))                 \
	X(int, ibv_destroy_comp_channel, (struct ibv_comp_channel *))                                 \
	X(struct ibv_cq *, ibv_create_cq,                                                             \
	  (struct ibv_context *, int, void *, struct ibv_comp_channel *, int))                        \
	X(int, ibv_destroy_cq, (struct ibv_cq *))                                                     \
	X(int, ibv_get_cq_event, (struct ibv_comp_channel *, struct ibv_cq **, void **))              \
	X(void, ibv_ack_cq_events, (struct ibv_cq *, unsigned int))                                   \
	X(struct ibv_srq *, ibv_create_srq, (struct ibv_pd *, struct ibv_srq_init_attr *))            \
	X(int, ibv_destroy_srq, (struct ibv_srq *))                                                   \
	X(struct ibv_qp *, ibv_create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *))               \
	X(int, ibv_modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int))                           \
	X(int, ibv_destroy_qp, (struct ibv_qp *))                                                     \
	X(const char *, ibv_wc_status_str, (enum ibv_wc_status))

#define DECLARE(ret, name, args) static ret(*p_##name) args;
SYMBOLS(DECLARE)

enum { CQ_DEPTH = 1 << 14, SRQ_DEPTH = DB_RECV_COUNT, SEND_MAX = 512, ACCESS_PLAIN = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ };

struct dev {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_mr *recv_mr;
	uint8_t *recv;
	int windows;
};

struct pair {
	struct dev *dev;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	void *scratch;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *load_error;

// load_verbs finds the functions at run time, so that a binary with the tag rdma starts without libibverbs.
static void load_verbs(void) {
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (lib == NULL) {
		load_error = "libibverbs.so.1 is not installed";
		return;
	}

#define RESOLVE(ret, name, args)                                                                  \
	if ((p_##name = (ret(*) args)dlsym(lib, #name)) == NULL) {                                    \
		load_error = "libibverbs.so.1 lacks " #name;                                              \
		return;                                                                                   \
	}
	SYMBOLS(RESOLVE)
}

int db_abi(void) { return DB_VERBS_ABI; }

const char *db_load(void) {
	pthread_once(&once, load_verbs);
	return load_error;
}

const char *db_status(uint32_t s) { return p_ibv_wc_status_str((enum ibv_wc_status)s); }

// last_error returns the reason of a failed verb: errno, which not every provider sets.
static int last_error(void) { return errno ? errno : EIO; }

// open_named opens the device with a name; NULL and ENODEV if there is none.
static struct ibv_context *open_named(const char *name) {
	int n = 0;
	struct ibv_device **list = p_ibv_get_device_list(&n);
	struct ibv_context *ctx = NULL;

	errno = ENODEV;
	for (int i = 0; list != NULL && i < n && ctx == NULL; i++)
		if (strcmp(p_ibv_get_device_name(list[i]), name) == 0) ctx = p_ibv_open_device(list[i]);

	if (list != NULL) p_ibv_free_device_list(list);
	return ctx;
}

// describe fills info with the limits and the address of a port.
static int describe(struct dev *d, int port, int gid_index, db_info *info) {
	struct ibv_device_attr a;
	struct ibv_port_attr p;
	union ibv_gid gid;
	memset(&a, 0, sizeof a);
	memset(&p, 0, sizeof p);

	if (p_ibv_query_device(d->ctx, &a) || p_ibv_query_port(d->ctx, (uint8_t)port, &p) ||
	    p_ibv_query_gid(d->ctx, (uint8_t)port, gid_index, &gid))
		return last_error();

	if (p.state != IBV_PORT_ACTIVE) return ENETDOWN;

	info->reads_in = (uint32_t)a.max_qp_rd_atom;
	info->reads_out = (uint32_t)a.max_qp_init_rd_atom;
	info->lid = p.lid;
	info->mtu = p.active_mtu;
	info->ethernet = p.link_layer == IBV_LINK_LAYER_ETHERNET;
	info->windows = d->windows = (a.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
	info->wr_max = (uint32_t)a.max_qp_wr;
	memcpy(info->gid, gid.raw, sizeof info->gid);
	return 0;
}

// receive_all posts the device's receive buffers, shared by all its queue pairs.
static int receive_all(struct dev *d) {
	size_t all = (size_t)DB_RECV_BYTES * DB_RECV_COUNT;
	void *mem = NULL;

	errno = 0;
	if (posix_memalign(&mem, 4096, all) != 0) return ENOMEM;
	d->recv = mem;
	if ((d->recv_mr = p_ibv_reg_mr(d->pd, mem, all, IBV_ACCESS_LOCAL_WRITE)) == NULL) return last_error();

	for (uint32_t i = 0; i < DB_RECV_COUNT; i++) {
		int rc = db_receive((uintptr_t)d, i);
		if (rc != 0) return rc;
	}
	return 0;
}

int db_open(const char *device, int port, int gid_index, void **out, db_info *info) {
	struct dev *d = calloc(1, sizeof *d);
	if (d == NULL) return ENOMEM;

	struct ibv_srq_init_attr srq = {.attr = {.max_wr = SRQ_DEPTH, .max_sge = 1}};
	int rc = 0;

	errno = 0;
	if ((d->ctx = open_named(device)) == NULL || (d->pd = p_ibv_alloc_pd(d->ctx)) == NULL ||
	    (d->channel = p_ibv_create_comp_channel(d->ctx)) == NULL ||
	    (d->cq = p_ibv_create_cq(d->ctx, CQ_DEPTH, NULL, d->channel, 0)) == NULL ||
	    (d->srq = p_ibv_create_srq(d->pd, &srq)) == NULL)
		rc = last_error();

	if (rc == 0) rc = describe(d, port, gid_index, info);
	if (rc == 0) rc = receive_all(d);

	// A loop polls the channel, so reading events must not block.
	if (rc == 0) {
		int flags = fcntl(d->channel->fd, F_GETFL);
		if (fcntl(d->channel->fd, F_SETFL, flags | O_NONBLOCK) < 0) rc = last_error();
	}

	if (rc != 0) {
		db_close(d);
		return rc;
	}

	*out = d;
	return 0;
}

void db_close(void *dev) {
	struct dev *d = dev;
	if (d->srq) p_ibv_destroy_srq(d->srq);
	if (d->recv_mr) p_ibv_dereg_mr(d->recv_mr);
	free(d->recv);
	if (d->cq) p_ibv_destroy_cq(d->cq);
	if (d->channel) p_ibv_destroy_comp_channel(d->channel);
	if (d->pd) p_ibv_dealloc_pd(d->pd);
	if (d->ctx) p_ibv_close_device(d->ctx);
	free(d);
}

int db_channel(void *dev) { return ((struct dev *)dev)->channel->fd; }

void db_event(void *dev) {
	struct dev *d = dev;
	struct ibv_cq *cq;
	void *context;
	unsigned int n = 0;

	while (p_ibv_get_cq_event(d->channel, &cq, &context) == 0) n++;
	if (n > 0) p_ibv_ack_cq_events(d->cq, n);
}

int db_arm(void *dev) { return ibv_req_notify_cq(((struct dev *)dev)->cq, 0); }

int db_poll(uintptr_t dev, db_wc *out, int max) {
	struct ibv_wc wc[64];
	int n = ibv_poll_cq(((struct dev *)dev)->cq, max < 64 ? max : 64, wc);
	if (n < 0) return -EIO;

	for (int i = 0; i < n; i++)
		out[i] = (db_wc){.id = wc[i].wr_id, .status = wc[i].status, .bytes = wc[i].byte_len,
		                 .qpn = wc[i].qp_num};
	return n;
}

int db_register(void *dev, uint64_t addr, uint64_t bytes, void **out, uint32_t *lkey, uint32_t *rkey) {
	struct dev *d = dev;
	errno = 0;

	int access = ACCESS_PLAIN | (d->windows ? IBV_ACCESS_MW_BIND : 0);
	struct ibv_mr *mr = p_ibv_reg_mr(d->pd, (void *)(uintptr_t)addr, bytes, access);
	if (mr == NULL) return last_error();
	*out = mr;

	*lkey = mr->lkey;
	*rkey = mr->rkey;
	return 0;
}

int db_deregister(void *mr) { return p_ibv_dereg_mr(mr); }

int db_window(void *dev, void **out) {
	errno = 0;
	struct ibv_mw *mw = ibv_alloc_mw(((struct dev *)dev)->pd, IBV_MW_TYPE_2);
	if (mw == NULL) return last_error();
	*out = mw;
	return 0;
}

int db_window_free(void *mw) { return ibv_dealloc_mw(mw); }

int db_bind(void *qp, void *window, void *mr, uint64_t addr, uint64_t bytes, uint64_t id, uint32_t *rkey) {
	struct pair *p = qp;
	struct ibv_mw *mw = window;

	struct ibv_send_wr *bad, wr = {
		.wr_id = id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = {.mw = mw, .rkey = ibv_inc_rkey(mw->rkey),
		            .bind_info = {.mr = mr, .addr = addr, .length = bytes, .mw_access_flags = IBV_ACCESS_REMOTE_READ}},
	};

	int rc = ibv_post_send(p->qp, &wr, &bad);
	if (rc == 0) mw->rkey = *rkey = wr.bind_mw.rkey;
	return rc;
}

int db_pair(void *dev, int port, uint32_t send_depth, uint32_t scratch, db_pair_info *out) {
	struct dev *d = dev;

	struct pair *p = calloc(1, sizeof *p);
	if (p == NULL) return ENOMEM;
	p->dev = d;

	// The scratch memory also has the buffers of messages to send.
	scratch += DB_SEND_COUNT * DB_RECV_BYTES;
	struct ibv_qp_init_attr init = {
		.send_cq = d->cq, .recv_cq = d->cq, .srq = d->srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = send_depth + DB_SEND_COUNT, .max_send_sge = 2},
	};

	errno = 0;
	if (posix_memalign(&p->scratch, 4096, scratch) != 0 ||
	    (p->mr = p_ibv_reg_mr(d->pd, p->scratch, scratch, IBV_ACCESS_LOCAL_WRITE)) == NULL ||
	    (p->qp = p_ibv_create_qp(d->pd, &init)) == NULL) {
		int rc = last_error();
		db_pair_free(p);
		return rc;
	}

	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = (uint8_t)port, .qp_access_flags = IBV_ACCESS_REMOTE_READ};
	int rc = p_ibv_modify_qp(p->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (rc != 0) {
		db_pair_free(p);
		return rc;
	}

	*out = (db_pair_info){.qp = p, .scratch = p->scratch, .qpn = p->qp->qp_num, .scratch_lkey = p->mr->lkey};
	return 0;
}

int db_connect(void *qp, int port, int gid_index, const db_end *mine, const db_end *theirs) {
	struct pair *p = qp;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = (enum ibv_mtu)(mine->mtu < theirs->mtu ? mine->mtu : theirs->mtu),
		.dest_qp_num = theirs->qpn,
		.rq_psn = theirs->psn,
		.max_dest_rd_atomic = (uint8_t)(mine->reads_in < theirs->reads_out ? mine->reads_in : theirs->reads_out),
		.min_rnr_timer = 12, // 0.64 ms
		.ah_attr = {.dlid = (uint16_t)theirs->lid, .port_num = (uint8_t)port, .is_global = 1,
		            .grh = {.sgid_index = (uint8_t)gid_index, .hop_limit = 64}},
	};

	memcpy(a.ah_attr.grh.dgid.raw, theirs->gid, 16);
	int rc = p_ibv_modify_qp(p->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

	if (rc != 0) return rc;

	// The queue pair can send only after it can receive.
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .sq_psn = mine->psn,
		.timeout = 16, // 268 ms per try
		.retry_cnt = 5, .rnr_retry = 7,
		.max_rd_atomic = (uint8_t)(mine->reads_out < theirs->reads_in ? mine->reads_out : theirs->reads_in),
	};
	return p_ibv_modify_qp(p->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	                                      IBV_QP_MAX_QP_RD_ATOMIC);
}

int db_post(uintptr_t qp, const db_wr *in, int n) {
	struct pair *p = (struct pair *)qp;
	struct ibv_send_wr *bad, wr[SEND_MAX];
	struct ibv_sge sge[SEND_MAX][2];

	if (n < 1 || n > SEND_MAX) return EINVAL;

	for (int i = 0; i < n; i++) {
		// A READ may scatter to two places: its first bytes to head, the rest to local.
		int pieces = 0;
		if (in[i].head != 0)
			sge[i][pieces++] = (struct ibv_sge){.addr = in[i].head, .length = DB_HEAD, .lkey = in[i].head_lkey};
		if (in[i].bytes != 0 || pieces == 0)
			sge[i][pieces++] = (struct ibv_sge){.addr = in[i].local, .length = in[i].bytes, .lkey = in[i].lkey};

		wr[i] = (struct ibv_send_wr){
			.wr_id = in[i].id, .next = i + 1 < n ? &wr[i + 1] : NULL, .sg_list = sge[i], .num_sge = pieces,
			.opcode = in[i].op == DB_READ ? IBV_WR_RDMA_READ : IBV_WR_SEND,
			.send_flags = in[i].flags & DB_SIGNALED ? IBV_SEND_SIGNALED : 0,
			.wr.rdma = {.remote_addr = in[i].remote, .rkey = in[i].rkey},
		};
	}

	return ibv_post_send(p->qp, wr, &bad);
}

int db_post_poll(uintptr_t qp, const db_wr *wrs, int n, db_wc *out, int max) {
	int rc = db_post(qp, wrs, n);
	return rc != 0 ? -rc : db_poll((uintptr_t)((struct pair *)qp)->dev, out, max);
}

const uint8_t *db_received(uintptr_t dev, uint32_t number) {
	return ((struct dev *)dev)->recv + (size_t)number * DB_RECV_BYTES;
}

int db_receive(uintptr_t dev, uint32_t number) {
	struct dev *d = (struct dev *)dev;
	struct ibv_sge sge = {.addr = (uintptr_t)db_received(dev, number), .length = DB_RECV_BYTES, .lkey = d->recv_mr->lkey};
	struct ibv_recv_wr *bad, wr = {.wr_id = DB_RECV | number, .sg_list = &sge, .num_sge = 1};
	return ibv_post_srq_recv(d->srq, &wr, &bad);
}

int db_break(void *qp) {
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	return p_ibv_modify_qp(((struct pair *)qp)->qp, &a, IBV_QP_STATE);
}

int db_pair_free(void *qp) {
	struct pair *p = qp;
	int rc = p->qp ? p_ibv_destroy_qp(p->qp) : 0;

	// The device may still write to the scratch memory, so the memory stays.
	if (rc != 0) return rc;
	if (p->mr) p_ibv_dereg_mr(p->mr);
	free(p->scratch);
	free(p);
	return 0;
}
