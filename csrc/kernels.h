// The structs that kernels take, by value. cuda/kernels/params.go has the same layouts and says what the
// fields mean; the host driver (hostgpu.cpp) refuses a launch whose parameters have another size.
#ifndef DB_KERNELS_H
#define DB_KERNELS_H

#include <stdint.h>

enum {
	ACT_NONE, ACT_RELU, ACT_CLIP, ACT_LEAKY_RELU, ACT_SIGMOID, ACT_TANH, ACT_HARD_SIGMOID, ACT_HARD_SWISH, ACT_SWISH,
	ACT_GELU, ACT_GELU_TANH, ACT_ERF, ACT_EXP, ACT_LOG, ACT_SQRT, ACT_NEG, ACT_ABS, ACT_RECIPROCAL, ACT_FLOOR, ACT_CEIL,
	ACT_ELU, ACT_SOFTPLUS, ACT_SQUARE,
};
enum { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_POW, OP_MIN, OP_MAX };
enum { REDUCE_SUM, REDUCE_MEAN, REDUCE_MAX, REDUCE_MIN, REDUCE_L2 };
enum { POOL_MAX, POOL_AVERAGE, POOL_AVERAGE_PADDING };
enum { TYPE_FLOAT32, TYPE_INT32, TYPE_INT64, TYPE_BOOL, TYPE_FLOAT16, TYPE_UINT8 };

enum { RANK = 6, THREADS = 256, TILE_M = 64, TILE_N = 64, TILE_K = 16 };

typedef struct {
	const float *x, *w, *bias, *residual;
	float *y;
	int32_t n, c, h, wd, k, oh, ow, r, s, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups, act;
	float a, b;
	int32_t unused;
} conv_params;

typedef struct {
	const float *pa, *pb, *bias, *residual;
	float *pc;
	int64_t a1, a2, b1_stride, b2_stride;
	int32_t am, ak, bk, bn, bias_m, bias_n, m, n, k, b1, b2, act;
	float alpha, beta, a, b;
} gemm_params;

typedef struct {
	const float *x;
	float *y;
	int32_t planes, h, wd, oh, ow, r, s, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, mode, unused[2];
} pool_params;

typedef struct {
	const void *p, *q;
	void *y;
	int64_t count;
	int32_t dims[RANK], ps[RANK], qs[RANK], op, act;
	float a, b;
	int32_t unused[2];
} binary_params;

typedef struct {
	const uint8_t *cond;
	const float *p, *q;
	float *y;
	int64_t count;
	int32_t dims[RANK], cs[RANK], ps[RANK], qs[RANK];
} where_params;

typedef struct {
	const float *x;
	float *y;
	int64_t count;
	int32_t act;
	float a, b;
	int32_t unused;
} unary_params;

typedef struct {
	const float *x, *scale, *shift;
	float *y;
	int64_t count;
	int32_t channels, inner, act;
	float a, b;
	int32_t unused;
} affine_params;

typedef struct {
	const float *x;
	void *y;
	int32_t outer, len, inner, op;
} rows_params;

typedef struct {
	const float *x, *gamma, *beta, *residual;
	float *y;
	int32_t rows, len;
	float epsilon;
	int32_t unused;
} layernorm_params;

typedef struct {
	const void *x;
	void *y;
	int64_t count;
	int32_t dims[RANK], xs[RANK], ys[RANK], size, unused;
} copy_params;

typedef struct {
	const void *x, *index;
	void *y;
	int32_t outer, len, inner, picks, size, index_size;
} gather_params;

typedef struct {
	const void *x;
	void *y;
	int64_t count;
	int32_t from, to;
} cast_params;

#endif
