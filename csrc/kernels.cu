// The device code of the layer executor: one kernel for each struct of kernels.h. nvcc compiles it to
// PTX (make ptx); g++ compiles the same source for the host driver of the tests (hostgpu.cpp), where the
// threads of a block take turns. Kernels loop over what their grid leaves, so any grid is right. NaN
// goes through every activation and comparison.
#include "kernels.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#else
#include "hostgpu.h"
#endif

#define KERNEL extern "C" __global__ void

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

// Products: a block computes TILE_M by TILE_N outputs, each thread 4 by 4 of them, TILE_K deep at a time.

// tile accumulates the product of two loaders into acc. along_k says that B's neighbours in memory are
// along k, so that neighbouring threads should load along k.
template <class LoadA, class LoadB>
__device__ static void tile(int depth, bool along_k, LoadA load_a, LoadB load_b, float acc[4][4]) {
	__shared__ float sa[TILE_K][TILE_M + 4];
	__shared__ float sb[TILE_K][TILE_N + 4];
	const int t = threadIdx.x, tx = t % 16, ty = t / 16;
	for (int k0 = 0; k0 < depth; k0 += TILE_K) {
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
		__syncthreads();
	}
}

KERNEL gemm(gemm_params p) {
	const int m0 = blockIdx.y * TILE_M, n0 = blockIdx.x * TILE_N;
	const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
	for (int z = blockIdx.z; z < p.b1 * p.b2; z += gridDim.z) {
		const int i1 = z / p.b2, i2 = z % p.b2;
		const float *a = p.pa + i1 * p.a1 + i2 * p.a2, *b = p.pb + i1 * p.b1_stride + i2 * p.b2_stride;
		float acc[4][4] = {};
		tile(p.k, p.bk == 1 && p.bn != 1,
			[&](int m, int k) { return m0 + m < p.m ? a[(int64_t)(m0 + m) * p.am + (int64_t)k * p.ak] : 0; },
			[&](int k, int n) { return n0 + n < p.n ? b[(int64_t)k * p.bk + (int64_t)(n0 + n) * p.bn] : 0; }, acc);
		for (int i = 0; i < 4; i++) {
			for (int j = 0; j < 4; j++) {
				const int m = m0 + ty * 4 + i, n = n0 + tx * 4 + j;
				if (m >= p.m || n >= p.n) continue;
				const int64_t at = ((int64_t)z * p.m + m) * p.n + n;
				float v = p.alpha * acc[i][j];
				if (p.bias) v += p.beta * p.bias[(int64_t)m * p.bias_m + (int64_t)n * p.bias_n];
				if (p.residual) v += p.residual[at];
				p.pc[at] = activate(p.act, v, p.a, p.b);
			}
		}
	}
}

// conv is an implicit product: rows are output channels of a group, columns output pixels of an image,
// and the depth runs over input channels of the group and the window.
KERNEL conv(conv_params p) {
	const int cg = p.c / p.groups, kg = p.k / p.groups, window = p.r * p.s, depth = cg * window, pixels = p.oh * p.ow;
	const int m0 = blockIdx.y * TILE_M, n0 = blockIdx.x * TILE_N;
	const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
	for (int z = blockIdx.z; z < p.n * p.groups; z += gridDim.z) {
		const int image = z / p.groups, group = z % p.groups;
		const float *x = p.x + ((int64_t)image * p.c + (int64_t)group * cg) * p.h * p.wd;
		const float *w = p.w + (int64_t)group * kg * depth;
		float acc[4][4] = {};
		tile(depth, false,
			[&](int m, int k) { return m0 + m < kg ? w[(int64_t)(m0 + m) * depth + k] : 0; },
			[&](int k, int n) {
				if (n0 + n >= pixels) return 0.0f;
				const int c = k / window, rs = k % window, r = rs / p.s, s = rs % p.s;
				const int yi = (n0 + n) / p.ow * p.stride_h - p.pad_h + r * p.dil_h;
				const int xi = (n0 + n) % p.ow * p.stride_w - p.pad_w + s * p.dil_w;
				if (yi < 0 || yi >= p.h || xi < 0 || xi >= p.wd) return 0.0f;
				return x[((int64_t)c * p.h + yi) * p.wd + xi];
			}, acc);
		for (int i = 0; i < 4; i++) {
			for (int j = 0; j < 4; j++) {
				const int m = m0 + ty * 4 + i, n = n0 + tx * 4 + j;
				if (m >= kg || n >= pixels) continue;
				const int64_t at = ((int64_t)image * p.k + group * kg + m) * pixels + n;
				float v = acc[i][j];
				if (p.bias) v += p.bias[group * kg + m];
				if (p.residual) v += p.residual[at];
				p.y[at] = activate(p.act, v, p.a, p.b);
			}
		}
	}
}

// conv_depthwise has one input channel for each group: nothing to share, so each thread takes an output.
KERNEL conv_depthwise(conv_params p) {
	ELEMENTS(i, (int64_t)p.n * p.k * p.oh * p.ow) {
		const int ox = i % p.ow, oy = i / p.ow % p.oh, k = i / (p.ow * p.oh) % p.k;
		const int64_t image = i / ((int64_t)p.ow * p.oh * p.k);
		const float *x = p.x + (image * p.c + k) * p.h * p.wd, *w = p.w + k * p.r * p.s;
		float v = p.bias ? p.bias[k] : 0;
		for (int r = 0; r < p.r; r++) {
			const int yi = oy * p.stride_h - p.pad_h + r * p.dil_h;
			if (yi < 0 || yi >= p.h) continue;
			for (int s = 0; s < p.s; s++) {
				const int xi = ox * p.stride_w - p.pad_w + s * p.dil_w;
				if (xi >= 0 && xi < p.wd) v += w[r * p.s + s] * x[(int64_t)yi * p.wd + xi];
			}
		}
		if (p.residual) v += p.residual[i];
		p.y[i] = activate(p.act, v, p.a, p.b);
	}
}

KERNEL pool(pool_params p) {
	ELEMENTS(i, (int64_t)p.planes * p.oh * p.ow) {
		const float *x = p.x + i / (p.oh * p.ow) * p.h * p.wd;
		const int top = i / p.ow % p.oh * p.stride_h - p.pad_h, left = i % p.ow * p.stride_w - p.pad_w;
		float best = -INFINITY, sum = 0;
		int n = 0;
		for (int r = 0; r < p.r; r++) {
			for (int s = 0; s < p.s; s++) {
				const int yi = top + r * p.dil_h, xi = left + s * p.dil_w;
				if (yi < 0 || yi >= p.h || xi < 0 || xi >= p.wd) continue;
				const float v = x[(int64_t)yi * p.wd + xi];
				if (v > best || v != v) best = v;
				sum += v;
				n++;
			}
		}
		p.y[i] = p.mode == POOL_MAX ? best : sum / (p.mode == POOL_AVERAGE ? (n > 0 ? n : 1) : p.r * p.s);
	}
}

// place turns a dense index into an offset by strides.
__device__ static int64_t place(int64_t i, const int32_t *dims, const int32_t *strides) {
	int64_t off = 0;
#pragma unroll
	for (int d = RANK - 1; d >= 0; d--) {
		off += i % dims[d] * strides[d];
		i /= dims[d];
	}
	return off;
}

KERNEL binary(binary_params p) {
	const float *a = (const float *)p.p, *b = (const float *)p.q;
	ELEMENTS(i, p.count) {
		const float u = a[place(i, p.dims, p.ps)], v = b[place(i, p.dims, p.qs)];
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
		((float *)p.y)[i] = activate(p.act, y, p.a, p.b);
	}
}

KERNEL binary_int64(binary_params p) {
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

KERNEL where(where_params p) {
	ELEMENTS(i, p.count) {
		p.y[i] = p.cond[place(i, p.dims, p.cs)] ? p.p[place(i, p.dims, p.ps)] : p.q[place(i, p.dims, p.qs)];
	}
}

KERNEL unary(unary_params p) {
	ELEMENTS(i, p.count) p.y[i] = activate(p.act, p.x[i], p.a, p.b);
}

KERNEL affine(affine_params p) {
	ELEMENTS(i, p.count) {
		const int c = i / p.inner % p.channels;
		p.y[i] = activate(p.act, p.x[i] * p.scale[c] + p.shift[c], p.a, p.b);
	}
}

// Rows: a block takes a row, its threads share it. combine and total leave the result with every thread.

__device__ static float combine(int op, float u, float v) {
	switch (op) {
	case REDUCE_MAX: return v > u || v != v ? v : u;
	case REDUCE_MIN: return v < u || v != v ? v : u;
	}
	return u + v;
}

__device__ static float total(int op, float v) {
	__shared__ float part[THREADS];
	const int t = threadIdx.x;
	part[t] = v;
	__syncthreads();
	for (int half = THREADS / 2; half > 0; half /= 2) {
		if (t < half) part[t] = combine(op, part[t], part[t + half]);
		__syncthreads();
	}
	v = part[0];
	__syncthreads(); // part may be used again at once
	return v;
}

KERNEL softmax(rows_params p) {
	const int64_t rows = (int64_t)p.outer * p.inner;
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		const int64_t start = row / p.inner * p.len * p.inner + row % p.inner;
		const float *x = p.x + start;
		float *y = (float *)p.y + start;
		float top = -INFINITY, sum = 0;
		for (int i = threadIdx.x; i < p.len; i += THREADS) top = combine(REDUCE_MAX, top, x[(int64_t)i * p.inner]);
		top = total(REDUCE_MAX, top);
		for (int i = threadIdx.x; i < p.len; i += THREADS) sum += expf(x[(int64_t)i * p.inner] - top);
		sum = total(REDUCE_SUM, sum);
		for (int i = threadIdx.x; i < p.len; i += THREADS) {
			const float v = x[(int64_t)i * p.inner] - top;
			y[(int64_t)i * p.inner] = p.op ? v - logf(sum) : expf(v) / sum;
		}
	}
}

KERNEL reduce(rows_params p) {
	const int64_t rows = (int64_t)p.outer * p.inner;
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		const float *x = p.x + row / p.inner * p.len * p.inner + row % p.inner;
		float v = p.op == REDUCE_MAX ? -INFINITY : p.op == REDUCE_MIN ? INFINITY : 0;
		for (int i = threadIdx.x; i < p.len; i += THREADS) {
			const float e = x[(int64_t)i * p.inner];
			v = combine(p.op, v, p.op == REDUCE_L2 ? e * e : e);
		}
		v = total(p.op, v);
		if (threadIdx.x == 0) ((float *)p.y)[row] = p.op == REDUCE_MEAN ? v / p.len : p.op == REDUCE_L2 ? sqrtf(v) : v;
	}
}

KERNEL argmax(rows_params p) {
	__shared__ float best[THREADS];
	__shared__ int where_best[THREADS];
	const int64_t rows = (int64_t)p.outer * p.inner;
	const int t = threadIdx.x;
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		const float *x = p.x + row / p.inner * p.len * p.inner + row % p.inner;
		float v = -INFINITY;
		int at = p.len;
		for (int i = t; i < p.len; i += THREADS) {
			const float e = x[(int64_t)i * p.inner];
			if (at == p.len || e > v) v = e, at = i;
		}
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

KERNEL layernorm(layernorm_params p) {
	for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
		const float *x = p.x + row * p.len, *res = p.residual ? p.residual + row * p.len : 0;
		float *y = p.y + row * p.len, sum = 0, square = 0;
		for (int i = threadIdx.x; i < p.len; i += THREADS) sum += x[i] + (res ? res[i] : 0);
		const float mean = total(REDUCE_SUM, sum) / p.len;
		for (int i = threadIdx.x; i < p.len; i += THREADS) {
			const float v = x[i] + (res ? res[i] : 0) - mean;
			square += v * v;
		}
		const float scale = 1 / sqrtf(total(REDUCE_SUM, square) / p.len + p.epsilon);
		for (int i = threadIdx.x; i < p.len; i += THREADS) {
			const float v = (x[i] + (res ? res[i] : 0) - mean) * scale * p.gamma[i];
			y[i] = p.beta ? v + p.beta[i] : v;
		}
	}
}

template <class T> __device__ static void copy_elements(const copy_params &p) {
	ELEMENTS(i, p.count) ((T *)p.y)[place(i, p.dims, p.ys)] = ((const T *)p.x)[place(i, p.dims, p.xs)];
}

KERNEL copy(copy_params p) {
	switch (p.size) {
	case 1: copy_elements<uint8_t>(p); break;
	case 4: copy_elements<uint32_t>(p); break;
	default: copy_elements<uint64_t>(p);
	}
}

template <class T> __device__ static void gather_elements(const gather_params &p) {
	ELEMENTS(i, (int64_t)p.outer * p.picks * p.inner) {
		const int64_t in = i % p.inner, pick = i / p.inner % p.picks, out = i / ((int64_t)p.inner * p.picks);
		int64_t at = p.index_size == 8 ? ((const int64_t *)p.index)[pick] : ((const int32_t *)p.index)[pick];
		if (at < 0) at += p.len;
		((T *)p.y)[i] = at < 0 || at >= p.len ? (T)~(T)0 : ((const T *)p.x)[(out * p.len + at) * p.inner + in];
	}
}

KERNEL gather(gather_params p) {
	switch (p.size) {
	case 1: gather_elements<uint8_t>(p); break;
	case 4: gather_elements<uint32_t>(p); break;
	default: gather_elements<uint64_t>(p);
	}
}

// cast goes through a float or a 64-bit integer, whichever the source is.
KERNEL cast(cast_params p) {
	ELEMENTS(i, p.count) {
		float f = 0;
		int64_t k = 0;
		switch (p.from) {
		case TYPE_FLOAT32: f = ((const float *)p.x)[i]; k = (int64_t)f; break;
		case TYPE_FLOAT16: f = __half2float(((const __half *)p.x)[i]); k = (int64_t)f; break;
		case TYPE_INT32: k = ((const int32_t *)p.x)[i]; f = (float)k; break;
		case TYPE_INT64: k = ((const int64_t *)p.x)[i]; f = (float)k; break;
		default: k = ((const uint8_t *)p.x)[i]; f = (float)k;
		}
		switch (p.to) {
		case TYPE_FLOAT32: ((float *)p.y)[i] = f; break;
		case TYPE_FLOAT16: ((__half *)p.y)[i] = __float2half(f); break;
		case TYPE_INT32: ((int32_t *)p.y)[i] = (int32_t)k; break;
		case TYPE_INT64: ((int64_t *)p.y)[i] = k; break;
		case TYPE_UINT8: ((uint8_t *)p.y)[i] = (uint8_t)k; break;
		default: ((uint8_t *)p.y)[i] = f != 0;
		}
	}
}
