// The device code of the layer executor: one kernel for each struct of kernels.h. nvcc compiles this file to PTX once
// for each type of real numbers (make ptx): for float as it is, and with REAL_F16 or REAL_BF16, which add the name of
// the type to each kernel's name. Arithmetic is always in float.
//
// g++ compiles the same source for the host driver of the tests (hostgpu.cpp), where the threads of a block take
// turns. Every kernel loops over the work that its grid does not cover, so any grid gives the right result. NaN
// passes through every activation and comparison.
#include "kernels.h"
#include "real.h"

__device__ static float activate(int act, float x, float a, float b) {
	switch (act) {
	case ACT_RELU: return x < 0 ? 0 : x;
	case ACT_CLIP: return x < a ? a : x > b ? b : x;
	case ACT_LEAKY_RELU: return x < 0 ? a * x : x;
	case ACT_SIGMOID: return 1 / (1 + expf(-x));
	case ACT_TANH: return tanhf(x);
	case ACT_HARD_SIGMOID: x = a * x + b; return x < 0 ? 0 : x > 1 ? 1 : x;
	case ACT_HARD_SWISH: a = x / 6 + 0.5f; return x * (a < 0 ? 0 : a > 1 ? 1 : a);
	case ACT_SWISH: return x / (1 + expf(-x));
	case ACT_GELU: return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
	case ACT_GELU_TANH: return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
	case ACT_ERF: return erff(x);
	case ACT_EXP: return expf(x);
	case ACT_LOG: return logf(x);
	case ACT_SQRT: return sqrtf(x);
	case ACT_NEG: return -x;
	case ACT_ABS: return fabsf(x);
	case ACT_RECIPROCAL: return 1 / x;
	case ACT_FLOOR: return floorf(x);
	case ACT_CEIL: return ceilf(x);
	case ACT_ELU: return x < 0 ? a * expm1f(x) : x;
	case ACT_SOFTPLUS: return log1pf(expf(-fabsf(x))) + (x < 0 ? 0 : x);
	case ACT_SQUARE: return x * x;
	}
	return x;
}

#define ELEMENTS(i, count) \
	for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (count); i += (int64_t)gridDim.x * blockDim.x)

// Products: a block computes TILE_M by TILE_N outputs and each thread 4 by 4 of them, in steps of TILE_K along the
// depth.

// tile adds the product of two loaders to acc. along_k means that B's neighbours in memory lie along k, so
// neighbouring threads load along k.
template <class LoadA, class LoadB>
__device__ static void tile(int depth, bool along_k, LoadA load_a, LoadB load_b, float acc[4][4]) {
	__shared__ float sa[TILE_K][TILE_M + 4];
	__shared__ float sb[TILE_K][TILE_N + 4];
	const int t = threadIdx.x, tx = t % 16, ty = t / 16;

	for (int k0 = 0; k0 < depth; k0 += TILE_K) {
		// Load one step of both operands to shared memory.
		for (int i = 0; i < 4; i++) {
			int k = t % 16, m = t / 16 + 16 * i;
			sa[k][m] = k0 + k < depth ? load_a(m, k0 + k) : 0;
			int kb = along_k ? t % 16 : t / 64 + 4 * i, n = along_k ? t / 16 + 16 * i : t % 64;
			sb[kb][n] = k0 + kb < depth ? load_b(k0 + kb, n) : 0;
		}
		__syncthreads();

#pragma unroll
		for (int k = 0; k < TILE_K; k++) {
			float fa[4], fb[4];

#pragma unroll
			for (int i = 0; i < 4; i++) {
				fa[i] = sa[k][ty * 4 + i];
				fb[i] = sb[k][tx * 4 + i];
			}

#pragma unroll
			for (int i = 0; i < 4; i++)
#pragma unroll
				for (int j = 0; j < 4; j++) acc[i][j] += fa[i] * fb[j];
		}

		// All threads must have read this step before the next one is loaded.
		__syncthreads();
	}
}

KERNEL(gemm)(gemm_params p) {
	const int m0 = blockIdx.y * TILE_M, n0 = blockIdx.x * TILE_N;
	const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
	const real *bias = (const real *)p.bias, *residual = (const real *)p.residual;

	for (int z = blockIdx.z; z < p.b1 * p.b2; z += gridDim.z) {
		const int i1 = z / p.b2, i2 = z % p.b2;
		const real *a = (const real *)p.pa + i1 * p.a1 + i2 * p.a2, *b = (const real *)p.pb + i1 * p.b1_stride + i2 * p.b2_stride;
		float acc[4][4] = {};

		tile(p.k, p.bk == 1 && p.bn != 1,
			[&](int m, int k) { return m0 + m < p.m ? up(a[(int64_t)(m0 + m) * p.am + (int64_t)k * p.ak]) : 0; },
			[&](int k, int n) { return n0 + n < p.n ? up(b[(int64_t)k * p.bk + (int64_t)(n0 + n) * p.bn]) : 0; }, acc);

		for (int i = 0; i < 4; i++) {
			for (int j = 0; j < 4; j++) {
				const int m = m0 + ty * 4 + i, n = n0 + tx * 4 + j;
				if (m >= p.m || n >= p.n) continue;

				const int64_t at = ((int64_t)z * p.m + m) * p.n + n;
				float v = p.alpha * acc[i][j];
				if (bias) v += p.beta * up(bias[(int64_t)m * p.bias_m + (int64_t)n * p.bias_n]);
				if (residual) v += up(residual[at]);
				((real *)p.pc)[at] = down(activate(p.act, v, p.a, p.b));
			}
		}
	}
}

// pixel returns the index of an element of images [N,C,H,W], or [N,H,W,C] if nhwc is set. Weights are [K,C,R,S] or
// [K,R,S,C].
__device__ static int64_t pixel(int nhwc, int64_t image, int c, int y, int x, int channels, int h, int w) {
	return nhwc ? ((image * h + y) * w + x) * channels + c : ((image * channels + c) * h + y) * w + x;
}

// conv is computed as a matrix product: rows are output channels of a group, columns are output pixels of an image,
// and the depth covers the group's input channels and the window.
KERNEL(conv)(conv_params p) {
	const int cg = p.c / p.groups, kg = p.k / p.groups, window = p.r * p.s, depth = cg * window, pixels = p.oh * p.ow;
	const int m0 = blockIdx.y * TILE_M, n0 = blockIdx.x * TILE_N;
	const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
	const real *x = (const real *)p.x, *bias = (const real *)p.bias, *residual = (const real *)p.residual;

	for (int z = blockIdx.z; z < p.n * p.groups; z += gridDim.z) {
		const int image = z / p.groups, group = z % p.groups;
		const real *w = (const real *)p.w + (int64_t)group * kg * depth;
		float acc[4][4] = {};

		tile(depth, p.nhwc,
			[&](int m, int k) { return m0 + m < kg ? up(w[(int64_t)(m0 + m) * depth + k]) : 0; },
			[&](int k, int n) {
				if (n0 + n >= pixels) return 0.0f;

				const int c = p.nhwc ? k % cg : k / window, rs = p.nhwc ? k / cg : k % window, r = rs / p.s, s = rs % p.s;
				const int yi = (n0 + n) / p.ow * p.stride_h - p.pad_h + r * p.dil_h;
				const int xi = (n0 + n) % p.ow * p.stride_w - p.pad_w + s * p.dil_w;
				if (yi < 0 || yi >= p.h || xi < 0 || xi >= p.wd) return 0.0f;

				return up(x[pixel(p.nhwc, image, group * cg + c, yi, xi, p.c, p.h, p.wd)]);
			}, acc);

		for (int i = 0; i < 4; i++) {
			for (int j = 0; j < 4; j++) {
				const int m = m0 + ty * 4 + i, n = n0 + tx * 4 + j, k = group * kg + m;
				if (m >= kg || n >= pixels) continue;

				const int64_t at = pixel(p.nhwc, image, k, 0, n, p.k, 1, pixels);
				float v = acc[i][j];
				if (bias) v += up(bias[k]);
				if (residual) v += up(residual[at]);
				((real *)p.y)[at] = down(activate(p.act, v, p.a, p.b));
			}
		}
	}
}

// spot is a position in an image.
struct spot { int64_t image; int c, y, x; };

// spot_of returns the spot of a dense index in either layout.
__device__ static spot spot_of(int nhwc, uint32_t i, uint32_t channels, uint32_t h, uint32_t w) {
	spot s;
	if (nhwc) s.c = i % channels, i /= channels;
	s.x = i % w, i /= w;
	s.y = i % h, i /= h;
	if (!nhwc) s.c = i % channels, i /= channels;
	s.image = i;
	return s;
}

// conv_depthwise has one input channel per group. Threads share no operands, so each computes one output.
KERNEL(conv_depthwise)(conv_params p) {
	const real *x = (const real *)p.x, *w = (const real *)p.w;
	ELEMENTS(i, (int64_t)p.n * p.k * p.oh * p.ow) {
		const spot o = spot_of(p.nhwc, i, p.k, p.oh, p.ow);
		float v = p.bias ? up(((const real *)p.bias)[o.c]) : 0;

		for (int r = 0; r < p.r; r++) {
			const int yi = o.y * p.stride_h - p.pad_h + r * p.dil_h;
			if (yi < 0 || yi >= p.h) continue;
			for (int s = 0; s < p.s; s++) {
				const int xi = o.x * p.stride_w - p.pad_w + s * p.dil_w;
				if (xi < 0 || xi >= p.wd) continue;

				v += up(w[(o.c * p.r + r) * p.s + s]) * up(x[pixel(p.nhwc, o.image, o.c, yi, xi, p.c, p.h, p.wd)]);
			}
		}

		if (p.residual) v += up(((const real *)p.residual)[i]);
		((real *)p.y)[i] = down(activate(p.act, v, p.a, p.b));
	}
}

KERNEL(pool)(pool_params p) {
	const real *x = (const real *)p.x;
	ELEMENTS(i, (int64_t)p.planes * p.oh * p.ow) {
		const spot o = spot_of(p.nhwc, i, p.channels, p.oh, p.ow);
		const int top = o.y * p.stride_h - p.pad_h, left = o.x * p.stride_w - p.pad_w;
		float best = -INFINITY, sum = 0;
		int n = 0;

		for (int r = 0; r < p.r; r++) {
			for (int s = 0; s < p.s; s++) {
				const int yi = top + r * p.dil_h, xi = left + s * p.dil_w;
				if (yi < 0 || yi >= p.h || xi < 0 || xi >= p.wd) continue;
				const float v = up(x[pixel(p.nhwc, o.image, o.c, yi, xi, p.channels, p.h, p.wd)]);

				if (v > best || v != v) best = v;
				sum += v;
				n++;
			}
		}

		((real *)p.y)[i] = down(p.mode == POOL_MAX ? best : sum / (p.mode == POOL_AVERAGE ? (n > 0 ? n : 1) : p.r * p.s));
	}
}

// place turns a dense index into an offset with strides.
__device__ static int64_t place(uint32_t i, const int32_t *dims, const int32_t *strides) {
	int64_t off = 0;
#pragma unroll
	for (int d = RANK - 1; d >= 0; d--) {
		const uint32_t n = dims[d];
		if (n == 1) continue; // the same for all threads, and cheaper than the division

		const uint32_t q = i / n;
		off += (int64_t)(i - q * n) * strides[d];
		i = q;
	}
	return off;
}

KERNEL(binary)(binary_params p) {
	const real *a = (const real *)p.p, *b = (const real *)p.q;
	ELEMENTS(i, p.count) {
		const float u = up(a[place(i, p.dims, p.ps)]), v = up(b[place(i, p.dims, p.qs)]);
		float y = u;
		switch (p.op) {
		case OP_ADD: y = u + v; break;
		case OP_SUB: y = u - v; break;
		case OP_MUL: y = u * v; break;
		case OP_DIV: y = u / v; break;
		case OP_POW: y = powf(u, v); break;
		case OP_MIN: y = v < u || v != v ? v : u; break;
		case OP_MAX: y = v > u || v != v ? v : u; break;
		}
		((real *)p.y)[i] = down(activate(p.act, y, p.a, p.b));
	}
}

KERNEL(where)(where_params p) {
	const real *a = (const real *)p.p, *b = (const real *)p.q;
	ELEMENTS(i, p.count) {
		((real *)p.y)[i] = ((const uint8_t *)p.cond)[place(i, p.dims, p.cs)] ? a[place(i, p.dims, p.ps)] : b[place(i, p.dims, p.qs)];
	}
}

KERNEL(unary)(unary_params p) {
	ELEMENTS(i, p.count) ((real *)p.y)[i] = down(activate(p.act, up(((const real *)p.x)[i]), p.a, p.b));
}

KERNEL(affine)(affine_params p) {
	const real *scale = (const real *)p.scale, *shift = (const real *)p.shift;
	ELEMENTS(i, p.count) {
		const int c = (uint32_t)i / p.inner % p.channels;
		((real *)p.y)[i] = down(activate(p.act, up(((const real *)p.x)[i]) * up(scale[c]) + up(shift[c]), p.a, p.b));
	}
}

// Rows: a block computes one row, which its threads share. total leaves its result in every thread.

__device__ static float combine(int op, float u, float v) {
	switch (op) {
	case REDUCE_MAX: return v > u || v != v ? v : u;
	case REDUCE_MIN: return v < u || v != v ? v : u;
	}
	return u + v;
}

// total combines the values of all threads of the block.
__device__ static float total(int op, float v) {
	__shared__ float part[THREADS / 32];
	for (int mask = 16; mask > 0; mask /= 2) v = combine(op, v, WARP_XOR(v, mask));

	if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
	__syncthreads();

	v = part[0];
	for (int i = 1; i < THREADS / 32; i++) v = combine(op, v, part[i]);
	__syncthreads(); // part may be reused at once
	return v;
}

KERNEL(softmax)(rows_params p) {
	const int64_t rows = (int64_t)p.outer * p.inner;
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		const int64_t start = row / p.inner * p.len * p.inner + row % p.inner;
		const real *x = (const real *)p.x + start;
		real *y = (real *)p.y + start;
		float top = -INFINITY, sum = 0;

		// Subtract the largest value, because exponentials of large values would overflow.
		for (int i = threadIdx.x; i < p.len; i += THREADS) top = combine(REDUCE_MAX, top, up(x[(int64_t)i * p.inner]));
		top = total(REDUCE_MAX, top);

		for (int i = threadIdx.x; i < p.len; i += THREADS) sum += expf(up(x[(int64_t)i * p.inner]) - top);
		sum = total(REDUCE_SUM, sum);

		for (int i = threadIdx.x; i < p.len; i += THREADS) {
			const float v = up(x[(int64_t)i * p.inner]) - top;
			y[(int64_t)i * p.inner] = down(p.op ? v - logf(sum) : expf(v) / sum);
		}
	}
}

__device__ static float reduced(const rows_params &p, float v) {
	return p.op == REDUCE_MEAN ? v / p.len : p.op == REDUCE_L2 ? sqrtf(v) : v;
}

// reduce uses a block for each row if a row's elements are neighbours. If rows lie side by side (at least
// REDUCE_COLUMNS), each thread reduces a row, so that neighbouring threads read neighbouring elements.
KERNEL(reduce)(rows_params p) {
	const float first = p.op == REDUCE_MAX ? -INFINITY : p.op == REDUCE_MIN ? INFINITY : 0;
	const real *px = (const real *)p.x;

	if (p.inner >= REDUCE_COLUMNS) {
		ELEMENTS(row, (int64_t)p.outer * p.inner) {
			const real *x = px + row / p.inner * p.len * p.inner + row % p.inner;
			float v = first;
#pragma unroll 8
			for (int i = 0; i < p.len; i++) {
				const float e = up(x[(int64_t)i * p.inner]);
				v = combine(p.op, v, p.op == REDUCE_L2 ? e * e : e);
			}

			((real *)p.y)[row] = down(reduced(p, v));
		}
		return;
	}

	const int64_t rows = (int64_t)p.outer * p.inner;
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		const real *x = px + row / p.inner * p.len * p.inner + row % p.inner;
		float v = first;

		for (int i = threadIdx.x; i < p.len; i += THREADS) {
			const float e = up(x[(int64_t)i * p.inner]);
			v = combine(p.op, v, p.op == REDUCE_L2 ? e * e : e);
		}

		v = total(p.op, v);
		if (threadIdx.x == 0) ((real *)p.y)[row] = down(reduced(p, v));
	}
}

KERNEL(argmax)(rows_params p) {
	__shared__ float best[THREADS];
	__shared__ int where_best[THREADS];
	const int64_t rows = (int64_t)p.outer * p.inner;
	const int t = threadIdx.x;
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		const real *x = (const real *)p.x + row / p.inner * p.len * p.inner + row % p.inner;
		float v = -INFINITY;
		int at = p.len;

		for (int i = t; i < p.len; i += THREADS) {
			const float e = up(x[(int64_t)i * p.inner]);
			if (at == p.len || e > v) v = e, at = i;
		}

		// Keep the better of two halves until one thread is left. Of equal values the first index wins.
		best[t] = v;
		where_best[t] = at;
		__syncthreads();
		for (int half = THREADS / 2; half > 0; half /= 2) {
			if (t < half) {
				const float u = best[t + half];
				const int i = where_best[t + half];

				if (i < p.len && (where_best[t] == p.len || u > best[t] || (u == best[t] && i < where_best[t]))) {
					best[t] = u;
					where_best[t] = i;
				}
			}
			__syncthreads();
		}
		if (t == 0) ((int64_t *)p.y)[row] = where_best[0];
		__syncthreads();
	}
}

// layernorm keeps rows of up to NORM_KEPT elements in registers, so that each element is read once.
enum { NORM_EACH = 4, NORM_KEPT = NORM_EACH * THREADS };

KERNEL(layernorm)(layernorm_params p) {
	const real *gamma = (const real *)p.gamma, *beta = (const real *)p.beta;
	for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
		const real *x = (const real *)p.x + row * p.len, *res = p.residual ? (const real *)p.residual + row * p.len : 0;
		real *y = (real *)p.y + row * p.len;
		auto at = [&](int i) { return up(x[i]) + (res ? up(res[i]) : 0); };
		auto put = [&](int i, float v, float scale) {
			v *= scale * up(gamma[i]);
			y[i] = down(beta ? v + up(beta[i]) : v);
		};

		float sum = 0, square = 0;

		if (p.len <= NORM_KEPT) {
			float v[NORM_EACH];

#pragma unroll
			for (int j = 0; j < NORM_EACH; j++) {
				const int i = threadIdx.x + j * THREADS;
				v[j] = i < p.len ? at(i) : 0;
				sum += v[j];
			}

			const float mean = total(REDUCE_SUM, sum) / p.len;
#pragma unroll
			for (int j = 0; j < NORM_EACH; j++) {
				v[j] -= mean;
				if ((int)threadIdx.x + j * THREADS < p.len) square += v[j] * v[j];
			}

			const float scale = 1 / sqrtf(total(REDUCE_SUM, square) / p.len + p.epsilon);
#pragma unroll
			for (int j = 0; j < NORM_EACH; j++) {
				const int i = threadIdx.x + j * THREADS;
				if (i < p.len) put(i, v[j], scale);
			}
			continue;
		}

		for (int i = threadIdx.x; i < p.len; i += THREADS) sum += at(i);
		const float mean = total(REDUCE_SUM, sum) / p.len;
		for (int i = threadIdx.x; i < p.len; i += THREADS) {
			const float v = at(i) - mean;
			square += v * v;
		}

		const float scale = 1 / sqrtf(total(REDUCE_SUM, square) / p.len + p.epsilon);
		for (int i = threadIdx.x; i < p.len; i += THREADS) put(i, at(i) - mean, scale);
	}
}

// attention: a block computes 32·EACH queries of a head and reads the keys in steps of ATTEND. It keeps the largest
// score and the sum of the weights so far, as in FlashAttention (Dao et al. 2022, algorithm 1), so scores never reach
// device memory. Eight neighbouring threads share a query, and each thread has EACH queries. Shared memory is read
// four numbers at a time. Rows are PITCH apart, so that eight rows lie in different banks.
struct alignas(16) quad { float v[4]; };

// fetch copies rows of a head to shared memory, times scale; rows and elements beyond the last are zeros.
template <int SIZE, int PITCH> __device__ static void fetch(float *to, const real *from, int64_t pitch, int rows, int left, int size, float scale) {
	for (int i = threadIdx.x; i < rows * SIZE; i += THREADS) {
		const int r = i / SIZE, c = i % SIZE;
		to[r * PITCH + c] = r < left && c < size ? up(from[r * pitch + c]) * scale : 0;
	}
}

template <int SIZE, int EACH> __device__ static void attend(const attention_params &p, float *room) {
	const int ROWS = 32 * EACH, PITCH = SIZE + 4, WEIGHTS = ATTEND + 4;
	float *sq = room, *skv = sq + ROWS * PITCH, *ss = skv + ATTEND * PITCH;
	const int t = threadIdx.x, ty = t / 8, tx = t % 8, tiles = (p.rows + ROWS - 1) / ROWS;

	for (int64_t block = blockIdx.x; block < (int64_t)p.batch * p.heads * tiles; block += gridDim.x) {
		const int row0 = block % tiles * ROWS, head = block / tiles % p.heads, image = block / tiles / p.heads;
		const real *k = (const real *)p.k + image * p.k_batch + (int64_t)head * p.k_head;
		const real *v = (const real *)p.v + image * p.v_batch + (int64_t)head * p.v_head;
		const real *mask = p.mask ? (const real *)p.mask + image * p.mask_batch + (int64_t)head * p.mask_head : 0;

		float acc[EACH][SIZE / 8] = {}, top[EACH], sum[EACH] = {}, scale[EACH];
		for (int e = 0; e < EACH; e++) top[e] = -INFINITY;
		fetch<SIZE, PITCH>(sq, (const real *)p.q + image * p.q_batch + (int64_t)head * p.q_head + (int64_t)row0 * p.q_row, p.q_row, ROWS, p.rows - row0, p.size, p.scale);

		for (int col0 = 0; col0 < p.cols; col0 += ATTEND) {
			fetch<SIZE, PITCH>(skv, k + (int64_t)col0 * p.k_row, p.k_row, ATTEND, p.cols - col0, p.size, 1);
			__syncthreads();

			// Scores: queries times keys.
			float s[EACH][4] = {};
			for (int c = 0; c < p.size; c += 4) {
				quad kq[4];

#pragma unroll
				for (int j = 0; j < 4; j++) kq[j] = *(const quad *)&skv[(tx + 8 * j) * PITCH + c];

#pragma unroll
				for (int e = 0; e < EACH; e++) {
					const quad q = *(const quad *)&sq[(ty + 32 * e) * PITCH + c];
#pragma unroll
					for (int j = 0; j < 4; j++)
#pragma unroll
						for (int i = 0; i < 4; i++) s[e][j] += q.v[i] * kq[j].v[i];
				}
			}

			// Softmax weights, relative to the largest score so far. A larger maximum rescales the earlier sums.
#pragma unroll
			for (int e = 0; e < EACH; e++) {
				const int row = row0 + ty + 32 * e;
				float high = top[e], part = 0;

#pragma unroll
				for (int j = 0; j < 4; j++) {
					const int col = col0 + tx + 8 * j;
					if (mask && row < p.rows && col < p.cols) s[e][j] += up(mask[(int64_t)row * p.mask_row + (int64_t)col * p.mask_col]);
					if (col >= p.cols) s[e][j] = -INFINITY;
					high = combine(REDUCE_MAX, high, s[e][j]);
				}

				for (int m = 1; m < 8; m *= 2) high = combine(REDUCE_MAX, high, WARP_XOR(high, m));
				scale[e] = high == -INFINITY ? 1 : expf(top[e] - high);

#pragma unroll
				for (int j = 0; j < 4; j++) {
					const float w = high == -INFINITY ? 0 : expf(s[e][j] - high);
					ss[(ty + 32 * e) * WEIGHTS + tx + 8 * j] = w;
					part += w;
				}
				for (int m = 1; m < 8; m *= 2) part += WARP_XOR(part, m);

				top[e] = high;
				sum[e] = sum[e] * scale[e] + part;
#pragma unroll
				for (int i = 0; i < SIZE / 8; i++) acc[e][i] *= scale[e];
			}

			// All threads have read the keys and written the weights.
			__syncthreads();
			fetch<SIZE, PITCH>(skv, v + (int64_t)col0 * p.v_row, p.v_row, ATTEND, p.cols - col0, p.size, 1);
			__syncthreads();

			// Add the weights times the values.
#pragma unroll 2
			for (int i = 0; i < ATTEND; i += 4) {
				quad w[EACH];

#pragma unroll
				for (int e = 0; e < EACH; e++) w[e] = *(const quad *)&ss[(ty + 32 * e) * WEIGHTS + i];
#pragma unroll
				for (int n = 0; n < 4; n++)
#pragma unroll
					for (int j = 0; j < SIZE / 32; j++) {
						const quad x = *(const quad *)&skv[(i + n) * PITCH + tx * 4 + 32 * j];
#pragma unroll
						for (int e = 0; e < EACH; e++)
#pragma unroll
							for (int d = 0; d < 4; d++) acc[e][4 * j + d] += w[e].v[n] * x.v[d];
					}
			}

			// The values must be read before the next keys overwrite them.
			__syncthreads();
		}

		// Divide by the sum of the weights and store.
#pragma unroll
		for (int e = 0; e < EACH; e++) {
			const int row = row0 + ty + 32 * e;
			if (row >= p.rows) continue;

			real *y = (real *)p.y + (((int64_t)image * p.rows + row) * p.heads + head) * p.size;
#pragma unroll
			for (int i = 0; i < SIZE / 8; i++) {
				const int d = tx * 4 + i / 4 * 32 + i % 4;
				if (d < p.size) y[d] = down(acc[e][i] / sum[e]);
			}
		}
	}
}

KERNEL(attention)(attention_params p) {
	__shared__ __align__(16) float room[(32 + ATTEND) * (ATTEND_SIZE + 4) + 32 * (ATTEND + 4)];
	if (p.size <= ATTEND_SIZE / 2) attend<ATTEND_SIZE / 2, 2>(p, room);
	else attend<ATTEND_SIZE, 1>(p, room);
}

#if !defined(REAL_F16) && !defined(REAL_BF16) // these kernels do not depend on the type of real numbers

KERNEL(binary_int64)(binary_params p) {
	const int64_t *a = (const int64_t *)p.p, *b = (const int64_t *)p.q;
	ELEMENTS(i, p.count) {
		const int64_t u = a[place(i, p.dims, p.ps)], v = b[place(i, p.dims, p.qs)];
		int64_t y = 0;
		switch (p.op) {
		case OP_ADD: y = u + v; break;
		case OP_SUB: y = u - v; break;
		case OP_MUL: y = u * v; break;
		case OP_DIV: y = v == 0 ? 0 : v == -1 ? -u : u / v; break;
		case OP_MIN: y = v < u ? v : u; break;
		case OP_MAX: y = v > u ? v : u; break;
		}
		((int64_t *)p.y)[i] = y;
	}
}

template <class T> __device__ static void copy_elements(const copy_params &p) {
	ELEMENTS(i, p.count) ((T *)p.y)[place(i, p.dims, p.ys)] = ((const T *)p.x)[place(i, p.dims, p.xs)];
}

KERNEL(copy)(copy_params p) {
	switch (p.size) {
	case 1: copy_elements<uint8_t>(p); break;
	case 2: copy_elements<uint16_t>(p); break;
	case 4: copy_elements<uint32_t>(p); break;
	default: copy_elements<uint64_t>(p);
	}
}

template <class T> __device__ static void gather_elements(const gather_params &p) {
	ELEMENTS(i, (int64_t)p.outer * p.picks * p.inner) {
		const uint32_t in = (uint32_t)i % p.inner, pick = (uint32_t)i / p.inner % p.picks;
		const int64_t out = i / ((int64_t)p.inner * p.picks);
		int64_t at = p.index_size == 8 ? ((const int64_t *)p.index)[pick] : ((const int32_t *)p.index)[pick];

		if (at < 0) at += p.len;
		((T *)p.y)[i] = at < 0 || at >= p.len ? (T)~(T)0 : ((const T *)p.x)[(out * p.len + at) * p.inner + in];
	}
}

KERNEL(gather)(gather_params p) {
	switch (p.size) {
	case 1: gather_elements<uint8_t>(p); break;
	case 2: gather_elements<uint16_t>(p); break;
	case 4: gather_elements<uint32_t>(p); break;
	default: gather_elements<uint64_t>(p);
	}
}

// cast converts through a float or a 64-bit integer, depending on the source. The source may have strides, so a cast
// can also change the layout.
KERNEL(cast)(cast_params p) {
	ELEMENTS(i, p.count) {
		float f = 0;
		int64_t k = 0;
		const int64_t at = place(i, p.dims, p.xs);

		switch (p.from) {
		case TYPE_FLOAT32: f = ((const float *)p.x)[at]; k = (int64_t)f; break;
		case TYPE_FLOAT16: f = __half2float(((const __half *)p.x)[at]); k = (int64_t)f; break;
		case TYPE_BFLOAT16: f = bf16_float(((const uint16_t *)p.x)[at]); k = (int64_t)f; break;
		case TYPE_INT32: k = ((const int32_t *)p.x)[at]; f = (float)k; break;
		case TYPE_INT64: k = ((const int64_t *)p.x)[at]; f = (float)k; break;
		default: k = ((const uint8_t *)p.x)[at]; f = (float)k;
		}

		switch (p.to) {
		case TYPE_FLOAT32: ((float *)p.y)[i] = f; break;
		case TYPE_FLOAT16: ((__half *)p.y)[i] = __float2half(f); break;
		case TYPE_BFLOAT16: ((uint16_t *)p.y)[i] = float_bf16(f); break;
		case TYPE_INT32: ((int32_t *)p.y)[i] = (int32_t)k; break;
		case TYPE_INT64: ((int64_t *)p.y)[i] = k; break;
		case TYPE_UINT8: ((uint8_t *)p.y)[i] = (uint8_t)k; break;
		default: ((uint8_t *)p.y)[i] = f != 0;
		}
	}
}
#endif
