// What kernels.cu needs of CUDA, for g++: see hostgpu.cpp.
#ifndef DB_HOSTGPU_H
#define DB_HOSTGPU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __shared__ static // blocks run one after the other, so static memory is a block's

struct hostgpu_dim { unsigned x, y, z; };
extern hostgpu_dim threadIdx, blockIdx, blockDim, gridDim;

// hostgpu_barrier lets the other threads of the block run up to here.
void hostgpu_barrier();
#define __syncthreads hostgpu_barrier

struct __half { uint16_t bits; };

static inline float __half2float(__half h) {
	const int sign = h.bits >> 15, exp = h.bits >> 10 & 31, frac = h.bits & 1023;
	float f = exp == 31 ? (frac ? NAN : INFINITY) : exp ? ldexpf(1024 + frac, exp - 25) : ldexpf(frac, -24);
	return sign ? -f : f;
}

static inline __half __float2half(float f) {
	uint32_t b;
	memcpy(&b, &f, 4);
	const uint16_t sign = b >> 16 & 0x8000;
	const float a = fabsf(f);
	if (f != f) return {(uint16_t)(sign | 0x7e00)};
	if (a >= 65520) return {(uint16_t)(sign | 0x7c00)};
	int exp;
	frexpf(a, &exp);
	if (a == 0 || exp < -13) return {(uint16_t)(sign | (int)rintf(ldexpf(a, 24)))};
	return {(uint16_t)(sign | (((exp + 13) << 10) + (int)rintf(ldexpf(a, 11 - exp))))};
}

#endif
