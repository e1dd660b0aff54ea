/* Gradients of lookups: sums of rows over equal ids within an example, and their weighted sum over examples.

   sums[b, n] = sum of d[b, s] over the places s of example b with its n-th distinct id
   total[id]  = sum over examples b of factors[b] sums[b, n], where the n-th distinct id of b is id

   Sorting ids and adding rows by index reads and writes what is here read once. Ids are counted in the order in which
   they occur. Python checks all sizes before it calls (segments.py); ids are looked at here. */

#include "kernels.h"

#define LANES 8 /* Sums of squares side by side: their order is the same on every processor. */

struct sizes {
    int64_t batch, places, dim, words;
    int64_t padding;            /* an id whose rows count for nothing; -1: none */
    int64_t d_example, d_place; /* how far apart rows of d lie; their numbers lie side by side */
    int64_t slots;              /* of a table, a power of two above `places` */
};

struct call {
    const struct sizes *sizes;
    const int64_t *ids;
    const float *d;
    const float *factors;
    float *sums;
    int64_t *distinct, *counts;
    double *squares;
    float *total;
    int64_t *tables; /* for each thread `slots` ids and `slots` numbers */
    void (*version)(struct call *, int64_t, int64_t *);
    int64_t shares, next, thread;
};

/* One example: its distinct ids, their sums, and the sum of the squares of these. */
INLINE void example(struct call *call, int64_t b, int64_t *table)
{
    const struct sizes *s = call->sizes;
    const int64_t dim = s->dim, mask = s->slots - 1, *ids = call->ids + b * s->places;
    int64_t *numbers = table + s->slots, *distinct = call->distinct + b * s->places, count = 0;
    float *sums = call->sums + b * s->places * dim;
    for (int64_t k = 0; k < s->slots; k++)
        table[k] = -1;
    call->counts[b] = -1;
    for (int64_t place = 0; place < s->places; place++) {
        const int64_t id = ids[place];
        if (id < 0 || id >= s->words)
            return;
        if (id == s->padding)
            continue;
        const float *restrict from = call->d + b * s->d_example + place * s->d_place;
        int64_t k = (int64_t)(((uint64_t)id * 0x9E3779B97F4A7C15u) >> 32) & mask;
        while (table[k] != -1 && table[k] != id)
            k = (k + 1) & mask;
        if (table[k] == -1) {
            table[k] = id;
            numbers[k] = count;
            distinct[count] = id;
            __builtin_memcpy(sums + count++ * dim, from, sizeof(float) * (size_t)dim);
        } else {
            float *restrict to = sums + numbers[k] * dim;
            for (int64_t j = 0; j < dim; j++)
                to[j] += from[j];
        }
    }
    /* (The square of a float has no rounding in double.) */
    double lanes[LANES] = {0};
    int64_t j = 0;
    for (; j + LANES <= count * dim; j += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] += (double)sums[j + lane] * (double)sums[j + lane];
    for (int lane = 0; j < count * dim; j++, lane++)
        lanes[lane] += (double)sums[j] * (double)sums[j];
    double squares = 0;
    for (int lane = 0; lane < LANES; lane++)
        squares += lanes[lane];
    call->squares[b] = squares;
    call->counts[b] = count;
}

/* A share of the words: each gets its examples one after another, whoever works beside. */
INLINE void words(struct call *call, int64_t share)
{
    const struct sizes *s = call->sizes;
    const int64_t dim = s->dim, first = s->words * share / call->shares, end = s->words * (share + 1) / call->shares;
    for (int64_t b = 0; b < s->batch; b++) {
        const float factor = call->factors[b], *sums = call->sums + b * s->places * dim;
        const int64_t *distinct = call->distinct + b * s->places;
        for (int64_t n = 0; n < call->counts[b]; n++) {
            if (distinct[n] < first || distinct[n] >= end)
                continue;
            float *restrict to = call->total + distinct[n] * dim;
            const float *restrict from = sums + n * dim;
            for (int64_t j = 0; j < dim; j++)
                to[j] += factor * from[j];
        }
    }
}

/* One version for each kind of processor. */
#define VERSION(NAME, TARGET)                                                                                          \
    TARGET static void NAME(struct call *call, int64_t item, int64_t *table)                                           \
    {                                                                                                                  \
        if (call->total)                                                                                               \
            words(call, item);                                                                                         \
        else                                                                                                           \
            example(call, item, table);                                                                                \
    }
#if defined(__x86_64__)
VERSION(with_avx512, AVX512)
VERSION(with_avx2, AVX2)
#endif
VERSION(with_any, )

static void work(void *data)
{
    struct call *call = data;
    const struct sizes *s = call->sizes;
    const int64_t items = call->total ? call->shares : s->batch;
    int64_t *table = 0;
    if (!call->total)
        table = call->tables + 2 * s->slots * __atomic_fetch_add(&call->thread, 1, __ATOMIC_RELAXED);
    for (;;) {
        const int64_t item = __atomic_fetch_add(&call->next, 1, __ATOMIC_RELAXED);
        if (item >= items)
            return;
        call->version(call, item, table);
    }
}

/* Without `total`: sums (batch, places, dim), distinct (batch, places) and of both the first counts (batch), squares
   (batch) from ids (batch, places) and d; tables has room for `threads`. With it: total (words, dim), which it adds to,
   from sums, distinct, counts and factors (batch). An id that is no word makes its example's count -1. `parallel`:
   kernels.h. The name has the hash of this file and its header in it, given by the compiler's command line: a library
   built from any other is not called. */
void SEGMENTS(
    const int64_t *ids, const float *d, const float *factors, float *sums, int64_t *distinct, int64_t *counts,
    double *squares, float *total, int64_t *tables, const struct sizes *sizes, runtime *parallel, unsigned threads,
    unsigned best)
{
    struct call call = {
        sizes, ids, d, factors, sums, distinct, counts, squares, total, tables,
        VERSION_OF(best, with_avx512, with_avx2, with_any), threads, 0, 0};
    on_threads(parallel, threads, work, &call);
}
