/* Banded noise, the two walks around the Gaussian: before it a weighted sum of earlier noise, after it the release.
   banded.py says what that is. All noise is in units of its grid: whole numbers, and the weights multiples of 2^-m with
   so few digits that no sum here is rounded (banded.py counts them). So the order of the sum does not matter, and results
   are the same on every processor. */

#include <stddef.h>
#include <stdint.h>

#include "processor.h"

#define INLINE static inline __attribute__((always_inline))
/* Numbers summed together: they stay in the first cache while the arrays of earlier noise pass by one after another. */
#define BLOCK 2048

/* to[i] = -sum_k weights[k] earlier[k][i] */
INLINE void weighted(const int32_t *const *earlier, const double *weights, int64_t bands, double *to, int64_t count)
{
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t size = count - start < BLOCK ? count - start : BLOCK;
        double *restrict sum = to + start;
        __builtin_memset(sum, 0, (size_t)size * sizeof *sum);
        int64_t k = 0;
        for (; k + 4 <= bands; k += 4) {
            const int32_t *restrict a = earlier[k] + start, *restrict b = earlier[k + 1] + start;
            const int32_t *restrict c = earlier[k + 2] + start, *restrict d = earlier[k + 3] + start;
            const double *w = weights + k, wa = w[0], wb = w[1], wc = w[2], wd = w[3];
            for (int64_t i = 0; i < size; i++)
                sum[i] -= (wa * a[i] + wb * b[i]) + (wc * c[i] + wd * d[i]);
        }
        for (; k < bands; k++) {
            const int32_t *restrict a = earlier[k] + start;
            const double wa = weights[k];
            for (int64_t i = 0; i < size; i++)
                sum[i] -= wa * a[i];
        }
    }
}

/* to[i] = (round(from[i] per_unit) + noise[i]) back */
#define RELEASE(NAME, REAL)                                                                                            \
    INLINE void NAME(const int32_t *noise, const REAL *from, REAL *to, int64_t count, double per_unit, double back)    \
    {                                                                                                                  \
        for (int64_t i = 0; i < count; i++)                                                                            \
            to[i] = (REAL)((__builtin_rint((double)from[i] * per_unit) + (double)noise[i]) * back);                    \
    }
RELEASE(release_float, float)
RELEASE(release_double, double)

/* One version for each kind of processor. */
#define VERSION(NAME, TARGET)                                                                                          \
    TARGET static void NAME(const int32_t *const *earlier, const double *weights, int64_t bands, double *sums,         \
                            const int32_t *noise, const void *from, void *to, int64_t count, double per_unit,          \
                            double back, unsigned wide)                                                                \
    {                                                                                                                  \
        if (sums)                                                                                                      \
            weighted(earlier, weights, bands, sums, count);                                                            \
        else if (wide)                                                                                                 \
            release_double(noise, from, to, count, per_unit, back);                                                    \
        else                                                                                                           \
            release_float(noise, from, to, count, per_unit, back);                                                     \
    }
#if defined(__x86_64__)
VERSION(with_avx512, __attribute__((target("avx512f,avx512vl,avx512dq,fma"))))
VERSION(with_avx2, __attribute__((target("avx2,fma"))))
#endif
VERSION(with_any, )

/* With `sums`: these, of `bands` arrays of earlier noise. Without: `to` from `noise` and `from`, float or double
   (`wide`). `best`: as in gaussian.c, and so is the name. */
void BANDED(
    const int32_t *const *earlier, const double *weights, int64_t bands, double *sums, const int32_t *noise,
    const void *from, void *to, int64_t count, double per_unit, double back, unsigned wide, unsigned best)
{
#if defined(__x86_64__)
    if (best >= 2 && versions_here() >= 2)
        with_avx512(earlier, weights, bands, sums, noise, from, to, count, per_unit, back, wide);
    else if (best >= 1 && versions_here() >= 1)
        with_avx2(earlier, weights, bands, sums, noise, from, to, count, per_unit, back, wide);
    else
#else
    (void)best;
#endif
        with_any(earlier, weights, bands, sums, noise, from, to, count, per_unit, back, wide);
}
