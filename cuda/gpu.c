//go:build cuda && linux && cgo

#include "gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

// The driver's functions by their versioned names, so that no CUDA header is needed and no CUDA
// version is tied down. Handles are pointers, CUdevice an int, CUdeviceptr a 64-bit integer.
#define FUNCTIONS(F) \
	F(cuInit, (unsigned)) \
	F(cuDriverGetVersion, (int *)) \
	F(cuDeviceGetCount, (int *)) \
	F(cuDeviceGet, (int *, int)) \
	F(cuDeviceGetName, (char *, int, int)) \
	F(cuDeviceGetAttribute, (int *, int, int)) \
	F(cuDeviceTotalMem_v2, (size_t *, int)) \
	F(cuDevicePrimaryCtxRetain, (void **, int)) \
	F(cuDevicePrimaryCtxRelease_v2, (int)) \
	F(cuCtxSetCurrent, (void *)) \
	F(cuMemGetInfo_v2, (size_t *, size_t *)) \
	F(cuMemAlloc_v2, (uint64_t *, size_t)) \
	F(cuMemFree_v2, (uint64_t)) \
	F(cuMemGetAddressRange_v2, (uint64_t *, size_t *, uint64_t)) \
	F(cuIpcGetMemHandle, (gpu_handle *, uint64_t)) \
	F(cuIpcOpenMemHandle_v2, (uint64_t *, gpu_handle, unsigned)) \
	F(cuIpcCloseMemHandle, (uint64_t)) \
	F(cuMemHostAlloc, (void **, size_t, unsigned)) \
	F(cuMemFreeHost, (void *)) \
	F(cuMemHostRegister_v2, (void *, size_t, unsigned)) \
	F(cuMemHostUnregister, (void *)) \
	F(cuCtxGetStreamPriorityRange, (int *, int *)) \
	F(cuStreamCreateWithPriority, (void **, unsigned, int)) \
	F(cuStreamDestroy_v2, (void *)) \
	F(cuStreamWaitEvent, (void *, void *, unsigned)) \
	F(cuEventCreate, (void **, unsigned)) \
	F(cuEventDestroy_v2, (void *)) \
	F(cuEventQuery, (void *)) \
	F(cuEventRecord, (void *, void *)) \
	F(cuEventElapsedTime, (float *, void *, void *)) \
	F(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, void *)) \
	F(cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, void *)) \
	F(cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, void *)) \
	F(cuMemsetD8Async, (uint64_t, unsigned char, size_t, void *)) \
	F(cuModuleLoadDataEx, (void **, const void *, unsigned, int *, void **)) \
	F(cuModuleUnload, (void *)) \
	F(cuModuleGetFunction, (void **, void *, const char *)) \
	F(cuFuncGetAttribute, (int *, int, void *)) \
	F(cuFuncSetAttribute, (void *, int, int)) \
	F(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
	F(cuStreamBeginCapture_v2, (void *, int)) \
	F(cuStreamEndCapture, (void *, void **)) \
	F(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long)) \
	F(cuGraphLaunch, (void *, void *)) \
	F(cuGraphDestroy, (void *)) \
	F(cuGraphExecDestroy, (void *))

#define DECLARE(name, args) static int (*name) args;
FUNCTIONS(DECLARE)

enum {
	INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NOT_FOUND = 500,
	STREAM_NON_BLOCKING = 1, HOST_PORTABLE = 1, LAZY_PEER_ACCESS = 1, CAPTURE_THREAD_LOCAL = 1,
	ATTRIBUTE_MULTIPROCESSORS = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76,
	ATTRIBUTE_SHARED_MAX = 97, FUNCTION_SHARED = 1, FUNCTION_DYNAMIC_MAX = 8,
};

struct gpu_device {
	int device;
	void *context;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int ready = NO_DEVICE; // the result of loading: written once, read after once

// load_driver fails if the driver lacks one of the functions: a driver that old counts as none.
static void load_driver(void) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) return;
#define LOOKUP(name, args) if (!(name = (int (*) args)dlsym(lib, #name))) return;
	FUNCTIONS(LOOKUP)
	ready = cuInit(0);
}

#define TRY(call) do { int rc_ = (call); if (rc_) return rc_; } while (0)
#define ENTER(d) TRY(cuCtxSetCurrent((d)->context))

int gpu_abi(void) { return DB_GPU_ABI; }

int gpu_count(int32_t *count) {
	pthread_once(&once, load_driver);
	TRY(ready);
	return cuDeviceGetCount(count);
}

int gpu_open(int32_t index, gpu_device **out, gpu_properties *p) {
	pthread_once(&once, load_driver);
	TRY(ready);
	int dev;
	size_t total;

	TRY(cuDeviceGet(&dev, index));
	TRY(cuDeviceGetName(p->name, sizeof p->name, dev));
	TRY(cuDeviceTotalMem_v2(&total, dev));
	p->memory = (int64_t)total;
	TRY(cuDeviceGetAttribute(&p->multiprocessors, ATTRIBUTE_MULTIPROCESSORS, dev));
	TRY(cuDeviceGetAttribute(&p->major, ATTRIBUTE_MAJOR, dev));
	TRY(cuDeviceGetAttribute(&p->minor, ATTRIBUTE_MINOR, dev));
	TRY(cuDriverGetVersion(&p->driver));

	gpu_device *d = calloc(1, sizeof *d);
	if (!d) return OUT_OF_MEMORY;
	d->device = dev;
	int rc = cuDevicePrimaryCtxRetain(&d->context, dev);
	if (rc) {
		free(d);
		return rc;
	}
	*out = d;
	return 0;
}

int gpu_close(gpu_device *d) {
	int rc = cuDevicePrimaryCtxRelease_v2(d->device);
	free(d);
	return rc;
}

int gpu_enter(gpu_device *d) { return cuCtxSetCurrent(d->context); }

int gpu_memory(gpu_device *d, int64_t *free_bytes, int64_t *total) {
	size_t f, t;
	ENTER(d);
	TRY(cuMemGetInfo_v2(&f, &t));
	*free_bytes = (int64_t)f;
	*total = (int64_t)t;
	return 0;
}

int gpu_alloc(gpu_device *d, int64_t bytes, uint64_t *out) {
	ENTER(d);
	return cuMemAlloc_v2(out, (size_t)bytes);
}

int gpu_free(gpu_device *d, uint64_t p) {
	ENTER(d);
	return cuMemFree_v2(p);
}

int gpu_share(gpu_device *d, uint64_t p, gpu_handle *out) {
	ENTER(d);
	return cuIpcGetMemHandle(out, p);
}

int gpu_open_shared(gpu_device *d, const gpu_handle *h, uint64_t *out, int64_t *bytes) {
	uint64_t base;
	size_t size;
	ENTER(d);
	TRY(cuIpcOpenMemHandle_v2(out, *h, LAZY_PEER_ACCESS));
	int rc = cuMemGetAddressRange_v2(&base, &size, *out);
	if (rc) cuIpcCloseMemHandle(*out);
	*bytes = rc ? 0 : (int64_t)(base + size - *out);
	return rc;
}

int gpu_close_shared(gpu_device *d, uint64_t p) {
	ENTER(d);
	return cuIpcCloseMemHandle(p);
}

int gpu_alloc_host(gpu_device *d, int64_t bytes, int32_t pinned, void **out) {
	if (!pinned) return posix_memalign(out, 4096, (size_t)bytes) ? OUT_OF_MEMORY : 0;
	ENTER(d);
	return cuMemHostAlloc(out, (size_t)bytes, HOST_PORTABLE);
}

int gpu_free_host(gpu_device *d, void *p, int32_t pinned) {
	if (!pinned) {
		free(p);
		return 0;
	}
	ENTER(d);
	return cuMemFreeHost(p);
}

int gpu_register(gpu_device *d, void *p, int64_t bytes) {
	ENTER(d);
	return cuMemHostRegister_v2(p, (size_t)bytes, HOST_PORTABLE);
}

int gpu_unregister(gpu_device *d, void *p) {
	ENTER(d);
	return cuMemHostUnregister(p);
}

// The driver's default priority is the lowest, so streams of batches take the highest, and spare streams the lowest.
static int create_stream(void **out, int spare) {
	int lowest, highest;
	TRY(cuCtxGetStreamPriorityRange(&lowest, &highest));
	return cuStreamCreateWithPriority(out, STREAM_NON_BLOCKING, spare ? lowest : highest);
}

int gpu_create(gpu_device *d, int32_t kind, uint64_t *out) {
	ENTER(d);
	if (kind == 1) return cuEventCreate((void **)out, 0);
	return create_stream((void **)out, kind == 2);
}

int gpu_destroy(gpu_device *d, int32_t kind, uint64_t h) {
	ENTER(d);
	return kind == 0 ? cuStreamDestroy_v2((void *)h) : cuEventDestroy_v2((void *)h);
}

int gpu_query(gpu_device *d, uint64_t event) {
	ENTER(d);
	return cuEventQuery((void *)event);
}

int gpu_elapsed(gpu_device *d, uint64_t from, uint64_t to, float *ms) {
	ENTER(d);
	return cuEventElapsedTime(ms, (void *)from, (void *)to);
}

int gpu_load(gpu_device *d, const void *image, uint64_t *out) {
	ENTER(d);
	return cuModuleLoadDataEx((void **)out, image, 0, 0, 0);
}

int gpu_unload(gpu_device *d, uint64_t module) {
	ENTER(d);
	return cuModuleUnload((void *)module);
}

// The driver gives a block more than 48 KiB of shared memory only if the kernel allows it, so allow all of it.
int gpu_kernel(gpu_device *d, uint64_t module, const char *name, uint64_t *out) {
	ENTER(d);
	TRY(cuModuleGetFunction((void **)out, (void *)module, name));

	int most, own;
	TRY(cuDeviceGetAttribute(&most, ATTRIBUTE_SHARED_MAX, d->device));
	TRY(cuFuncGetAttribute(&own, FUNCTION_SHARED, (void *)*out));
	return cuFuncSetAttribute((void *)*out, FUNCTION_DYNAMIC_MAX, most - own);
}

// call_library runs a library's call: see library.h.
static int call_library(const gpu_command *c, const uint8_t *params, void *stream) {
	return ((int (*)(const void *, void *))c->a)(params + c->b, stream);
}

// launch_kernel passes one struct by value, so the parameter buffer is the struct's bytes.
static int launch_kernel(const gpu_command *c, const uint8_t *params, void *stream) {
	size_t size = c->n;
	void *extra[] = {(void *)1, (void *)(params + c->b), (void *)2, &size, (void *)0};
	return cuLaunchKernel((void *)c->a, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2],
		c->shared, stream, 0, extra);
}

static int enqueue_command(const gpu_command *c, const uint8_t *params) {
	void *stream = (void *)c->stream;
	switch (c->op) {
	case GPU_COPY_IN: return cuMemcpyHtoDAsync_v2(c->a, (const void *)c->b, c->n, stream);
	case GPU_COPY_OUT: return cuMemcpyDtoHAsync_v2((void *)c->a, c->b, c->n, stream);
	case GPU_COPY: return cuMemcpyDtoDAsync_v2(c->a, c->b, c->n, stream);
	case GPU_FILL: return cuMemsetD8Async(c->a, (unsigned char)c->shared, c->n, stream);
	case GPU_LAUNCH: return launch_kernel(c, params, stream);
	case GPU_RECORD: return cuEventRecord((void *)c->a, stream);
	case GPU_WAIT: return cuStreamWaitEvent(stream, (void *)c->a, 0);
	case GPU_CALL: return call_library(c, params, stream);
	case GPU_GRAPH: return cuGraphLaunch((void *)c->a, stream);
	}
	return INVALID_VALUE;
}

int gpu_submit(gpu_device *d, const gpu_command *c, int32_t n, const uint8_t *params, int32_t *done) {
	*done = 0;
	ENTER(d);
	for (; *done < n; ++*done) TRY(enqueue_command(c + *done, params));
	return 0;
}

int gpu_capture(gpu_device *d, uint64_t stream, const gpu_command *c, int32_t n, const uint8_t *params, uint64_t *out) {
	void *graph = 0, *exec = 0;
	int32_t done;
	ENTER(d);
	TRY(cuStreamBeginCapture_v2((void *)stream, CAPTURE_THREAD_LOCAL));

	int rc = gpu_submit(d, c, n, params, &done);

	// End the capture also after an error.
	int end = cuStreamEndCapture((void *)stream, &graph);
	if (!rc) rc = end;

	if (!rc) rc = cuGraphInstantiateWithFlags(&exec, graph, 0);
	if (graph) cuGraphDestroy(graph);
	*out = (uint64_t)exec;
	return rc;
}

int gpu_free_graph(gpu_device *d, uint64_t graph) {
	ENTER(d);
	return cuGraphExecDestroy((void *)graph);
}
