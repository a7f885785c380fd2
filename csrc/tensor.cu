// Matrix products and convolutions of half-precision numbers on tensor cores (compute 8.0 and later), and attention.
// Every kernel exists for binary16 and for bfloat16; sums are accumulated in float.
//
// A block computes BM rows by BN columns of the output. It reads the depth in steps of BK through a ring of STAGES
// stages in dynamic shared memory: asynchronous copies fill later stages while an earlier one is multiplied. A stage
// holds BM rows of X and BN rows of W. Each row has BK elements in chunks of 8, whose places are swizzled by row, so
// that neither the copies nor the loads of matrices have bank conflicts.
#include "tensor.h"

// activated computes the activations that few products end with. It is not inlined, so that kernels stay small.
__device__ static __noinline__ float activated(int act, float x, float a, float b) {
	switch (act) {
	case ACT_CLIP: return x < a ? a : x > b ? b : x;
	case ACT_LEAKY_RELU: return x < 0 ? a * x : x;
	case ACT_SIGMOID: return 1 / (1 + expf(-x));
	case ACT_TANH: return tanhf(x);
	case ACT_HARD_SIGMOID: x = a * x + b; return x < 0 ? 0 : x > 1 ? 1 : x;
	case ACT_HARD_SWISH: a = x / 6 + 0.5f; return x * (a < 0 ? 0 : a > 1 ? 1 : a);
	case ACT_SWISH: return x / (1 + expf(-x));
	case ACT_GELU: return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
	case ACT_GELU_TANH: return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
	}
	return x; // package kernels requests no other: see Tensor there
}

__device__ static __forceinline__ float finish(int act, float x, float a, float b) {
	return act == ACT_NONE ? x : act == ACT_RELU ? (x < 0 ? 0 : x) : activated(act, x, a, b);
}

enum { BK = 64, ROW_CHUNKS = BK / 8 };

__device__ static __forceinline__ int swizzled(int row, int c) { return row * ROW_CHUNKS + (c ^ (row & 7)); }

// Source locates the rows of X that a thread copies: every 32nd row of the block's rows, one chunk of each.
template <int ROWS> struct Source {
	int image[ROWS], y[ROWS], x[ROWS]; // the window of each row; image is -1 for rows beyond the last
	int c, r, s;                       // position of the chunk in the window

	__device__ __forceinline__ void start(const tensor_params &p, int row0, int k) {
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			const int m = row0 + (int)threadIdx.x / ROW_CHUNKS + i * (THREADS / ROW_CHUNKS);
			image[i] = m < p.m ? m / (p.oh * p.ow) : -1;
			y[i] = m / p.ow % p.oh * p.stride_h - p.pad_h;
			x[i] = m % p.ow * p.stride_w - p.pad_w;
		}
		c = k % p.c;
		s = k / p.c % p.s;
		r = k / p.c / p.s;
	}

	__device__ __forceinline__ void next(const tensor_params &p) {
		for (c += BK; c >= p.c;) {
			c -= p.c;
			if (++s == p.s) s = 0, r++;
		}
	}

	// at returns the address of row i's chunk; 0 outside the image.
	__device__ __forceinline__ const uint16_t *at(const tensor_params &p, int i, int depth_left) const {
		const int yi = y[i] + r * p.dil_h, xi = x[i] + s * p.dil_w;
		if (image[i] < 0 || depth_left <= 0 || yi < 0 || yi >= p.h || xi < 0 || xi >= p.wd) return 0;
		return (const uint16_t *)p.x + (((int64_t)image[i] * p.h + yi) * p.wd + xi) * p.c + c;
	}
};

// gather reads a chunk element by element, because the number of channels is not a multiple of 8. The chunk starts at
// depth k of the window at y, x of an image.
__device__ static __noinline__ chunk gather(const tensor_params &p, int image, int y, int x, int k, int end) {
	chunk out = {};
	if (image < 0) return out;

#pragma unroll
	for (int e = 0; e < 8; e++) {
		const int c = (k + e) % p.c, s = (k + e) / p.c % p.s, r = (k + e) / p.c / p.s;
		const int yi = y + r * p.dil_h, xi = x + s * p.dil_w;
		if (k + e >= end || yi < 0 || yi >= p.h || xi < 0 || xi >= p.wd) continue;
		out.w[e / 2] |= (uint32_t)((const uint16_t *)p.x)[(((int64_t)image * p.h + yi) * p.wd + xi) * p.c + c] << (e % 2 * 16);
	}

	return out;
}

// weights reads a chunk of W element by element.
__device__ static __noinline__ chunk weights(const uint16_t *w, int k, int end) {
	chunk out = {};
#pragma unroll
	for (int e = 0; e < 8; e++)
		if (k + e < end) out.w[e / 2] |= (uint32_t)w[k + e] << (e % 2 * 16);

	return out;
}

template <class T> __device__ static __forceinline__ float element(const chunk &v, int e) { return T::up(e % 2 ? v.w[e / 2] >> 16 : v.w[e / 2] & 0xffff); }

// store8 completes and stores up to 8 neighbouring outputs of row m, from column n on: scale, bias, residual,
// activation.
template <class T> __device__ static __forceinline__ void store8(const tensor_params &p, int m, int n, const float v[8]) {
	const int64_t at = (int64_t)m * p.k + n;
	const uint16_t *bias = (const uint16_t *)p.bias, *residual = (const uint16_t *)p.residual;
	uint16_t *y = (uint16_t *)p.y;

	// Rows of a multiple of 8 columns are read and written in whole chunks.
	if (p.k % 8 == 0) {
		chunk cb = {}, cr = {}, out;
		if (bias) cb = *(const chunk *)(bias + n);

		if (residual) cr = *(const chunk *)(residual + at);


#pragma unroll
		for (int e = 0; e < 8; e += 2) {
			float u[2];
#pragma unroll
			for (int j = 0; j < 2; j++) {
				float f = p.alpha * v[e + j];
				if (bias) f += element<T>(cb, e + j);
				if (residual) f += element<T>(cr, e + j);
				u[j] = finish(p.act, f, p.a, p.b);
			}
			out.w[e / 2] = pack<T>(u[0], u[1]);
		}

		*(chunk *)(y + at) = out;
		return;
	}

#pragma unroll 1
	for (int e = 0; e < 8 && n + e < p.k; e++) {
		float f = p.alpha * v[e];
		if (bias) f += T::up(bias[n + e]);
		if (residual) f += T::up(residual[at + e]);
		y[at + e] = T::down(finish(p.act, f, p.a, p.b));
	}
}

// Block computes one tile of the output; WM by WN warps share it.
template <class T, int BM, int BN, int STAGES, int WM, int WN> struct Block {
	enum {
		MI = BM / WM / 16, NI = BN / WN / 8, ROWS = BM * ROW_CHUNKS / THREADS, COLUMNS = BN * ROW_CHUNKS / THREADS,
		STAGE = (BM + BN) * ROW_CHUNKS, PITCH = BN + 4,
	};
	static_assert(WM * WN * 32 == THREADS && NI % 2 == 0 && ROWS > 0 && COLUMNS > 0, "warps do not fit the tile");
	static_assert(BM * PITCH * 4 <= STAGES * STAGE * 16, "the results do not fit where the stages were");

	const tensor_params &p;
	chunk *ring;
	int m0, n0, depth, end, t, lane, wm, wn;
	bool whole; // the number of channels is a multiple of 8
	float acc[MI][NI][4];

	// fill copies the data of a stage: the elements of X and W from depth k0 on.
	__device__ __forceinline__ void fill(Source<ROWS> &x, int stage, int k0) {
		chunk *sx = ring + stage * STAGE, *sw = sx + BM * ROW_CHUNKS;
		const int c = t % ROW_CHUNKS, row = t / ROW_CHUNKS, k = k0 + c * 8;
		const uint16_t *w = (const uint16_t *)p.w;

		if (whole) {
#pragma unroll
			for (int i = 0; i < ROWS; i++) copy_chunk(&sx[swizzled(row + i * 32, c)], x.at(p, i, end - k), p.x);
#pragma unroll
			for (int i = 0; i < COLUMNS; i++) {
				const int n = n0 + row + i * 32;
				copy_chunk(&sw[swizzled(row + i * 32, c)], n < p.k && k < end ? w + (int64_t)n * depth + k : 0, w);
			}
			x.next(p);

			return;
		}

#pragma unroll
		for (int i = 0; i < ROWS; i++) sx[swizzled(row + i * 32, c)] = gather(p, x.image[i], x.y[i], x.x[i], k, end);
#pragma unroll
		for (int i = 0; i < COLUMNS; i++) {
			const int n = n0 + row + i * 32;
			sw[swizzled(row + i * 32, c)] = weights(w + (int64_t)n * depth, k, n < p.k ? end : 0);
		}
	}

	// multiply_stage adds the product of a stage to acc.
	__device__ __forceinline__ void multiply_stage(int stage) {
		const chunk *sx = ring + stage * STAGE, *sw = sx + BM * ROW_CHUNKS;
#pragma unroll
		for (int kk = 0; kk < BK / 16; kk++) {
			uint32_t a[MI][4], b[NI / 2][4];
			// Rows 0-7, then rows 8-15, at the first eight of the depth; then both at the second eight.
#pragma unroll
			for (int i = 0; i < MI; i++)
				load_matrices(a[i], &sx[swizzled(wm * (BM / WM) + i * 16 + lane % 16, kk * 2 + lane / 16)]);

			// Columns 0-7 at both eights of the depth, then columns 8-15.
#pragma unroll
			for (int j = 0; j < NI / 2; j++)
				load_matrices(b[j], &sw[swizzled(wn * (BN / WN) + j * 16 + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2)]);

#pragma unroll
			for (int i = 0; i < MI; i++)
#pragma unroll
				for (int j = 0; j < NI; j++) multiply<T>(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
		}
	}

	// settle writes the results to shared memory, row by row, in place of the stages.
	__device__ __forceinline__ float *settle() {
		float *out = (float *)ring;
		wait_copies<0>();
		__syncthreads();

#pragma unroll
		for (int i = 0; i < MI; i++)
#pragma unroll
			for (int j = 0; j < NI; j++)
#pragma unroll
				for (int e = 0; e < 4; e += 2) {
					float *at = out + (wm * (BM / WM) + i * 16 + lane / 4 + e * 4) * PITCH + wn * (BN / WN) + j * 8 + lane % 4 * 2;
					at[0] = acc[i][j][e];
					at[1] = acc[i][j][e + 1];
				}

		__syncthreads();
		return out;
	}

	// part writes this split's sums to partial memory. The last split of a tile adds all splits up and returns true;
	// its caller completes the tile.
	__device__ __forceinline__ bool part(float *out, int split, int tile) {
		__shared__ unsigned arrived;

		for (int i = t; i < BM * BN; i += THREADS) {
			const int m = m0 + i / BN, n = n0 + i % BN;
			if (m < p.m && n < p.k) p.partial[((int64_t)split * p.m + m) * p.k + n] = out[i / BN * PITCH + i % BN];
		}

		// Publish the partial sums before this split counts as arrived.
		__threadfence();
		__syncthreads();
		if (t == 0) arrived = atomicAdd(&p.counters[tile], 1u);
		__syncthreads();
		if (arrived != (unsigned)p.splits - 1) return false;

		// The last split reads the others' sums only after all have arrived.
		__threadfence();
		for (int i = t; i < BM * BN; i += THREADS) {
			const int m = m0 + i / BN, n = n0 + i % BN;
			if (m >= p.m || n >= p.k) continue;

			// Add in the order of the splits, whichever arrived last, so that results do not vary.
			float sum = 0;
			for (int z = 0; z < p.splits; z++) sum += ((volatile float *)p.partial)[((int64_t)z * p.m + m) * p.k + n];
			out[i / BN * PITCH + i % BN] = sum;
		}

		// The counter must be zero for the next launch.
		if (t == 0) p.counters[tile] = 0;
		__syncthreads();
		return true;
	}

	// run computes the tile of this block.
	__device__ __forceinline__ void run() {
		const int columns = (p.k + BN - 1) / BN, tile = blockIdx.x, split = blockIdx.y;
		t = threadIdx.x, lane = t % 32, wm = t / 32 / WN, wn = t / 32 % WN;
		m0 = tile / columns * BM, n0 = tile % columns * BN;
		depth = p.r * p.s * p.c, whole = p.c % 8 == 0;

		// A split takes an equal share of the depth.
		const int steps = (depth + BK - 1) / BK, each = (steps + p.splits - 1) / p.splits, from = split * each;
		const int last = from + each < steps ? from + each : steps;
		end = last * BK < depth ? last * BK : depth;

#pragma unroll
		for (int i = 0; i < MI; i++)
#pragma unroll
			for (int j = 0; j < NI; j++)
#pragma unroll
				for (int e = 0; e < 4; e++) acc[i][j][e] = 0;

		// Fill all stages but one before the first multiplication.
		Source<ROWS> x;
		x.start(p, m0, from * BK + t % ROW_CHUNKS * 8);
		for (int i = 0; i < STAGES - 1; i++) {
			if (from + i < last) fill(x, i, (from + i) * BK);
			commit_copies();
		}

		for (int k = from; k < last; k++) {
			wait_copies<STAGES - 2>();
			// All copies of this stage have arrived, and every warp has read the previous stage, which is filled
			// next.
			__syncthreads();
			if (k + STAGES - 1 < last) fill(x, (k - from + STAGES - 1) % STAGES, (k + STAGES - 1) * BK);
			commit_copies();

			multiply_stage((k - from) % STAGES);
		}

		float *out = settle();

		if (p.splits > 1 && !part(out, split, tile)) return;

		for (int i = t; i < BM * BN / 8; i += THREADS) {
			const int row = i / (BN / 8), column = i % (BN / 8) * 8;
			if (m0 + row < p.m && n0 + column < p.k) store8<T>(p, m0 + row, n0 + column, out + row * PITCH + column);
		}
	}
};

template <class T, int BM, int BN, int STAGES, int WM, int WN> __device__ static __forceinline__ void product(const tensor_params &p) {
	DYNAMIC_SHARED(ring);
	Block<T, BM, BN, STAGES, WM, WN> b{p, (chunk *)ring};
	b.run();
}

// All tiles with their stages and warps; cuda/kernels/tensor.go has the same list.
#define TENSOR_KERNELS(F) \
	F(tensor_256x128, 256, 128, 3, 4, 2) F(tensor_128x128, 128, 128, 3, 2, 4) F(tensor_128x64, 128, 64, 4, 4, 2) \
	F(tensor_64x128, 64, 128, 4, 2, 4) F(tensor_64x64, 64, 64, 4, 2, 4) F(tensor_32x64, 32, 64, 4, 2, 4)

#define DEFINE(name, bm, bn, stages, wm, wn) \
	extern "C" __global__ void __launch_bounds__(THREADS) name##_f16(const __grid_constant__ tensor_params p) { product<half_type, bm, bn, stages, wm, wn>(p); } \
	extern "C" __global__ void __launch_bounds__(THREADS) name##_bf16(const __grid_constant__ tensor_params p) { product<bfloat_type, bm, bn, stages, wm, wn>(p); }
TENSOR_KERNELS(DEFINE)

// Attention: a block computes 64 queries of a head, a warp 16 of them, and reads the keys 64 at a time
// (FlashAttention, Dao et al. 2022, algorithm 1). The softmax weights of a step are in the registers where the next
// product needs its operand, so they never go to memory.
enum { ATTEND_THREADS = 128, ATTEND_TILE = 64 };

// fetch starts the copy of a tile of a head's rows to shared memory; rows beyond the last are zeros.
template <int D> __device__ static __forceinline__ void fetch(chunk *to, const uint16_t *from, int64_t pitch, int row0, int rows) {
	for (int i = threadIdx.x; i < ATTEND_TILE * D / 8; i += ATTEND_THREADS) {
		const int row = i / (D / 8), c = i % (D / 8);
		copy_chunk(&to[row * (D / 8) + (c ^ (row & (D / 8 - 1) & 7))], row0 + row < rows ? from + (row0 + row) * pitch + c * 8 : 0, from);
	}
	commit_copies();
}

// piece locates a chunk of a tile that fetch copied.
template <int D> __device__ static __forceinline__ const chunk *piece(const chunk *from, int row, int c) {
	return &from[row * (D / 8) + (c ^ (row & (D / 8 - 1) & 7))];
}

template <class T, int D> __device__ static __forceinline__ void attend(const attention_params &p) {
	__shared__ chunk sq[ATTEND_TILE * D / 8], sk[ATTEND_TILE * D / 8], sv[ATTEND_TILE * D / 8];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = (p.rows + ATTEND_TILE - 1) / ATTEND_TILE;
	const int row0 = blockIdx.x % tiles * ATTEND_TILE, head = blockIdx.x / tiles % p.heads, image = blockIdx.x / tiles / p.heads;

	const uint16_t *mask = p.mask ? (const uint16_t *)p.mask + image * p.mask_batch + (int64_t)head * p.mask_head : 0;
	const uint16_t *k = (const uint16_t *)p.k + image * p.k_batch + (int64_t)head * p.k_head;
	const uint16_t *v = (const uint16_t *)p.v + image * p.v_batch + (int64_t)head * p.v_head;

	fetch<D>(sq, (const uint16_t *)p.q + image * p.q_batch + (int64_t)head * p.q_head, p.q_row, row0, p.rows);
	uint32_t q[D / 16][4];
	float acc[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

	for (int col0 = 0; col0 < p.cols; col0 += ATTEND_TILE) {
		fetch<D>(sk, k, p.k_row, col0, p.cols);
		fetch<D>(sv, v, p.v_row, col0, p.cols);

		// The keys are needed now; the values may still be on their way.
		wait_copies<1>();
		__syncthreads();
		if (col0 == 0) {
#pragma unroll
			for (int d = 0; d < D / 16; d++) load_matrices(q[d], piece<D>(sq, warp * 16 + lane % 16, d * 2 + lane / 16));
		}

		// Scores: queries times keys.
		float s[ATTEND_TILE / 8][4] = {};
#pragma unroll
		for (int d = 0; d < D / 16; d++)
#pragma unroll
			for (int j = 0; j < ATTEND_TILE / 16; j++) {
				uint32_t b[4];
				load_matrices(b, piece<D>(sk, j * 16 + lane / 16 * 8 + lane % 8, d * 2 + lane / 8 % 2));
				multiply<T>(s[2 * j], q[d], b[0], b[1]);
				multiply<T>(s[2 * j + 1], q[d], b[2], b[3]);
			}

		// Scale and mask the scores, and find the largest of each row.
		float high[2] = {top[0], top[1]}, part[2] = {0, 0}, scale[2];
#pragma unroll
		for (int j = 0; j < ATTEND_TILE / 8; j++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const int row = row0 + warp * 16 + lane / 4 + e / 2 * 8, col = col0 + j * 8 + lane % 4 * 2 + e % 2;
				s[j][e] *= p.scale;
				if (mask && row < p.rows && col < p.cols) s[j][e] += T::up(mask[(int64_t)row * p.mask_row + (int64_t)col * p.mask_col]);
				if (col >= p.cols) s[j][e] = -INFINITY;
				high[e / 2] = s[j][e] > high[e / 2] || s[j][e] != s[j][e] ? s[j][e] : high[e / 2];
			}

		// Four neighbouring lanes share a row. A larger maximum rescales the earlier sums.
#pragma unroll
		for (int i = 0; i < 2; i++) {
			for (int m = 1; m < 4; m *= 2) {
				const float other = SHUFFLE_XOR(high[i], m);
				high[i] = other > high[i] || other != other ? other : high[i];
			}

			scale[i] = high[i] == -INFINITY ? 1 : expf(top[i] - high[i]);
			top[i] = high[i];
		}

#pragma unroll
		for (int j = 0; j < ATTEND_TILE / 8; j++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				s[j][e] = high[e / 2] == -INFINITY ? 0 : expf(s[j][e] - high[e / 2]);
				part[e / 2] += s[j][e];
			}

#pragma unroll
		for (int i = 0; i < 2; i++) sum[i] = sum[i] * scale[i] + part[i];

#pragma unroll
		for (int d = 0; d < D / 8; d++)
#pragma unroll
			for (int e = 0; e < 4; e++) acc[d][e] *= scale[e / 2];

		// The values have arrived.
		wait_copies<0>();
		__syncthreads();
		// Add the weights times the values.
#pragma unroll
		for (int j = 0; j < ATTEND_TILE / 16; j++) {
			const uint32_t w[4] = {pack<T>(s[2 * j][0], s[2 * j][1]), pack<T>(s[2 * j][2], s[2 * j][3]),
				pack<T>(s[2 * j + 1][0], s[2 * j + 1][1]), pack<T>(s[2 * j + 1][2], s[2 * j + 1][3])};
#pragma unroll
			for (int d = 0; d < D / 16; d++) {
				uint32_t b[4];
				load_matrices_transposed(b, piece<D>(sv, j * 16 + lane % 16, d * 2 + lane / 16));
				multiply<T>(acc[2 * d], w, b[0], b[1]);
				multiply<T>(acc[2 * d + 1], w, b[2], b[3]);
			}
		}

		// Every warp has read the keys and the values, so the next fetch may overwrite them.
		__syncthreads();
	}

	// Divide by the sum of the weights and store.
#pragma unroll
	for (int i = 0; i < 2; i++) {
		for (int m = 1; m < 4; m *= 2) sum[i] += SHUFFLE_XOR(sum[i], m);

		const int row = row0 + warp * 16 + lane / 4 + i * 8;
		if (row >= p.rows) continue;

		uint16_t *y = (uint16_t *)p.y + (((int64_t)image * p.rows + row) * p.heads + head) * D + lane % 4 * 2;
#pragma unroll
		for (int d = 0; d < D / 8; d++) *(uint32_t *)(y + d * 8) = pack<T>(acc[d][2 * i] / sum[i], acc[d][2 * i + 1] / sum[i]);
	}
}

#define ATTENTION_KERNELS(F) F(attention_32, 32) F(attention_64, 64)

#define DEFINE_ATTENTION(name, d) \
	extern "C" __global__ void __launch_bounds__(ATTEND_THREADS) name##_f16(const __grid_constant__ attention_params p) { attend<half_type, d>(p); } \
	extern "C" __global__ void __launch_bounds__(ATTEND_THREADS) name##_bf16(const __grid_constant__ attention_params p) { attend<bfloat_type, d>(p); }
ATTENTION_KERNELS(DEFINE_ATTENTION)
