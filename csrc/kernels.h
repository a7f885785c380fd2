// The structs that kernels take by value. cuda/kernels/params.go has the same layouts and explains the fields.
// Pointers to void are to the module's real numbers (see kernels.cu) unless a kernel says otherwise. The host driver
// (hostgpu.cpp) refuses a launch whose parameters have another size.
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
enum { TYPE_FLOAT32, TYPE_INT32, TYPE_INT64, TYPE_BOOL, TYPE_FLOAT16, TYPE_UINT8, TYPE_BFLOAT16 };

enum { RANK = 6, THREADS = 256, TILE_M = 64, TILE_N = 64, TILE_K = 16, REDUCE_COLUMNS = 32, ATTEND = 32, ATTEND_SIZE = 128 };

typedef struct {
	const void *x, *w, *bias, *residual;
	void *y;
	int32_t n, c, h, wd, k, oh, ow, r, s, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups, act;
	float a, b;
	int32_t nhwc;
} conv_params;

typedef struct {
	const void *pa, *pb, *bias, *residual;
	void *pc;
	int64_t a1, a2, b1_stride, b2_stride;
	int32_t am, ak, bk, bn, bias_m, bias_n, m, n, k, b1, b2, act;
	float alpha, beta, a, b;
} gemm_params;

typedef struct {
	const void *x;
	void *y;
	int32_t planes, h, wd, oh, ow, r, s, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, mode, channels, nhwc;
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
	const void *p, *q;
	void *y;
	int64_t count;
	int32_t dims[RANK], cs[RANK], ps[RANK], qs[RANK];
} where_params;

typedef struct {
	const void *x;
	void *y;
	int64_t count;
	int32_t act;
	float a, b;
	int32_t unused;
} unary_params;

typedef struct {
	const void *x, *scale, *shift;
	void *y;
	int64_t count;
	int32_t channels, inner, act;
	float a, b;
	int32_t unused;
} affine_params;

typedef struct {
	const void *x;
	void *y;
	int32_t outer, len, inner, op;
} rows_params;

typedef struct {
	const void *x, *gamma, *beta, *residual;
	void *y;
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
	int32_t dims[RANK], xs[RANK], from, to;
} cast_params;

typedef struct {
	const void *q, *k, *v, *mask;
	void *y;
	int64_t q_batch, k_batch, v_batch, mask_batch;
	int32_t q_row, k_row, v_row, q_head, k_head, v_head, mask_head, mask_row, mask_col;
	int32_t batch, heads, rows, cols, size;
	float scale;
	int32_t unused;
} attention_params;

// The struct of the kernels on tensor cores: Y = act(alpha·X·W + bias + residual). Row m of X holds the elements that
// a window over image m / (oh·ow) covers. Images are [N,H,W,C] and weights [K,R,S,C]; a matrix product has windows of
// one element. With several splits of the depth, each split writes its sums to partial, [splits, M, K] floats. The
// last split to end, which the counters identify, adds them up. Counters are zero before and after a launch.
typedef struct {
	const void *x, *w, *bias, *residual;
	void *y;
	float *partial;
	uint32_t *counters;
	int32_t m, c, h, wd, k, oh, ow, r, s, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, act, splits;
	float alpha, a, b;
} tensor_params;

#endif
