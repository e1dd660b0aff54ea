/* What matrices.c and products.c have in common. */

#include <stddef.h>
#include <stdint.h>

#include "../../base/rng/processor.h"

/* Squares that are added in float, a lane: as rule.py's _BLOCK, whose bound on the rounding is then true here. */
#define BLOCK 64

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

#define INLINE static inline __attribute__((always_inline))

/* The best version that this processor has, and no better than 2 (AVX-512), 1 (AVX2), 0. */
#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f,avx512vl,fma")))
#define AVX2 __attribute__((target("avx2,fma")))
#define VERSION_OF(best, with_avx512, with_avx2, with_any)                                                             \
    ((best) >= 2 && versions_here() >= 2   ? with_avx512                                                               \
     : (best) >= 1 && versions_here() >= 1 ? with_avx2                                                                 \
                                           : with_any)
#else
#define VERSION_OF(best, with_avx512, with_avx2, with_any) ((void)(best), with_any)
#endif

/* GOMP_parallel of the OpenMP runtime that torch computes with, so that its threads do the work and no others fight
   them; without one this thread does it. */
typedef void runtime(void (*)(void *), void *, unsigned, unsigned);

INLINE void on_threads(runtime *parallel, unsigned threads, void (*work)(void *), void *call)
{
    if (parallel && threads > 1)
        parallel(work, call, threads, 0);
    else
        work(call);
}
