// A CUDA driver for tests that runs on the processor. It has the functions that cuda/gpu.c looks up and runs the
// kernels of kernels.cu and tensor.cu, compiled by g++. It is built as libcuda.so.1, so the whole path runs without a
// GPU: Go, cgo, submissions, captures, launches, and every index that a kernel computes.
//
// Commands run when they are enqueued. The threads of a block take turns between barriers, alternately forwards and
// backwards, so that a missing barrier shows. Blocks run one after another. Device memory ends at an unmapped page,
// so that an overrun stops the process. The driver does not model speed, the order of memory accesses between blocks,
// or two warps that run without a barrier between them.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "hostgpu.h"
#include "kernels.h"

// The same source is included once for each type of real numbers, as the modules are compiled.
namespace f32 {
#include "kernels.cu"
}
#undef NAME
#undef KERNEL
#define REAL_F16
namespace f16 {
#include "kernels.cu"
}
#undef REAL_F16
#undef NAME
#undef KERNEL
#define REAL_BF16
namespace bf16 {
#include "kernels.cu"
}
#undef REAL_BF16
#include "tensor.cu"

hostgpu_dim threadIdx, blockIdx, blockDim, gridDim;

namespace {

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500 };

std::recursive_mutex mu; // one command at a time

// Kernel describes a kernel: the size of its struct, the threads of its block, and whether they meet at barriers.
struct Kernel {
	const char *name;
	size_t size;
	unsigned threads;
	bool barriers;
	void (*run)(const void *);
};

#define RUN_IN(space, name, params, threads, barriers) \
	{#name, sizeof(params), threads, barriers, [](const void *p) { space::name(*(const params *)p); }}
#define RUN(name, params, threads, barriers) RUN_IN(f32, name, params, threads, barriers)
#define RUN_REAL(name, params, barriers) \
	RUN(name, params, THREADS, barriers), \
	{#name "_f16", sizeof(params), THREADS, barriers, [](const void *p) { f16::name##_f16(*(const params *)p); }}, \
	{#name "_bf16", sizeof(params), THREADS, barriers, [](const void *p) { bf16::name##_bf16(*(const params *)p); }}
#define RUN_TENSOR(name, ...) RUN_IN(, name##_f16, tensor_params, THREADS, true), RUN_IN(, name##_bf16, tensor_params, THREADS, true),
#define RUN_ATTEND(name, ...) \
	RUN_IN(, name##_f16, attention_params, ATTEND_THREADS, true), RUN_IN(, name##_bf16, attention_params, ATTEND_THREADS, true),

const Kernel kernels[] = {
	RUN_REAL(conv, conv_params, true), RUN_REAL(conv_depthwise, conv_params, false), RUN_REAL(gemm, gemm_params, true),
	RUN_REAL(pool, pool_params, false), RUN_REAL(binary, binary_params, false), RUN_REAL(where, where_params, false),
	RUN_REAL(unary, unary_params, false), RUN_REAL(affine, affine_params, false), RUN_REAL(softmax, rows_params, true),
	RUN_REAL(reduce, rows_params, true), RUN_REAL(argmax, rows_params, true), RUN_REAL(layernorm, layernorm_params, true),
	RUN_REAL(attention, attention_params, true), RUN(binary_int64, binary_params, THREADS, false),
	RUN(copy, copy_params, THREADS, false), RUN(gather, gather_params, THREADS, false), RUN(cast, cast_params, THREADS, false),
	{"touch", sizeof(uint32_t *), 1, false, [](const void *p) { **(uint32_t *const *)p = 42; }}, // of cuda/crosscheck
	TENSOR_KERNELS(RUN_TENSOR) ATTENTION_KERNELS(RUN_ATTEND)
};

// The threads of one block, each with its own stack. A switch saves the registers that a call must preserve.
#if defined(__x86_64__)
extern "C" void hostgpu_switch(void **save, void *to);
asm(".text\nhostgpu_switch:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp, (%rdi)\n"
	" mov %rsi, %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
typedef void *Context;
void start_thread(Context *c, char *stack, size_t n, void (*f)()) {
	void **top = (void **)(((uintptr_t)stack + n) & ~(uintptr_t)15);
	*--top = 0; // the return address of f, which never returns
	*--top = (void *)f;
	for (int i = 0; i < 6; i++) *--top = 0;
	*c = top;
}
void switch_context(Context *from, Context *to) { hostgpu_switch(from, *to); }
#else
#include <ucontext.h>
typedef ucontext_t Context;
void start_thread(Context *c, char *stack, size_t n, void (*f)()) {
	getcontext(c);
	c->uc_stack.ss_sp = stack;
	c->uc_stack.ss_size = n;
	c->uc_link = 0;
	makecontext(c, f, 0);
}
void switch_context(Context *from, Context *to) { swapcontext(from, to); }
#endif

struct Copy { void *to; const void *from; };
struct Posted { uint8_t bytes[64]; };

const size_t stack_bytes = 64 << 10;
std::vector<Context> threads;
std::vector<char> stacks, finished;
std::vector<Posted> posted;
std::vector<std::vector<std::vector<Copy>>> copies; // of each thread, in groups
Context scheduler;
unsigned current;
const Kernel *kernel;
const void *arguments;

void thread_main() {
	kernel->run(arguments);
	finished[current] = 1;
	switch_context(&threads[current], &scheduler);
}

void run_block_with_barriers(unsigned n) {
	threads.resize(n);
	stacks.resize(n * stack_bytes);
	posted.resize(n);
	copies.assign(n, {});
	finished.assign(n, 0);

	for (unsigned i = 0; i < n; i++) start_thread(&threads[i], &stacks[i * stack_bytes], stack_bytes, thread_main);

	// Run every thread up to its next barrier, round after round.
	for (unsigned round = 0, done = 0; done < n; round++) {
		for (unsigned i = 0; i < n; i++) {
			current = round % 2 ? n - 1 - i : i;
			threadIdx = {current, 0, 0};
			switch_context(&scheduler, &threads[current]);
			done += finished[current];
		}

		// Either all threads end in a round or none: a thread that skips a barrier would hang a GPU.
		if (done != 0 && done != n) {
			fprintf(stderr, "hostgpu: %s: %u of %u threads ended while the others wait at a barrier\n", kernel->name, done, n);
			abort();
		}
	}
}

void run_block(unsigned n) {
	if (kernel->barriers) return run_block_with_barriers(n);
	for (unsigned i = 0; i < n; i++) {
		threadIdx = {i, 0, 0};
		kernel->run(arguments);
	}
}

// Memory is a block of device memory. fd is the file that other processes map, or -1 while the block is not shared.
// opened counts how often this process opened a block of another process.
struct Memory { size_t bytes; char *map; size_t mapped; int fd = -1; ino_t inode = 0; unsigned opened = 0; };
std::map<uint64_t, Memory> memory;
const size_t memory_max = 4ull << 30;
size_t memory_used;

struct Event { timespec at; };
struct Module { std::string text; };

// Operation is performed at once or kept in a graph.
struct Operation {
	int kind; // 0 copy, 1 fill, 2 launch, 3 record, 4 a library's call
	void *to;
	const void *from;
	size_t n;
	int value;
	const Kernel *k;
	hostgpu_dim grid, block;
	std::vector<char> params;
};
typedef std::vector<Operation> Graph;
thread_local Graph *capturing;

void perform(const Operation &o) {
	switch (o.kind) {
	case 0: memmove(o.to, o.from, o.n); return;
	case 1: memset(o.to, o.value, o.n); return;
	case 4: ((void (*)(const void *))o.to)(o.params.data()); return;
	case 3: clock_gettime(CLOCK_MONOTONIC, &((Event *)o.to)->at); return;
	}

	kernel = o.k;
	arguments = o.params.data();
	gridDim = o.grid;
	blockDim = o.block;

	for (unsigned z = 0; z < o.grid.z; z++)
		for (unsigned y = 0; y < o.grid.y; y++)
			for (unsigned x = 0; x < o.grid.x; x++) {
				blockIdx = {x, y, z};
				// Overwrite what the previous block left, which no block may read.
				memset(hostgpu_dynamic, 0xff, o.n);
				run_block(o.block.x);
			}
}

int enqueue(Operation o) {
	std::lock_guard<std::recursive_mutex> hold(mu);
	if (capturing) capturing->push_back(std::move(o));
	else perform(o);
	return OK;
}

// is_device_memory reports whether n bytes at p are device memory.
bool is_device_memory(uint64_t p, size_t n) {
	std::lock_guard<std::recursive_mutex> hold(mu);
	auto it = memory.upper_bound(p);
	if (it == memory.begin()) return false;
	--it;
	return p - it->first <= it->second.bytes && n <= it->second.bytes - (p - it->first);
}

} // namespace

uint8_t hostgpu_dynamic[HOSTGPU_DYNAMIC_MAX] __attribute__((aligned(1024)));

void hostgpu_barrier() { switch_context(&threads[current], &scheduler); }

void hostgpu_post(const void *p, int n) { memcpy(posted[current].bytes, p, n); }
const void *hostgpu_of(int lane) { return posted[current / 32 * 32 + lane].bytes; }

float hostgpu_xor(float v, int mask) {
	hostgpu_post(&v, sizeof v);
	hostgpu_barrier();
	v = *(const float *)hostgpu_of((current % 32) ^ mask);
	hostgpu_barrier();
	return v;
}

void hostgpu_copy_async(void *to, const void *from) {
	if (copies[current].empty()) copies[current].emplace_back();
	copies[current].back().push_back({to, from});
}
void hostgpu_commit() { copies[current].emplace_back(); }

void hostgpu_wait(int pending) {
	// The last group is not committed yet.
	auto &groups = copies[current];
	while ((int)groups.size() > pending + 1) {
		for (const Copy &c : groups.front()) c.from ? (void)memcpy(c.to, c.from, 16) : (void)memset(c.to, 0, 16);
		groups.erase(groups.begin());
	}
}

extern "C" {

int cuInit(unsigned) { return OK; }
int cuDriverGetVersion(int *v) { *v = 1; return OK; }
int cuDeviceGetCount(int *n) { *n = 1; return OK; }
int cuDeviceGet(int *d, int i) { *d = i; return i == 0 ? OK : INVALID_DEVICE; }
int cuDeviceGetName(char *s, int n, int) { snprintf(s, n, "hostgpu"); return OK; }
int cuDeviceGetAttribute(int *v, int which, int) { // as of compute 9.0 with four multiprocessors
	*v = which == 75 ? 9 : which == 76 ? 0 : which == 97 ? HOSTGPU_DYNAMIC_MAX : 4;
	return OK;
}
int cuDeviceTotalMem_v2(size_t *n, int) { *n = memory_max; return OK; }
int cuDevicePrimaryCtxRetain(void **c, int) { *c = (void *)1; return OK; }
int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
int cuCtxSetCurrent(void *) { return OK; }

int cuMemGetInfo_v2(size_t *f, size_t *t) {
	std::lock_guard<std::recursive_mutex> hold(mu);
	*f = memory_max - memory_used;
	*t = memory_max;
	return OK;
}

int cuMemAlloc_v2(uint64_t *out, size_t n) {
	std::lock_guard<std::recursive_mutex> hold(mu);
	if (n == 0) return INVALID_VALUE;
	if (n > memory_max - memory_used) return OUT_OF_MEMORY;

	const size_t page = 4096, room = (n + 255) / 256 * 256, mapped = (room + page - 1) / page * page + page;
	char *map = (char *)mmap(0, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED) return OUT_OF_MEMORY;

	// An unmapped page follows the block, so that an overrun stops the process.
	mprotect(map + mapped - page, page, PROT_NONE);
	*out = (uint64_t)(map + mapped - page - room);

	memory[*out] = {n, map, mapped, -1, 0, 0};
	memory_used += n;
	return OK;
}

int cuMemFree_v2(uint64_t p) {
	std::lock_guard<std::recursive_mutex> hold(mu);
	auto it = memory.find(p);
	if (it == memory.end() || it->second.opened) return INVALID_VALUE;

	memory_used -= it->second.bytes;
	munmap(it->second.map, it->second.mapped);
	if (it->second.fd >= 0) close(it->second.fd);
	memory.erase(it);
	return OK;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *n, uint64_t p) {
	std::lock_guard<std::recursive_mutex> hold(mu);
	if (!is_device_memory(p, 1)) return NOT_FOUND;

	auto it = --memory.upper_bound(p);
	*base = it->first;
	*n = it->second.bytes;
	return OK;
}

// Memory that processes share: a shared block lies in a file without a name, which other processes open through
// /proc. Sharing a block moves it to its file without a change of address. As in CUDA, the process that shares a
// block cannot open it.
struct Handle { char magic[8]; int pid, fd; uint64_t inode, bytes, at; char rest[24]; };
static_assert(sizeof(Handle) == 64, "the size of CUipcMemHandle");
static const char handle_magic[8] = "hostgpu";
static const size_t guard = 4096;

int cuIpcGetMemHandle(Handle *h, uint64_t p) {
	std::lock_guard<std::recursive_mutex> hold(mu);
	auto it = memory.find(p);
	if (it == memory.end() || it->second.opened) return INVALID_VALUE;

	Memory &m = it->second;
	const size_t n = m.mapped - guard;

	// The first share moves the block into a file at the same address.
	if (m.fd < 0) {
		struct stat s;
		const int fd = memfd_create("hostgpu", MFD_CLOEXEC);
		if (fd < 0) return OUT_OF_MEMORY;
		if (ftruncate(fd, n) || pwrite(fd, m.map, n, 0) != (ssize_t)n || fstat(fd, &s) ||
			mmap(m.map, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
			close(fd);
			return OUT_OF_MEMORY;
		}
		m.fd = fd;
		m.inode = s.st_ino;
	}

	memset(h, 0, sizeof *h);
	memcpy(h->magic, handle_magic, sizeof h->magic);
	h->pid = getpid(), h->fd = m.fd, h->inode = m.inode, h->bytes = m.bytes, h->at = it->first - (uint64_t)m.map;
	return OK;
}

int cuIpcOpenMemHandle_v2(uint64_t *out, Handle h, unsigned) {
	std::lock_guard<std::recursive_mutex> hold(mu);
	if (memcmp(h.magic, handle_magic, sizeof h.magic)) return INVALID_VALUE;
	if (h.pid == getpid()) return INVALID_CONTEXT;

	// A block that is open already is counted once more.
	for (auto &m : memory)
		if (m.second.opened && m.second.inode == h.inode) {
			m.second.opened++;
			*out = m.first;
			return OK;
		}

	char name[64];
	snprintf(name, sizeof name, "/proc/%d/fd/%d", h.pid, h.fd);
	const int fd = open(name, O_RDWR | O_CLOEXEC);
	if (fd < 0) return INVALID_HANDLE;

	struct stat s;
	char *map = (char *)MAP_FAILED;
	size_t n = 0;
	if (!fstat(fd, &s) && s.st_ino == h.inode) { // otherwise the descriptor now names another file
		n = s.st_size;
		map = (char *)mmap(0, n + guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	}
	if (map != MAP_FAILED) mmap(map, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	close(fd);
	if (map == MAP_FAILED) return INVALID_HANDLE;

	*out = (uint64_t)map + h.at;
	memory[*out] = {h.bytes, map, n + guard, -1, s.st_ino, 1};
	return OK;
}

int cuIpcCloseMemHandle(uint64_t p) {
	std::lock_guard<std::recursive_mutex> hold(mu);
	auto it = memory.find(p);
	if (it == memory.end() || !it->second.opened) return INVALID_VALUE;
	if (--it->second.opened) return OK;
	munmap(it->second.map, it->second.mapped);
	memory.erase(it);
	return OK;
}

int cuMemHostAlloc(void **p, size_t n, unsigned) { return (*p = aligned_alloc(4096, (n + 4095) / 4096 * 4096)) ? OK : OUT_OF_MEMORY; }
int cuMemFreeHost(void *p) { free(p); return OK; }
int cuMemHostRegister_v2(void *, size_t, unsigned) { return OK; }
int cuMemHostUnregister(void *) { return OK; }
// Commands run at once, so a priority has no effect; one out of range, which a driver would clamp, is refused.
int cuCtxGetStreamPriorityRange(int *lowest, int *highest) { *lowest = 0; *highest = -5; return OK; }
int cuStreamCreateWithPriority(void **s, unsigned, int p) { *s = malloc(1); return p == 0 || p == -5 ? OK : INVALID_VALUE; }
int cuStreamCreate(void **s, unsigned) { *s = malloc(1); return OK; }
int cuStreamDestroy_v2(void *s) { free(s); return OK; }
int cuStreamWaitEvent(void *, void *, unsigned) { return OK; } // earlier records are complete already
int cuEventCreate(void **e, unsigned) { *e = new Event(); return OK; }
int cuEventDestroy_v2(void *e) { delete (Event *)e; return OK; }
int cuEventQuery(void *) { return OK; }
int cuEventRecord(void *e, void *) { return enqueue({3, e, 0, 0, 0, 0, {}, {}, {}}); }

int cuEventElapsedTime(float *ms, void *a, void *b) {
	const timespec &u = ((Event *)a)->at, &v = ((Event *)b)->at;
	*ms = (v.tv_sec - u.tv_sec) * 1e3f + (v.tv_nsec - u.tv_nsec) / 1e6f;
	return OK;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *) {
	return is_device_memory(to, n) ? enqueue({0, (void *)to, from, n, 0, 0, {}, {}, {}}) : INVALID_VALUE;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *) {
	return is_device_memory(from, n) ? enqueue({0, to, (void *)from, n, 0, 0, {}, {}, {}}) : INVALID_VALUE;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *) {
	return is_device_memory(to, n) && is_device_memory(from, n) ? enqueue({0, (void *)to, (void *)from, n, 0, 0, {}, {}, {}}) : INVALID_VALUE;
}
int cuMemsetD8Async(uint64_t to, unsigned char v, size_t n, void *) {
	return is_device_memory(to, n) ? enqueue({1, (void *)to, 0, n, v, 0, {}, {}, {}}) : INVALID_VALUE;
}

int cuModuleLoadDataEx(void **m, const void *image, unsigned, int *, void **) {
	const std::string text((const char *)image);
	if (text.find(".version") == std::string::npos) return INVALID_IMAGE;
	*m = new Module{text};
	return OK;
}
int cuModuleUnload(void *m) { delete (Module *)m; return OK; }

// A kernel must also be in the PTX, so that the committed kernels and the tested ones are the same set.
int cuModuleGetFunction(void **f, void *m, const char *name) {
	if (((Module *)m)->text.find(std::string(".entry ") + name + "(") == std::string::npos) return NOT_FOUND;
	for (const Kernel &k : kernels)
		if (!strcmp(k.name, name)) {
			*f = (void *)&k;
			return OK;
		}
	return NOT_FOUND;
}

int cuFuncGetAttribute(int *v, int, void *) { *v = 0; return OK; }
int cuFuncSetAttribute(void *, int attribute, int v) { return attribute == 8 && v <= HOSTGPU_DYNAMIC_MAX ? OK : INVALID_VALUE; }

// hostgpu_call is for the libraries of the tests (hostlibs.cpp): f runs in order with the other commands.
int hostgpu_call(void (*f)(const void *), const void *params, size_t n) {
	const char *p = (const char *)params;
	return enqueue({4, (void *)f, 0, 0, 0, 0, {}, {}, std::vector<char>(p, p + n)});
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *, void **each, void **extra) {
	const Kernel *k = (const Kernel *)f;
	if (!each && (extra[0] != (void *)1 || extra[2] != (void *)2 || *(size_t *)extra[3] != k->size)) return INVALID_VALUE;
	if (bx != k->threads || by != 1 || bz != 1 || shared > HOSTGPU_DYNAMIC_MAX || gy > 65535 || gz > 65535 || gx * gy * gz == 0) return INVALID_VALUE;

	const char *p = (const char *)(each ? each[0] : extra[1]); // a kernel has one parameter
	return enqueue({2, 0, 0, shared, 0, k, {gx, gy, gz}, {bx, by, bz}, std::vector<char>(p, p + k->size)});
}

// Further functions that gorgonia.org/cu calls (cuda/crosscheck).
int cuCtxSynchronize() { return OK; }
int cuModuleLoadData(void **m, const void *image) { return cuModuleLoadDataEx(m, image, 0, 0, 0); }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { return cuMemcpyHtoDAsync_v2(to, from, n, 0); }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) { return cuMemcpyDtoHAsync_v2(to, from, n, 0); }

int cuStreamBeginCapture_v2(void *, int) { capturing = new Graph(); return OK; }
int cuStreamEndCapture(void *, void **g) { *g = capturing; capturing = 0; return OK; }
int cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long) { *e = new Graph(*(Graph *)g); return OK; }
int cuGraphDestroy(void *g) { delete (Graph *)g; return OK; }
int cuGraphExecDestroy(void *g) { delete (Graph *)g; return OK; }

int cuGraphLaunch(void *g, void *) {
	std::lock_guard<std::recursive_mutex> hold(mu);
	for (const Operation &o : *(Graph *)g) perform(o);
	return OK;
}

} // extern "C"
