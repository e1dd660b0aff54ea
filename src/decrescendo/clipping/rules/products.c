/* Per-example weight gradients of 2-D convolutions, and their squared norms.

   g[b, o, ky, kx, c] = sum_{y,x} d[b, o, y, x] * image[b, y * down + ky, x * across + kx, c]

   For one ky the numbers (kx, c) of an image with its channels last lie side by side: a run, read as it lies. So no
   patch is copied, and each number of g is written once. A run is worked on in vectors of eight; the last one of a run
   may reach beyond it, and what it finds there is thrown away. Python checks all sizes before it calls (compiled.py). */

#include "kernels.h"

#define LANES 8
#define OUTPUTS 4
typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

struct sizes {
    int64_t batch, high, wide, channels; /* of the images, zeros round them counted */
    int64_t outputs, kernel_high, kernel_wide, down, across;
    int64_t ys, xs; /* places of d: (high - kernel_high) / down + 1, and likewise */
    int64_t by_output, by_place; /* how far apart the numbers of d lie */
};

/* Some vectors of columns: where their numbers start in an image and in g, and how many of their lanes count. */
struct columns {
    const float *from[4];
    float *to[4];
    int64_t lanes[4];
};

/* g of `rows` outputs in `count` vectors of columns; gives the sums of their squares, rows * count a lane. */
INLINE vector tile(
    const struct columns *at, int64_t output, const float *d, const struct sizes *s, const int rows, const int count)
{
    const int64_t step = s->down * s->wide * s->channels, by = s->across * s->channels;
    const int64_t size = s->kernel_high * s->kernel_wide * s->channels;
    vector sums[OUTPUTS][4] = {0}, squares[4] = {0};
    d += output * s->by_output;
    /* One loop over all places: two nested ones end too often for the processor to foresee. */
    const int64_t turn = step - (s->xs - 1) * by;
    for (int64_t left = s->ys * s->xs, x = s->xs, place = 0; left > 0; left--, d += s->by_place) {
        vector seen[4];
        UNROLL for (int j = 0; j < count; j++)
            seen[j] = *(const vector *)(at->from[j] + place);
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int j = 0; j < count; j++)
                sums[i][j] += d[i * s->by_output] * seen[j];
        x--;
        place += x ? by : turn;
        x = x ? x : s->xs;
    }
    UNROLL for (int j = 0; j < count; j++)
        UNROLL for (int i = 0; i < rows; i++) {
            float *to = at->to[j] + (output + i) * size;
            vector sum = sums[i][j];
            if (at->lanes[j] == LANES)
                *(vector *)to = sum;
            else {
                float lanes[LANES] = {0};
                __builtin_memcpy(lanes, &sum, sizeof(float) * (size_t)at->lanes[j]);
                __builtin_memcpy(to, &sum, sizeof(float) * (size_t)at->lanes[j]);
                sum = *(const vector *)lanes;
            }
            squares[j] += sum * sum;
        }
    return (squares[0] + squares[1]) + (squares[2] + squares[3]);
}

INLINE double total(vector squares)
{
    double found = 0;
    for (int lane = 0; lane < LANES; lane++)
        found += squares[lane];
    return found;
}

/* All outputs in `count` vectors of columns. */
INLINE double strip(
    const struct columns *at, const float *d, const struct sizes *s, const int count)
{
    double found = 0;
    vector squares = {0};
    int64_t output = 0, added = 0;
    for (; output + OUTPUTS <= s->outputs; output += OUTPUTS) {
        squares += tile(at, output, d, s, OUTPUTS, count);
        if ((added += OUTPUTS * count) + OUTPUTS * count > BLOCK) {
            found += total(squares);
            squares = (vector){0};
            added = 0;
        }
    }
    found += total(squares);
    for (; output < s->outputs; output++)
        found += total(tile(at, output, d, s, 1, count));
    return found;
}

INLINE void examples(
    float *found, double *squares, const float *images, const float *d, const struct sizes *s, const int most)
{
    const int64_t run = s->kernel_wide * s->channels, vectors = (run + LANES - 1) / LANES;
    for (int64_t b = 0; b < s->batch; b++) {
        double sum = 0;
        struct columns at;
        int count = 0;
        for (int64_t ky = 0; ky < s->kernel_high; ky++)
            for (int64_t v = 0; v < vectors; v++) {
                at.from[count] = images + ky * s->wide * s->channels + v * LANES;
                at.to[count] = found + ky * run + v * LANES;
                at.lanes[count] = run - v * LANES < LANES ? run - v * LANES : LANES;
                if (++count == most) {
                    sum += strip(&at, d, s, most);
                    count = 0;
                }
            }
        for (int rest = 0; rest < count; rest++) {
            const struct columns one = {{at.from[rest]}, {at.to[rest]}, {at.lanes[rest]}};
            sum += strip(&one, d, s, 1);
        }
        squares[b] = sum;
        found += s->outputs * s->kernel_high * run;
        images += s->high * s->wide * s->channels;
        d += s->outputs * s->ys * s->xs;
    }
}

/* One version for each kind of processor; as many vectors at once as its registers hold. */
#if defined(__x86_64__)
AVX512 static void with_avx512(
    float *found, double *squares, const float *images, const float *d, const struct sizes *s)
{
    examples(found, squares, images, d, s, 4);
}

AVX2 static void with_avx2(
    float *found, double *squares, const float *images, const float *d, const struct sizes *s)
{
    examples(found, squares, images, d, s, 2);
}
#endif

static void with_any(float *found, double *squares, const float *images, const float *d, const struct sizes *s)
{
    examples(found, squares, images, d, s, 2);
}

typedef void version(float *, double *, const float *, const float *, const struct sizes *);

struct call {
    float *found;
    double *squares;
    const float *images, *d;
    const struct sizes *sizes;
    version *version;
    int64_t next;
};

/* Examples a thread takes at once. */
#define TAKEN 8

static void work(void *data)
{
    struct call *call = data;
    struct sizes s = *call->sizes;
    const int64_t batch = s.batch, columns = s.kernel_high * s.kernel_wide * s.channels;
    for (;;) {
        const int64_t start = __atomic_fetch_add(&call->next, TAKEN, __ATOMIC_RELAXED);
        if (start >= batch)
            return;
        s.batch = batch - start < TAKEN ? batch - start : TAKEN;
        call->version(call->found + start * s.outputs * columns, call->squares + start,
                      call->images + start * s.high * s.wide * s.channels, call->d + start * s.outputs * s.ys * s.xs,
                      &s);
    }
}

/* found (batch, outputs, kernel_high, kernel_wide, channels); squares (batch); images (batch, high, wide, channels), and
   LANES - 1 numbers more where kernel_wide * channels is not a multiple of LANES; d as sizes say. `parallel`: kernels.h. The
   name has the hash of this file and its header in it, given by the compiler's command line: a library built from any
   other is not called. */
void PRODUCTS(
    float *found, double *squares, const float *images, const float *d, const struct sizes *sizes,
    runtime *parallel, unsigned threads, unsigned best)
{
    struct call call = {found, squares, images, d, sizes, VERSION_OF(best, with_avx512, with_avx2, with_any), 0};
    on_threads(parallel, threads, work, &call);
}
