// The type of the real numbers that a module stores, chosen at compile time, and the other differences between CUDA
// and the host driver of the tests. The file has no guard, because the host driver includes it once for each type.
#ifdef __CUDACC__
#include <cuda_fp16.h>
#define WARP_XOR(v, mask) __shfl_xor_sync(~0u, v, mask)
#define BITS_FLOAT(b) __uint_as_float(b)
#define FLOAT_BITS(f) __float_as_uint(f)
#else
#include "hostgpu.h"
#define WARP_XOR(v, mask) hostgpu_xor(v, mask)
#endif

#if defined(REAL_F16)
typedef __half real;
#define NAME(name) name##_f16
#elif defined(REAL_BF16)
typedef struct { uint16_t bits; } bfloat;
typedef bfloat real;
#define NAME(name) name##_bf16
#else
typedef float real;
#define NAME(name) name
#endif

#define KERNEL(name) extern "C" __global__ void NAME(name)

// bfloat16 is the upper half of a float, rounded to the nearest even.
__device__ static inline float bf16_float(uint16_t b) { return BITS_FLOAT((uint32_t)b << 16); }

__device__ static inline uint16_t float_bf16(float f) {
	const uint32_t b = FLOAT_BITS(f);
	return f != f ? (uint16_t)(b >> 16 | 0x40) : (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

#if defined(REAL_F16)
__device__ static inline float up(real v) { return __half2float(v); }
__device__ static inline real down(float v) { return __float2half(v); }
#elif defined(REAL_BF16)
__device__ static inline float up(real v) { return bf16_float(v.bits); }
__device__ static inline real down(float v) { return {float_bf16(v)}; }
#else
__device__ static inline float up(real v) { return v; }
__device__ static inline real down(float v) { return v; }
#endif
