/* Per-example products of two matrices that many places have in common, and their squared norms.

   g[b, o, f] = sum_t d[b, t, o] a[b, t, f]

   Libraries multiply such batches at a third to two thirds of their speed, for each product is small and its sum over t
   short. Here a block of both sides is copied side by side first, and each number of g is written once where t is short.
   Python checks all sizes before it calls (compiled.py). */

#include "kernels.h"

#define ROWS 4    /* outputs of a tile */
#define VECTORS 4 /* of features of a tile, at most */
#define PLACES 128
#define OUTPUTS 128 /* of a block */

typedef float narrow __attribute__((vector_size(32), aligned(4), may_alias));
typedef float wide __attribute__((vector_size(64), aligned(4), may_alias));

struct sizes {
    int64_t batch, places, features, outputs;
    /* How far apart the numbers of a and d lie; those of a in one place lie side by side. */
    int64_t a_example, a_place, d_example, d_place, d_output;
};

/* g of a tile, ROWS outputs and `count` vectors of features, added to what is there if there is `more`: of `rows` and
   `width` only. Where it is the `last`, the sums of its squares: at most 64 are added in float. */
#define TILE(NAME, VECTOR, LANES)                                                                                      \
    INLINE double NAME(const float *a, const float *d, float *g, int64_t places, int64_t features, int64_t rows,       \
                       int64_t width, int more, int last, const int count)                                             \
    {                                                                                                                  \
        VECTOR sums[ROWS][VECTORS] = {0}, squares = {0};                                                               \
        for (int64_t place = 0; place < places; place++, a += count * LANES, d += ROWS) {                              \
            VECTOR seen[VECTORS];                                                                                      \
            UNROLL for (int j = 0; j < count; j++) seen[j] = *(const VECTOR *)(a + j * LANES);                         \
            UNROLL for (int i = 0; i < ROWS; i++)                                                                      \
                UNROLL for (int j = 0; j < count; j++) sums[i][j] += d[i] * seen[j];                                   \
        }                                                                                                              \
        if (rows == ROWS && width == count * LANES) {                                                                  \
            UNROLL for (int i = 0; i < ROWS; i++)                                                                      \
                UNROLL for (int j = 0; j < count; j++) {                                                               \
                    VECTOR *to = (VECTOR *)(g + i * features + j * LANES);                                             \
                    VECTOR sum = sums[i][j];                                                                           \
                    if (more)                                                                                          \
                        sum += *to;                                                                                    \
                    *to = sum;                                                                                         \
                    squares += sum * sum;                                                                              \
                }                                                                                                      \
        } else                                                                                                         \
            for (int i = 0; i < rows; i++) {                                                                           \
                float line[VECTORS * LANES] = {0};                                                                     \
                for (int64_t f = 0; f < width; f++)                                                                    \
                    g[i * features + f] = line[f] = sums[i][f / LANES][f % LANES] + (more ? g[i * features + f] : 0);  \
                UNROLL for (int j = 0; j < count; j++) {                                                               \
                    VECTOR sum = *(const VECTOR *)(line + j * LANES);                                                  \
                    squares += sum * sum;                                                                              \
                }                                                                                                      \
            }                                                                                                          \
        double found = 0;                                                                                              \
        if (last)                                                                                                      \
            for (int lane = 0; lane < LANES; lane++)                                                                   \
                found += squares[lane];                                                                                \
        return found;                                                                                                  \
    }

TILE(narrow_tile, narrow, 8)
TILE(wide_tile, wide, 16)
_Static_assert(ROWS * VECTORS <= BLOCK, "more squares are added in float than the bound on their rounding allows");

/* One block of outputs of one example; the sum of its squares. */
INLINE double block(
    float *g, const float *a, const float *d, const struct sizes *s, int64_t first, const int lanes, const int most)
{
    float left[PLACES * OUTPUTS], right[PLACES * VECTORS * 16];
    const int64_t outputs = s->outputs - first < OUTPUTS ? s->outputs - first : OUTPUTS;
    double squares = 0;
    g += first * s->features;
    d += first * s->d_output;
    for (int64_t start = 0; start < s->places; start += PLACES) {
        const int64_t places = s->places - start < PLACES ? s->places - start : PLACES;
        const int more = start > 0, last = start + places == s->places;
        for (int64_t o = 0; o < outputs; o += ROWS)
            for (int64_t t = 0; t < places; t++)
                for (int64_t i = 0; i < ROWS; i++)
                    left[o * places + t * ROWS + i] =
                        o + i < outputs ? d[(start + t) * s->d_place + (o + i) * s->d_output] : 0;
        for (int64_t f = 0; f < s->features;) {
            const int64_t left_over = s->features - f, vectors = (left_over + lanes - 1) / lanes;
            const int count = vectors < most ? (int)vectors : most;
            const int64_t run = count * lanes, width = left_over < run ? left_over : run;
            for (int64_t t = 0; t < places; t++) {
                const float *from = a + (start + t) * s->a_place + f;
                if (width == run)
                    __builtin_memcpy(right + t * run, from, sizeof(float) * (size_t)run);
                else
                    for (int64_t k = 0; k < run; k++)
                        right[t * run + k] = k < width ? from[k] : 0;
            }
            for (int64_t o = 0; o < outputs; o += ROWS) {
                const int64_t rows = outputs - o < ROWS ? outputs - o : ROWS;
                float *to = g + o * s->features + f;
                const float *part = left + o * places;
#define OF(COUNT)                                                                                                      \
    squares += lanes == 16 ? wide_tile(right, part, to, places, s->features, rows, width, more, last, COUNT)           \
                           : narrow_tile(right, part, to, places, s->features, rows, width, more, last, COUNT)
                if (most == 4 && count == 4)
                    OF(4);
                else if (most == 4 && count == 3)
                    OF(3);
                else if (count == 2)
                    OF(2);
                else
                    OF(1);
#undef OF
            }
            f += run;
        }
    }
    return squares;
}

typedef double version(float *, const float *, const float *, const struct sizes *, int64_t);

/* One version for each kind of processor; as many vectors at once as its registers hold. */
#if defined(__x86_64__)
AVX512 static double with_avx512(
    float *g, const float *a, const float *d, const struct sizes *s, int64_t first)
{
    return block(g, a, d, s, first, 16, 4);
}

AVX2 static double with_avx2(
    float *g, const float *a, const float *d, const struct sizes *s, int64_t first)
{
    return block(g, a, d, s, first, 8, 2);
}
#endif

static double with_any(float *g, const float *a, const float *d, const struct sizes *s, int64_t first)
{
    return block(g, a, d, s, first, 8, 2);
}

struct call {
    float *found;
    double *squares;
    const float *a, *d;
    const struct sizes *sizes;
    version *version;
    int64_t next;
};

static void work(void *data)
{
    struct call *call = data;
    const struct sizes *s = call->sizes;
    const int64_t blocks = (s->outputs + OUTPUTS - 1) / OUTPUTS;
    for (;;) {
        const int64_t item = __atomic_fetch_add(&call->next, 1, __ATOMIC_RELAXED);
        if (item >= s->batch * blocks)
            return;
        const int64_t b = item / blocks;
        call->squares[item] = call->version(call->found + b * s->outputs * s->features, call->a + b * s->a_example,
                                            call->d + b * s->d_example, s, item % blocks * OUTPUTS);
    }
}

/* found (batch, outputs, features); squares (batch, blocks of outputs); a and d as sizes say. `parallel`: kernels.h. The
   name has the hash of this file and its header in it, given by the compiler's command line: a library built from any
   other is not called. */
void MATRICES(
    float *found, double *squares, const float *a, const float *d, const struct sizes *sizes,
    runtime *parallel, unsigned threads, unsigned best)
{
    struct call call = {found, squares, a, d, sizes, VERSION_OF(best, with_avx512, with_avx2, with_any), 0};
    on_threads(parallel, threads, work, &call);
}
