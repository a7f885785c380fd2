// The instructions of kernels on tensor cores: asynchronous copies, matrices of 8 by 8 from shared memory, and
// products of 16 by 8 by 16. On the device they are PTX of compute 8.0 and later. For the host driver of the tests
// the same functions follow the PTX manual's tables of which lane holds which element.
#ifndef DB_TENSOR_H
#define DB_TENSOR_H

#include "kernels.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) uint8_t name[]
#define SHUFFLE_XOR(v, mask) __shfl_xor_sync(~0u, v, mask)
#else
#include "hostgpu.h"
#define DYNAMIC_SHARED(name) uint8_t *name = hostgpu_dynamic
#define SHUFFLE_XOR(v, mask) hostgpu_xor(v, mask)
#endif

struct half_type {
	__device__ static float up(uint16_t b) {
		__half h;
		memcpy(&h, &b, 2);
		return __half2float(h);
	}
	__device__ static uint16_t down(float f) {
		const __half h = __float2half(f);
		uint16_t b;
		memcpy(&b, &h, 2);
		return b;
	}
};

struct bfloat_type {
	__device__ static float up(uint16_t b) {
		const uint32_t w = (uint32_t)b << 16;
		float f;
		memcpy(&f, &w, 4);
		return f;
	}
	__device__ static uint16_t down(float f) {
		uint32_t b;
		memcpy(&b, &f, 4);
		return f != f ? (uint16_t)(b >> 16 | 0x40) : (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
	}
};

template <class T> __device__ static __forceinline__ uint32_t pack(float low, float high) {
	return (uint32_t)T::down(high) << 16 | T::down(low);
}

struct alignas(16) chunk { uint32_t w[4]; }; // 8 elements

#ifdef __CUDACC__

__device__ static __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// copy_chunk copies 16 bytes to shared memory, or zeros if from is null; base is any device address.
__device__ static __forceinline__ void copy_chunk(void *to, const void *from, const void *base) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from ? from : base), "r"(from ? 16 : 0) : "memory");
}
__device__ static __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ static __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// load_matrices reads four matrices; lanes 8i to 8i+7 give the addresses of the rows of matrix i.
__device__ static __forceinline__ void load_matrices(uint32_t r[4], const void *row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
				 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
__device__ static __forceinline__ void load_matrices_transposed(uint32_t r[4], const void *row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
				 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

template <class T> __device__ static __forceinline__ void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
template <> __forceinline__ __device__ void multiply<half_type>(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
				 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __forceinline__ __device__ void multiply<bfloat_type>(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
				 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else

static inline void copy_chunk(void *to, const void *from, const void *) { hostgpu_copy_async(to, from); }
static inline void commit_copies() { hostgpu_commit(); }
template <int N> static inline void wait_copies() { hostgpu_wait(N); }

static inline const uint16_t *posted_row(int matrix, int row) { return *(const uint16_t *const *)hostgpu_of(8 * matrix + row); }

static inline void load_matrices(uint32_t r[4], const void *row) {
	const int lane = threadIdx.x % 32;
	hostgpu_post(&row, sizeof row);
	hostgpu_barrier();
	for (int i = 0; i < 4; i++) memcpy(&r[i], posted_row(i, lane / 4) + lane % 4 * 2, 4);
	hostgpu_barrier();
}

static inline void load_matrices_transposed(uint32_t r[4], const void *row) {
	const int lane = threadIdx.x % 32;
	hostgpu_post(&row, sizeof row);
	hostgpu_barrier();
	for (int i = 0; i < 4; i++) r[i] = posted_row(i, lane % 4 * 2)[lane / 4] | (uint32_t)posted_row(i, lane % 4 * 2 + 1)[lane / 4] << 16;
	hostgpu_barrier();
}

// multiply computes D += A·B. Let g = lane / 4 and t = lane % 4. A lane holds rows g and g + 8 of A at columns 2t, 2t
// + 1 (a[0], a[1]) and 8 columns further (a[2], a[3]); rows 2t, 2t + 1 of B, and 8 rows further, at column g; and
// rows g and g + 8 of D at columns 2t, 2t + 1.
template <class T> static void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
	const int lane = threadIdx.x % 32;
	float mine[12]; // a[0..3], b0, b1, each as its two elements
	for (int i = 0; i < 6; i++) {
		const uint32_t w = i < 4 ? a[i] : i == 4 ? b0 : b1;
		mine[2 * i] = T::up(w & 0xffff);
		mine[2 * i + 1] = T::up(w >> 16);
	}
	hostgpu_post(mine, sizeof mine);
	hostgpu_barrier();

	for (int i = 0; i < 4; i++) {
		// t counts the lanes that hold row g or g + 8, and the column.
		for (int t = 0; t < 4; t++) {
			const float *la = (const float *)hostgpu_of(lane / 4 * 4 + t) + i / 2 * 2;
			const float *lb = (const float *)hostgpu_of((lane % 4 * 2 + i % 2) * 4 + t) + 8;
			d[i] += la[0] * lb[0] + la[1] * lb[1] + la[4] * lb[2] + la[5] * lb[3];
		}
	}
	hostgpu_barrier();
}

#endif
#endif
