// The parts of CUDA that the device code needs, for g++: see hostgpu.cpp.
#ifndef DB_HOSTGPU_H
#define DB_HOSTGPU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __shared__ static // blocks run one after another, so a block can use static memory

struct hostgpu_dim { unsigned x, y, z; };
extern hostgpu_dim threadIdx, blockIdx, blockDim, gridDim;

// The dynamic shared memory of the block that runs.
enum { HOSTGPU_DYNAMIC_MAX = 227 << 10 };
extern uint8_t hostgpu_dynamic[];

// hostgpu_barrier runs the other threads of the block up to this point.
void hostgpu_barrier();
#define __syncthreads hostgpu_barrier
#define __syncwarp hostgpu_barrier
static inline void __threadfence() {}

// hostgpu_xor is __shfl_xor_sync. All threads of the block must call it.
float hostgpu_xor(float v, int mask);

// hostgpu_post shows n bytes to the other threads of the warp. After a barrier hostgpu_of reads what a lane posted.
void hostgpu_post(const void *p, int n);
const void *hostgpu_of(int lane);

// Asynchronous copies of 16 bytes. They happen when hostgpu_wait waits for their group, not before.
void hostgpu_copy_async(void *to, const void *from);
void hostgpu_commit();
void hostgpu_wait(int pending);

static inline unsigned atomicAdd(unsigned *p, unsigned v) {
	const unsigned old = *p;
	*p += v;
	return old;
}

static inline float BITS_FLOAT(uint32_t b) {
	float f;
	memcpy(&f, &b, 4);
	return f;
}

static inline uint32_t FLOAT_BITS(float f) {
	uint32_t b;
	memcpy(&b, &f, 4);
	return b;
}

struct __half { uint16_t bits; };

static inline float __half2float(__half h) {
	const int sign = h.bits >> 15, exp = h.bits >> 10 & 31, frac = h.bits & 1023;
	if (exp == 31) return frac ? NAN : sign ? -INFINITY : INFINITY;
	if (exp) return BITS_FLOAT((uint32_t)sign << 31 | (uint32_t)(exp + 112) << 23 | (uint32_t)frac << 13);
	return (sign ? -1 : 1) * ldexpf(frac, -24);
}

static inline __half __float2half(float f) {
	const uint32_t b = FLOAT_BITS(f);
	const uint16_t sign = b >> 16 & 0x8000;
	const float a = fabsf(f);
	if (f != f) return {(uint16_t)(sign | 0x7e00)};
	if (a >= 65520) return {(uint16_t)(sign | 0x7c00)};
	if (a < 6.103515625e-05f) return {(uint16_t)(sign | (int)rintf(ldexpf(a, 24)))};
	const uint32_t v = b & 0x7fffffff; // rounds to the nearest even; a carry goes on into the exponent
	return {(uint16_t)(sign | (((v + 0xfff + (v >> 13 & 1)) >> 13) - (112 << 10)))};
}

#endif
