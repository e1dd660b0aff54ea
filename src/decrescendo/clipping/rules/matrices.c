/* Per-example products of two matrices that many places have in common, and their squared norms.

   g[b, o, f] = sum_t d[b, t, o] a[b, t, f]

   Libraries multiply such batches at a third to two thirds of their speed, for each product is small and its sum over t
   short. Here a block of both sides is copied side by side first, and each number of g is written once where t is short.
   Python checks all sizes before it calls (compiled.py). */

#include "kernels.h"

/* Outputs of a tile, at most, and vectors of its features: as many sums as registers hold. */
#define ROWS 6
#define VECTORS 4
#define PLACES 128
#define OUTPUTS 128 /* of a block */

typedef float narrow __attribute__((vector_size(32), aligned(4), may_alias));
typedef float wide __attribute__((vector_size(64), aligned(4), may_alias));

struct sizes {
    int64_t batch, places, features, outputs;
    /* How far apart the numbers of a and d lie; those of a in one place lie side by side. */
    int64_t a_example, a_place, d_example, d_place, d_output;
};

/* g of a tile, `most` outputs and `count` vectors of features, added to what is there if there is `more`: of `rows` and
   `width` only. Where it is the `last`, the sums of its squares: at most 64 are added in float. */
#define TILE(NAME, VECTOR, LANES)                                                                                      \
    INLINE double NAME(const float *a, const float *d, float *g, int64_t places, int64_t features, int64_t rows,       \
                       int64_t width, int more, int last, const int most, const int count)                             \
    {                                                                                                                  \
        VECTOR sums[ROWS][VECTORS] = {0}, squares = {0};                                                               \
        for (int64_t place = 0; place < places; place++, a += count * LANES, d += most) {                              \
            VECTOR seen[VECTORS];                                                                                      \
            UNROLL for (int j = 0; j < count; j++) seen[j] = *(const VECTOR *)(a + j * LANES);                         \
            UNROLL for (int i = 0; i < most; i++)                                                                      \
                UNROLL for (int j = 0; j < count; j++) sums[i][j] += d[i] * seen[j];                                   \
        }                                                                                                              \
        if (rows == most && width == count * LANES) {                                                                  \
            UNROLL for (int i = 0; i < most; i++)                                                                      \
                UNROLL for (int j = 0; j < count; j++) {                                                               \
                    VECTOR *to = (VECTOR *)(g + i * features + j * LANES);                                             \
                    VECTOR sum = sums[i][j];                                                                           \
                    if (more)                                                                                          \
                        sum += *to;                                                                                    \
                    *to = sum;                                                                                         \
                    squares += sum * sum;                                                                              \
                }                                                                                                      \
        } else {                                                                                                       \
            /* Side by side, so that only constants index the sums: these stay in registers. */                        \
            float lines[ROWS * VECTORS * LANES];                                                                       \
            UNROLL for (int i = 0; i < most; i++)                                                                      \
                UNROLL for (int j = 0; j < count; j++)                                                                 \
                    *(VECTOR *)(lines + (i * count + j) * LANES) = sums[i][j];                                         \
            for (int i = 0; i < rows; i++) {                                                                           \
                float *line = lines + i * count * LANES;                                                               \
                for (int64_t f = 0; f < count * LANES; f++)                                                            \
                    line[f] = f >= width ? 0 : more ? line[f] + g[i * features + f] : line[f];                         \
                __builtin_memcpy(g + i * features, line, sizeof(float) * (size_t)width);                               \
                UNROLL for (int j = 0; j < count; j++) {                                                               \
                    VECTOR sum = *(const VECTOR *)(line + j * LANES);                                                  \
                    squares += sum * sum;                                                                              \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        double found = 0;                                                                                              \
        if (last)                                                                                                      \
            for (int lane = 0; lane < LANES; lane++)                                                                   \
                found += squares[lane];                                                                                \
        return found;                                                                                                  \
    }

TILE(narrow_tile, narrow, 8)
TILE(wide_tile, wide, 16)
_Static_assert(ROWS * VECTORS <= BLOCK, "more squares are added in float than the bound on their rounding allows");

/* Outputs of the next tile of so many that are left: 6 where registers hold them, and 4 where these leave none over. */
INLINE int64_t height(int64_t left, const int tall)
{
    return tall == 4 || left < 6 || left % 6 == 2 || left % 6 == 4 ? 4 : 6;
}

/* One block of outputs of one example; the sum of its squares. `most` vectors and `tall` outputs are a tile. */
INLINE double block(
    float *g, const float *a, const float *d, const struct sizes *s, int64_t first, const int lanes, const int most,
    const int tall)
{
    float left[PLACES * (OUTPUTS + ROWS)], right[PLACES * VECTORS * 16];
    const int64_t outputs = s->outputs - first < OUTPUTS ? s->outputs - first : OUTPUTS;
    double squares = 0;
    g += first * s->features;
    d += first * s->d_output;
    for (int64_t start = 0; start < s->places; start += PLACES) {
        const int64_t places = s->places - start < PLACES ? s->places - start : PLACES;
        const int more = start > 0, last = start + places == s->places;
        for (int64_t o = 0; o < outputs; o += height(outputs - o, tall)) {
            const int64_t rows = height(outputs - o, tall);
            const float *from = d + start * s->d_place + o * s->d_output;
            float *to = left + o * places;
            for (int64_t t = 0; t < places; t++, from += s->d_place, to += rows) {
                if (s->d_output == 1 && o + rows <= outputs && rows == 6)
                    __builtin_memcpy(to, from, 6 * sizeof(float));
                else if (s->d_output == 1 && o + rows <= outputs)
                    __builtin_memcpy(to, from, 4 * sizeof(float));
                else
                    for (int64_t i = 0; i < rows; i++)
                        to[i] = o + i < outputs ? from[i * s->d_output] : 0;
            }
        }
        for (int64_t f = 0; f < s->features;) {
            const int64_t left_over = s->features - f, vectors = (left_over + lanes - 1) / lanes;
            const int count = vectors < most ? (int)vectors : most;
            const int64_t run = count * lanes, width = left_over < run ? left_over : run;
            for (int64_t t = 0; t < places; t++) {
                const float *from = a + (start + t) * s->a_place + f;
                if (width == run && count == most)
                    __builtin_memcpy(right + t * run, from, sizeof(float) * (size_t)(most * lanes));
                else if (width == run)
                    __builtin_memcpy(right + t * run, from, sizeof(float) * (size_t)run);
                else
                    for (int64_t k = 0; k < run; k++)
                        right[t * run + k] = k < width ? from[k] : 0;
            }
            for (int64_t o = 0; o < outputs; o += height(outputs - o, tall)) {
                const int64_t high = height(outputs - o, tall), rows = outputs - o < high ? outputs - o : high;
                float *to = g + o * s->features + f;
                const float *part = left + o * places;
#define OF(HIGH, COUNT)                                                                                                \
    squares += lanes == 16                                                                                             \
                   ? wide_tile(right, part, to, places, s->features, rows, width, more, last, HIGH, COUNT)             \
                   : narrow_tile(right, part, to, places, s->features, rows, width, more, last, HIGH, COUNT)
                if (most == 4 && count == 4)
                    OF(4, 4);
                else if (most == 4 && count == 3)
                    OF(4, 3);
                else if (tall == 6 && high == 6 && count == 2)
                    OF(6, 2);
                else if (tall == 6 && high == 6)
                    OF(6, 1);
                else if (count == 2)
                    OF(4, 2);
                else
                    OF(4, 1);
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
    return block(g, a, d, s, first, 16, 4, 4);
}

AVX2 static double with_avx2(
    float *g, const float *a, const float *d, const struct sizes *s, int64_t first)
{
    return block(g, a, d, s, first, 8, 2, 6);
}
#endif

static double with_any(float *g, const float *a, const float *d, const struct sizes *s, int64_t first)
{
    return block(g, a, d, s, first, 8, 2, 4);
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
