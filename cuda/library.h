// Matrix products by cuBLASLt and convolutions by cuDNN. The libraries are opened at run time, so a binary starts
// without them. Results are 0 or the library's status.
//
// A gpu_call is one shape with one algorithm, created when a model is loaded. It runs as a command of a submission
// (GPU_CALL): library_run gets the stream and the parameters, which are the operands, bias, residual, result,
// workspace and the call. A capture therefore includes it, like a launch. Only the submitting goroutine may create,
// run and free the calls of a library.
#ifndef DB_LIBRARY_H
#define DB_LIBRARY_H

#include "gpu.h"

enum { LIBRARY_FLOAT, LIBRARY_HALF, LIBRARY_BFLOAT };
enum { LIBRARY_NONE, LIBRARY_RELU, LIBRARY_GELU };

// D[i,m,n] = act(alpha·A[i]·B[i] + bias[n] + residual[i,m,n]), row-major. Strides are in elements.
typedef struct {
	int32_t type, act, bias, residual;
	int32_t m, n, k, batch, trans_a, trans_b;
	int64_t lda, ldb, stride_a, stride_b;
	float alpha;
	int32_t unused;
} gpu_product;

// A convolution, with the fields of conv_params in csrc/kernels.h.
typedef struct {
	int32_t type, act, bias, residual, nhwc;
	int32_t n, c, h, w, k, oh, ow, r, s, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups;
} gpu_convolution;

typedef struct {
	uint64_t a, b, bias, residual, d, workspace, call;
} gpu_operands;

typedef struct {
	uint64_t call;
	int64_t workspace;
	int32_t algorithm, unused;
} gpu_candidate;

typedef struct gpu_library gpu_library;

// library_open searches folders, a list separated by colons, then the dynamic linker's path. names receives what it
// found.
int library_open(gpu_device *d, const char *folders, gpu_library **out, char *names, int32_t size);
void library_close(gpu_library *l);
int library_product(gpu_library *l, const gpu_product *p, int64_t workspace_max, gpu_candidate *out, int32_t max, int32_t *count);
int library_convolution(gpu_library *l, const gpu_convolution *c, int64_t workspace_max, gpu_candidate *out, int32_t max, int32_t *count);
void library_free(uint64_t call);
int library_run(const void *operands, void *stream);

#endif
