//go:build ignore

// What the kernel knows of a tail: round trips that TCP measured, per connection, and how long
// threads that were ready to run waited for a processor. Compiled by "go generate" (clang); the
// objects are committed.
#include <linux/bpf.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;

enum { FLAG_RETRANS = 1 << 1, FLAG_RTT = 1 << 3 };

// The fields that we need, found by name in the running kernel (CO-RE).
struct task_struct {
	unsigned int __state; // since Linux 5.14
	int pid;
	int tgid;
} __attribute__((preserve_access_index));

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

enum { BUCKETS = 296 };

// log-linear, 8 steps per power of two: rdma's delays uses the same.
static __always_inline u32 bucket(u64 v) {
	u32 k = 0;
	u64 x = v;
	if (x >> 32) { k += 32; x >>= 32; }
	if (x >> 16) { k += 16; x >>= 16; }
	if (x >> 8) { k += 8; x >>= 8; }
	if (x >> 4) { k += 4; x >>= 4; }
	if (x >> 2) { k += 2; x >>= 2; }
	if (x >> 1) { k += 1; }
	if (k <= 3) return (u32)v;
	u32 b = ((k - 3) << 3) + (u32)(v >> (k - 3));
	return b < BUCKETS ? b : BUCKETS - 1;
}

// Ports whose connections are watched: local or remote.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u8);
} ports SEC(".maps");

// Processes whose threads are watched.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u8);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BUCKETS);
	__type(key, u32);
	__type(value, u64);
} rtts SEC(".maps"), waits SEC(".maps"), counters SEC(".maps");

// When a watched thread became ready to run.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, u64);
} ready SEC(".maps");

static __always_inline void count(void *map, u32 at) {
	u64 *n = bpf_map_lookup_elem(map, &at);
	if (n) (*n)++;
}

static __always_inline int watched(struct bpf_sock_ops *s) {
	u32 local = s->local_port, remote = __builtin_bswap32(s->remote_port);
	return bpf_map_lookup_elem(&ports, &local) || bpf_map_lookup_elem(&ports, &remote);
}

SEC("sockops")
int tcp_delay(struct bpf_sock_ops *s) {
	switch (s->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (watched(s)) bpf_sock_ops_cb_flags_set(s, FLAG_RTT | FLAG_RETRANS);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		count(&rtts, bucket((u64)s->args[0] * 1000)); // the raw sample, in µs
		break;
	case BPF_SOCK_OPS_RETRANS_CB:
		count(&counters, 0);
		break;
	}
	return 1;
}

static __always_inline int became_ready(struct task_struct *t) {
	u32 tgid = BPF_CORE_READ(t, tgid), pid = BPF_CORE_READ(t, pid);
	if (!bpf_map_lookup_elem(&processes, &tgid)) return 0;
	u64 now = bpf_ktime_get_ns();
	bpf_map_update_elem(&ready, &pid, &now, BPF_ANY);
	return 0;
}

SEC("raw_tp/sched_wakeup")
int thread_woken(struct bpf_raw_tracepoint_args *ctx) { return became_ready((struct task_struct *)ctx->args[0]); }

SEC("raw_tp/sched_wakeup_new")
int thread_new(struct bpf_raw_tracepoint_args *ctx) { return became_ready((struct task_struct *)ctx->args[0]); }

// stays_ready tells whether a thread that gives up its processor wants it back at once: it was
// preempted in the kernel, or its time was up while it ran in user space (that one is still running).
static __always_inline int stays_ready(u64 preempted, struct task_struct *t) {
	return preempted || (bpf_core_field_exists(t->__state) && BPF_CORE_READ(t, __state) == 0);
}

// sched_switch(preempt, prev, next): next ran out of its wait.
SEC("raw_tp/sched_switch")
int thread_switched(struct bpf_raw_tracepoint_args *ctx) {
	struct task_struct *prev = (struct task_struct *)ctx->args[1], *next = (struct task_struct *)ctx->args[2];
	if (stays_ready(ctx->args[0], prev)) became_ready(prev);
	u32 pid = BPF_CORE_READ(next, pid);
	u64 *since = bpf_map_lookup_elem(&ready, &pid);
	if (!since) return 0;
	u64 now = bpf_ktime_get_ns();
	if (now > *since) count(&waits, bucket(now - *since));
	bpf_map_delete_elem(&ready, &pid);
	return 0;
}

char licence[] SEC("license") = "Dual BSD/GPL";
