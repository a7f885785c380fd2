// The C interface to the CUDA driver that driver_cuda.go calls. gpu.c implements it over libcuda.so.1, which it opens
// at run time, so a binary with the tag cuda also starts on hosts without a driver.
//
// Every int result is 0 or a CUresult. Handles are the driver's pointers as integers, never 0. Any thread may call
// any function: each call makes the device's context current on its thread. A gpu_device must outlive everything
// created from it. Host pointers in commands must stay valid until the command is done. gpu_submit copies commands
// and parameters before it returns.
#ifndef DB_GPU_H
#define DB_GPU_H

#include <stdint.h>

#define DB_GPU_ABI 1

enum { GPU_COPY_IN = 1, GPU_COPY_OUT, GPU_COPY, GPU_FILL, GPU_LAUNCH, GPU_RECORD, GPU_WAIT, GPU_GRAPH, GPU_CALL };

// One command. cuda/submission.go has the same layout and explains a, b and n for each op.
typedef struct {
	uint32_t op, shared;
	uint64_t stream, a, b, n;
	uint32_t grid[3], block[3];
	uint64_t reserved[4];
} gpu_command;

typedef struct {
	char name[256];
	int64_t memory;
	int32_t major, minor, multiprocessors, driver;
} gpu_properties;

// A CUipcMemHandle: identifies a block of device memory to other processes.
typedef struct {
	uint8_t bytes[64];
} gpu_handle;

typedef struct gpu_device gpu_device;

int gpu_abi(void);
int gpu_count(int32_t *count);
int gpu_open(int32_t index, gpu_device **out, gpu_properties *props);
int gpu_close(gpu_device *d);
int gpu_enter(gpu_device *d); // makes the device's context current on this thread

int gpu_memory(gpu_device *d, int64_t *free_bytes, int64_t *total);
int gpu_alloc(gpu_device *d, int64_t bytes, uint64_t *out);
int gpu_free(gpu_device *d, uint64_t p);
int gpu_share(gpu_device *d, uint64_t p, gpu_handle *out);
int gpu_open_shared(gpu_device *d, const gpu_handle *h, uint64_t *out, int64_t *bytes); // bytes: the size of the block from *out on
int gpu_close_shared(gpu_device *d, uint64_t p);
int gpu_alloc_host(gpu_device *d, int64_t bytes, int32_t pinned, void **out);
int gpu_free_host(gpu_device *d, void *p, int32_t pinned);
int gpu_register(gpu_device *d, void *p, int64_t bytes);
int gpu_unregister(gpu_device *d, void *p);

// Streams are kind 0, events kind 1, streams that give way to those of kind 0 are created as kind 2. gpu_query returns 600 while the event's work is not done.
int gpu_create(gpu_device *d, int32_t kind, uint64_t *out);
int gpu_destroy(gpu_device *d, int32_t kind, uint64_t h);
int gpu_query(gpu_device *d, uint64_t event);
int gpu_elapsed(gpu_device *d, uint64_t from, uint64_t to, float *ms);

int gpu_load(gpu_device *d, const void *image, uint64_t *out);
int gpu_unload(gpu_device *d, uint64_t module);
int gpu_kernel(gpu_device *d, uint64_t module, const char *name, uint64_t *out);

// Enqueues commands in order. *done is the number enqueued, also after an error.
int gpu_submit(gpu_device *d, const gpu_command *c, int32_t n, const uint8_t *params, int32_t *done);

// Captures commands into a graph. They must begin and end on stream.
int gpu_capture(gpu_device *d, uint64_t stream, const gpu_command *c, int32_t n, const uint8_t *params, uint64_t *out);
int gpu_free_graph(gpu_device *d, uint64_t graph);

#endif
