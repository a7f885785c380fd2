// The C interface to libibverbs that rdma/verbs_*.go calls; verbs.c implements it. libibverbs is opened at run time
// (dlopen), so a binary with the tag rdma starts on hosts without it.
//
// Every int result is 0 or an errno. Handles are opaque. The functions that are called often take them as integers,
// because cgo checks the pointers that it passes. A device must outlive its regions, windows and queue pairs. Any
// thread may call db_post and db_poll, but only one at a time per queue pair and per device.
#ifndef DB_VERBS_H
#define DB_VERBS_H

#include <stdint.h>

#define DB_VERBS_ABI 3

enum { DB_READ = 1, DB_SEND = 2, DB_BIND = 3 };
enum { DB_SIGNALED = 1, DB_HEAD = 16 };
enum { DB_RECV_BYTES = 16 << 10, DB_RECV_COUNT = 512, DB_SEND_COUNT = 16 };
#define DB_RECV ((uint64_t)1 << 63) // in a completion's id: a receive

typedef struct {
	uint8_t gid[16];
	uint32_t qpn;
	uint32_t psn;
	uint32_t lid;
	uint32_t mtu;        // enum ibv_mtu
	uint32_t reads_in;   // reads that this end serves at a time
	uint32_t reads_out;  // reads that this end has under way at a time
} db_end;

typedef struct {
	uint32_t reads_in, reads_out; // device limits: max_qp_rd_atom, max_qp_init_rd_atom
	uint32_t lid, mtu;
	uint32_t ethernet; // link layer: 1 RoCE, 0 InfiniBand
	uint32_t windows;  // type 2 memory windows
	uint32_t wr_max;
	uint8_t gid[16];
} db_info;

typedef struct {
	uint64_t id;
	uint64_t local, remote; // addresses
	uint64_t head;          // of a READ: where its first DB_HEAD bytes go, before those at local; or 0
	uint32_t lkey, head_lkey, rkey;
	uint32_t bytes; // at local; may be 0 with a head
	uint16_t op, flags;
} db_wr;

typedef struct {
	uint64_t id;
	uint32_t status; // 0, or enum ibv_wc_status
	uint32_t bytes;
	uint32_t qpn;
} db_wc;

typedef struct {
	void *qp;
	uint8_t *scratch; // the bytes asked for, then DB_SEND_COUNT send buffers of DB_RECV_BYTES
	uint32_t qpn;
	uint32_t scratch_lkey;
} db_pair_info;

int db_abi(void);
const char *db_load(void); // NULL, or why libibverbs cannot be used
const char *db_status(uint32_t wc_status);

int db_open(const char *device, int port, int gid_index, void **dev, db_info *info);
void db_close(void *dev);
int db_channel(void *dev); // descriptor that becomes readable after db_arm and a completion
void db_event(void *dev);  // takes the events that made the descriptor readable
int db_arm(void *dev);     // asks for one event, at the next completion
int db_poll(uintptr_t dev, db_wc *out, int max); // completions, or -errno

int db_register(void *dev, uint64_t addr, uint64_t bytes, void **mr, uint32_t *lkey, uint32_t *rkey);
int db_deregister(void *mr);

int db_window(void *dev, void **mw);
int db_window_free(void *mw);
int db_bind(void *qp, void *mw, void *mr, uint64_t addr, uint64_t bytes, uint64_t id, uint32_t *rkey);

// db_pair makes a queue pair in state INIT, with scratch bytes of registered memory of its own.
int db_pair(void *dev, int port, uint32_t send_depth, uint32_t scratch, db_pair_info *out);
int db_break(void *qp); // for tests: moves it to the error state
int db_connect(void *qp, int port, int gid_index, const db_end *mine, const db_end *theirs);
int db_post(uintptr_t qp, const db_wr *wrs, int n);
// db_post_poll is db_post, then db_poll of the queue pair's device: completions, or -errno.
int db_post_poll(uintptr_t qp, const db_wr *wrs, int n, db_wc *out, int max);
// db_receive gives a receive buffer back, by the number in its completion's id (without DB_RECV).
int db_receive(uintptr_t dev, uint32_t number);
const uint8_t *db_received(uintptr_t dev, uint32_t number);
int db_pair_free(void *qp);

#endif
