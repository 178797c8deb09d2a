// What every kernel source may use: one spelling for CUDA (nvcc, NVRTC) and for a host compiler.
//
// No header of CUDA or of the C++ library is needed on the device. All sources are written as functions of one work item; `DEVICE` marks
// them. A block that works together loops `for (Index i = block.thread; i < n; i += block.threads)` and meets at `block.barrier()`: with
// one thread that is plain sequential code, which is how the host runs it unless it is told to use more threads.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ON_DEVICE 1
#define DEVICE __device__ __forceinline__
#else
#define ON_DEVICE 0
#define DEVICE static inline
// Declared here rather than included: the headers of the C++ library take most of the time of a compilation.
extern "C" {
float ceilf(float) noexcept;
float expf(float) noexcept;
float fabsf(float) noexcept;
float floorf(float) noexcept;
float fmaf(float, float, float) noexcept;
float fmaxf(float, float) noexcept;
float fminf(float, float) noexcept;
float nearbyintf(float) noexcept;
float roundf(float) noexcept;
float sqrtf(float) noexcept;
}
#endif

typedef long long Index;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

DEVICE u32 bits_of_float(float value) {
#if ON_DEVICE
  return __float_as_uint(value);
#else
  u32 bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
#endif
}

DEVICE float float_of_bits(u32 bits) {
#if ON_DEVICE
  return __uint_as_float(bits);
#else
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
#endif
}

// A half-precision number in memory. All arithmetic is in float.
struct Half {
  unsigned short bits;
};

DEVICE float to_float(float value) { return value; }

DEVICE float to_float(Half half) {
#if ON_DEVICE
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half.bits));
  return value;
#else
  const u32 sign = (u32)(half.bits & 0x8000u) << 16, exponent = half.bits >> 10 & 31u, fraction = half.bits & 1023u;
  if (exponent == 31u) return float_of_bits(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0u) return float_of_bits(sign | (exponent + 112u) << 23 | fraction << 13);
  const float small = (float)fraction * 5.9604644775390625e-8f;  // 2^-24: subnormal, or zero
  return sign ? -small : small;
#endif
}

DEVICE void store(float* target, float value) { *target = value; }

// Rounds to nearest, halves to even.
DEVICE void store(Half* target, float value) {
#if ON_DEVICE
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(target->bits) : "f"(value));
#else
  const u32 bits = bits_of_float(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  u32 half;
  if (size > 0x7f800000u) {
    half = 0x7fffu;  // not a number
  } else if (size >= 0x477ff000u) {
    half = 0x7c00u;  // 65520 and more round to infinity
  } else if (size >= 0x38800000u) {
    const u32 rounded = size + 0xfffu + (size >> 13 & 1u);
    half = (rounded - 0x38000000u) >> 13;
  } else {
    half = (u32)nearbyintf(float_of_bits(size) * 16777216.0f);  // steps of 2^-24
  }
  target->bits = (unsigned short)(sign | half);
#endif
}

template <typename T>
DEVICE T least(T first, T second) {
  return second < first ? second : first;
}

template <typename T>
DEVICE T most(T first, T second) {
  return first < second ? second : first;
}

#if ON_DEVICE
// The threads that work on one item together.
struct Block {
  int thread, threads;
  unsigned char* shared;
  DEVICE void barrier() { __syncthreads(); }
};

// Adds to a number that several threads count in, in global or in the block's memory; returns what was there.
DEVICE int add_atomically(int* target, int value) { return atomicAdd(target, value); }
#else
#if HOST_THREADS > 1
#include <pthread.h>
#endif

struct Block {
  int thread, threads;
  unsigned char* shared;
#if HOST_THREADS > 1
  pthread_barrier_t* meeting;
  void barrier() { pthread_barrier_wait(meeting); }
#else
  void barrier() {}
#endif
};

static inline int add_atomically(int* target, int value) { return __atomic_fetch_add(target, value, __ATOMIC_RELAXED); }
#endif
