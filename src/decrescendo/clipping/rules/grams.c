/* Inner products of all places of two matrices, weighed with each other: grams.py says what for. Nothing is written but
   four sums an example.

   Of G = a a^T and H = d d^T one half is computed, in tiles of which each number is a sum of LANES sums over every LANES-th
   feature: fewer additions one after another than features. Libraries multiply such small matrices at a quarter of their
   speed. Python checks all sizes before it calls (compiled.py). */

#include "kernels.h"

#define ROWS 4   /* of a tile; its columns are as many as make it one vector */
#define SIDE 32  /* rows and columns of a block of tiles */
#define RUN 256  /* features at once: those of a block lie in the second cache */

typedef float narrow __attribute__((vector_size(32), aligned(4), may_alias));
typedef float wide __attribute__((vector_size(64), aligned(4), may_alias));

/* Of one side: its numbers; how many features, and how far apart places and examples lie. A length is the root of `grown`
   times its square plus `vanished`; its error is `error` times that plus `least`. */
struct side {
    int64_t features, example, place;
    double grown, vanished, error, least;
};

struct sizes {
    int64_t batch, places;
    struct side a, d;
};

static const float zeros[RUN];

#if defined(__clang__)
#define SHUFFLE(LANES_TYPE, x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define SHUFFLE(LANES_TYPE, x, y, ...) __builtin_shuffle(x, y, (LANES_TYPE){__VA_ARGS__})
#endif
typedef int32_t narrow_places __attribute__((vector_size(32)));
typedef int32_t wide_places __attribute__((vector_size(64)));
#define NARROW_SUM(x, y)                                                                                               \
    (SHUFFLE(narrow_places, x, y, 0, 8, 1, 9, 2, 10, 3, 11) + SHUFFLE(narrow_places, x, y, 4, 12, 5, 13, 6, 14, 7, 15))
#define WIDE_SUM(x, y)                                                                                                 \
    (SHUFFLE(wide_places, x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23) +                              \
     SHUFFLE(wide_places, x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31))

/* TILE: the products of ROWS rows and `LANES / ROWS` columns, `run` features each (a multiple of LANES), added to `to`. SUM
   folds two vectors into one, whose lanes are theirs in turn: as many vectors as lanes become one, lane i of vector i.
   SQUARES: the squares of a row. */
#define FORMS(TILE, SQUARES, VECTOR, LANES, SUM)                                                                       \
    INLINE void TILE(const float *const *rows, const float *const *columns, int64_t run, float *to)                    \
    {                                                                                                                  \
        VECTOR sums[LANES] = {0};                                                                                      \
        for (int64_t k = 0; k < run; k += LANES) {                                                                     \
            VECTOR seen[LANES / ROWS];                                                                                 \
            UNROLL for (int j = 0; j < LANES / ROWS; j++) seen[j] = *(const VECTOR *)(columns[j] + k);                 \
            UNROLL for (int i = 0; i < ROWS; i++) {                                                                    \
                const VECTOR row = *(const VECTOR *)(rows[i] + k);                                                     \
                UNROLL for (int j = 0; j < LANES / ROWS; j++) sums[i * (LANES / ROWS) + j] += row * seen[j];           \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int half = LANES / 2; half; half /= 2)                                                             \
            UNROLL for (int i = 0; i < half; i++) sums[i] = SUM(sums[i], sums[i + half]);                              \
        *(VECTOR *)to += sums[0];                                                                                      \
    }                                                                                                                  \
    INLINE float SQUARES(const float *row, int64_t features)                                                           \
    {                                                                                                                  \
        VECTOR sums[4] = {0};                                                                                          \
        float found = 0;                                                                                               \
        int64_t k = 0;                                                                                                 \
        for (; k + 4 * LANES <= features; k += 4 * LANES)                                                              \
            UNROLL for (int i = 0; i < 4; i++) {                                                                       \
                const VECTOR seen = *(const VECTOR *)(row + k + i * LANES);                                            \
                sums[i] += seen * seen;                                                                                \
            }                                                                                                          \
        for (; k < features; k++)                                                                                      \
            found += row[k] * row[k];                                                                                  \
        VECTOR sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);                                                        \
        UNROLL for (int half = LANES / 2; half; half /= 2) sum = SUM(sum, sum);                                        \
        return found + sum[0];                                                                                         \
    }

FORMS(narrow_tile, narrow_squares, narrow, 8, NARROW_SUM)
FORMS(wide_tile, wide_squares, wide, 16, WIDE_SUM)

/* The tiles of a block whose first row and column these are, tile by tile. */
INLINE void products(
    const float *from, const struct side *s, int64_t places, int64_t first, int64_t second, float *to, const int lanes)
{
    const int across = lanes / ROWS;
    const float *rows[SIDE], *columns[SIDE];
    float ends[2][SIDE][16];
    __builtin_memset(to, 0, SIDE * SIDE * sizeof *to);
    for (int64_t start = 0; start < s->features;) {
        int64_t run = s->features - start < RUN ? s->features - start : RUN;
        const int is_end = run < lanes;
        run = is_end ? run : run - run % lanes;
        for (int i = 0; i < SIDE; i++) {
            rows[i] = first + i < places ? from + (first + i) * s->place + start : zeros;
            columns[i] = second + i < places ? from + (second + i) * s->place + start : zeros;
            if (is_end) { /* of less than a vector: with zeros behind it */
                __builtin_memset(ends[0][i], 0, sizeof ends[0][i]);
                __builtin_memset(ends[1][i], 0, sizeof ends[1][i]);
                rows[i] = __builtin_memcpy(ends[0][i], rows[i], (size_t)run * sizeof(float));
                columns[i] = __builtin_memcpy(ends[1][i], columns[i], (size_t)run * sizeof(float));
            }
        }
        for (int i = 0; i < SIDE && first + i < places; i += ROWS)
            for (int j = first == second ? i : 0; j < SIDE && second + j < places; j += across) {
                float *tile = to + i * SIDE + j * ROWS;
                if (lanes == 16)
                    wide_tile(rows + i, columns + j, is_end ? lanes : run, tile);
                else
                    narrow_tile(rows + i, columns + j, is_end ? lanes : run, tile);
            }
        start += run;
    }
}

/* Of SIDE places from `first` on: bounds on their lengths, and on the errors of these. */
INLINE void measure(
    const float *from, const struct side *s, int64_t places, int64_t first, double *sizes, float *errors, const int lanes)
{
    for (int64_t i = 0; i < SIDE; i++) {
        sizes[i] = errors[i] = 0;
        if (first + i < places) {
            const float *row = from + (first + i) * s->place;
            const double square = lanes == 16 ? wide_squares(row, s->features) : narrow_squares(row, s->features);
            sizes[i] = __builtin_sqrt(square * s->grown + s->vanished);
            errors[i] = (float)(sizes[i] * s->error + s->least);
        }
    }
}

/* sum G H; the sum of g_s g_t |H_st| and h_s h_t |G_st|; sum g_s h_s; the sum of the products of lengths. */
INLINE void example(const float *a, const float *d, const struct sizes *s, double *found, const int lanes)
{
    const int across = lanes / ROWS;
    float first[SIDE * SIDE], second[SIDE * SIDE], g[SIDE], h[SIDE], left[SIDE * ROWS], right[SIDE * ROWS];
    double sizes[2][SIDE];
    for (int i = 0; i < 4; i++)
        found[i] = 0;
    for (int64_t column = 0; column < s->places; column += SIDE) {
        measure(a, &s->a, s->places, column, sizes[0], g, lanes);
        measure(d, &s->d, s->places, column, sizes[1], h, lanes);
        for (int i = 0; i < SIDE; i++) {
            found[2] += (double)g[i] * h[i];
            found[3] += sizes[0][i] * sizes[1][i];
        }
        for (int i = 0; i < SIDE * ROWS; i++) { /* of every number of a row of tiles, that of its column */
            left[i] = g[i / lanes * across + i % across];
            right[i] = h[i / lanes * across + i % across];
        }
        for (int64_t row = column; row >= 0; row -= SIDE) {
            products(a, &s->a, s->places, row, column, first, lanes);
            products(d, &s->d, s->places, row, column, second, lanes);
            if (row != column) {
                measure(a, &s->a, s->places, row, sizes[0], g, lanes);
                measure(d, &s->d, s->places, row, sizes[1], h, lanes);
            }
            for (int i = 0; i < SIDE && row + i < s->places; i += ROWS) {
                /* Tiles on the diagonal count once, those beside it for those across it, too. */
                double sums[16] = {0};
                float by_a[16] = {0}, by_d[16] = {0};
                const int begin = row == column ? i : 0;
                for (int j = begin; j < SIDE && column + j < s->places; j += across) {
                    const float *G = first + i * SIDE + j * ROWS, *H = second + i * SIDE + j * ROWS;
                    const float twice = row == column && j < i + ROWS ? 1 : 2;
                    for (int l = 0; l < lanes; l++) {
                        sums[l] += (double)(twice * G[l]) * H[l];
                        by_a[l] += __builtin_fabsf(twice * H[l]) * left[j * ROWS + l];
                        by_d[l] += __builtin_fabsf(twice * G[l]) * right[j * ROWS + l];
                    }
                }
                for (int l = 0; l < lanes; l++) {
                    found[0] += sums[l];
                    found[1] += (double)by_a[l] * g[i + l / across] + (double)by_d[l] * h[i + l / across];
                }
            }
        }
    }
}

typedef void version(const float *, const float *, const struct sizes *, double *);

/* One version for each kind of processor. */
#if defined(__x86_64__)
AVX512 static void with_avx512(const float *a, const float *d, const struct sizes *s, double *found)
{
    example(a, d, s, found, 16);
}

AVX2 static void with_avx2(const float *a, const float *d, const struct sizes *s, double *found)
{
    example(a, d, s, found, 8);
}
#endif

static void with_any(const float *a, const float *d, const struct sizes *s, double *found)
{
    example(a, d, s, found, 8);
}

struct call {
    double *found;
    const float *a, *d;
    const struct sizes *sizes;
    version *version;
    int64_t next;
};

static void work(void *data)
{
    struct call *call = data;
    const struct sizes *s = call->sizes;
    for (;;) {
        const int64_t b = __atomic_fetch_add(&call->next, 1, __ATOMIC_RELAXED);
        if (b >= s->batch)
            return;
        call->version(call->a + b * s->a.example, call->d + b * s->d.example, s, call->found + 4 * b);
    }
}

/* found (batch, 4); a and d as sizes say. `parallel`: kernels.h. The name has the hash of this file and its header in it,
   given by the compiler's command line: a library built from any other is not called. */
void GRAMS(
    double *found, const float *a, const float *d, const struct sizes *sizes, runtime *parallel, unsigned threads,
    unsigned best)
{
    struct call call = {found, a, d, sizes, VERSION_OF(best, with_avx512, with_avx2, with_any), 0};
    on_threads(parallel, threads, work, &call);
}
