/* Exact Gaussian noise, rounded to a grid, added to a vector in one walk; rounded.py says what that is.
   Longer than most files: cipher, table and walk are compiled as one loop, whose parts overlap.

   A word of 64 random bits is a sign and a tail probability u = (tail + 1/2) 2^-64 below one half. In each of the sixteen
   octaves from 1/2 down to 2^-17 its quantile is a polynomial of degree 16 in the mantissa of u: Chebyshev's
   interpolation, in powers of m - 3/2 (tests/rng/test_kernel.py makes the table again, and proves KERNEL_ERROR of
   rounded.py for it). A value whose u is smaller, or whose sum is nearer to the edge between two multiples than that
   error, or not finite, is left as it was, and listed: Python settles it. So what is written does not depend on the
   compiler, nor on the processor; only what is listed does.

   The words come from the caller or, in GAUSSIAN_keyed, from the processor's own AES-256 in counter mode. Those of the next
   values are enciphered while these are worked on: cipher and polynomials use different parts of the processor. */

#include <stddef.h>
#include <stdint.h>

#include "processor.h"

#define LANES 8
#define DEGREE 16
#define OCTAVES 16
/* Vectors worked on at once, and values that are looked through together for what is left. */
#define SOME 2
#define BLOCK 64
/* AES-256: its rounds, and how many blocks of two words are enciphered at once: those of SOME vectors. */
#define ROUNDS 14
#define CIPHERED (SOME * LANES / 2)
/* Words that are ready before they are used: one more than those of SOME vectors, where the first is a block's second. */
#define AHEAD (4 * CIPHERED)

#if defined(__clang__)
#define REVERSED(v) __builtin_shufflevector(v, v, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define UNROLL _Pragma("unroll")
#define UNROLL_ALL _Pragma("unroll")
#define PERMUTE(row, at) \
    ((reals){(row)[(at)[0] & 15], (row)[(at)[1] & 15], (row)[(at)[2] & 15], (row)[(at)[3] & 15], \
             (row)[(at)[4] & 15], (row)[(at)[5] & 15], (row)[(at)[6] & 15], (row)[(at)[7] & 15]})
#else
#define REVERSED(v) __builtin_shuffle(v, (octets){15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0})
#define UNROLL _Pragma("GCC unroll 2")
#define UNROLL_ALL _Pragma("GCC unroll 17")
#define PERMUTE(row, at) __builtin_shuffle((reals)*(const reals_there *)(row), (reals)*(const reals_there *)(row + LANES), at)
#endif

#if defined(__clang__) || __GNUC__ >= 12
#define JOINED(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3)
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 2, 6)
#define HIGH(a, b) __builtin_shufflevector(a, b, 1, 5, 3, 7)
#else
#define JOINED(a, b) ((four){(a)[0], (a)[1], (b)[0], (b)[1]})
#define LOW(a, b) ((four){(a)[0], (b)[0], (a)[2], (b)[2]})
#define HIGH(a, b) ((four){(a)[1], (b)[1], (a)[3], (b)[3]})
#endif

typedef double reals __attribute__((vector_size(8 * LANES)));
typedef int64_t bits __attribute__((vector_size(8 * LANES)));
typedef uint64_t unsigned_bits __attribute__((vector_size(8 * LANES)));
typedef float halves __attribute__((vector_size(4 * LANES)));
typedef double two __attribute__((vector_size(16)));
typedef double four __attribute__((vector_size(32)));
typedef uint64_t pair __attribute__((vector_size(16)));
typedef uint8_t octets __attribute__((vector_size(16)));
/* As they lie in memory. */
typedef double reals_there __attribute__((vector_size(8 * LANES), aligned(4), may_alias));
typedef int64_t bits_there __attribute__((vector_size(8 * LANES), aligned(1), may_alias));
typedef float halves_there __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* A row for each power, an entry for each octave. */
static const double power[DEGREE + 1][OCTAVES] = {
    {0x1.464965bdc7eafp-2, 0x1.c63812e37d718p-1, 0x1.51692983b0b7dp+0, 0x1.ad0a62bb61166p+0,
     0x1.fcc812ed3a31cp+0, 0x1.2213b8576fdbap+1, 0x1.429fd11029feap+1, 0x1.60b5d353018c2p+1,
     0x1.7ccd7ab02a213p+1, 0x1.973d5862e57fep+1, 0x1.b046512aa5f53p+1, 0x1.c81a77cf5d38ep+1,
     0x1.dee15c58f9c22p+1, 0x1.f4bae02e1bc8ep+1, 0x1.04e0914b868a5p+2, 0x1.0f04ecf684574p+2},
    {-0x1.518e9619543f8p-1, -0x1.db8e2c401128cp-2, -0x1.7e5fa0317d6f5p-2, -0x1.46b4cc07d3b72p-2,
     -0x1.21029de1eaee9p-2, -0x1.057523ed4ab09p-2, -0x1.e08248752c557p-3, -0x1.bea46341f91d4p-3,
     -0x1.a2d3eb6a993edp-3, -0x1.8b7ac9a5774f3p-3, -0x1.7788a9c86d063p-3, -0x1.663f76262db08p-3,
     -0x1.5716171caab73p-3, -0x1.49a6f17fc9906p-3, -0x1.3da4f52bb2d54p-3, -0x1.32d48477f66b3p-3},
    {0x1.1ba68abc276ddp-4, 0x1.87db6285bf42dp-4, 0x1.7860df3fc8636p-4, 0x1.5d625c56fef42p-4,
     0x1.4439da706c040p-4, 0x1.2e93b4fb25324p-4, 0x1.1c28791435cd0p-4, 0x1.0c68c7c359e4bp-4,
     0x1.fda31b19bd3c6p-5, 0x1.e5f24718d5e17p-5, 0x1.d11a0fee35893p-5, 0x1.be9a1d49bf4a1p-5,
     0x1.ae0e0690e97dbp-5, 0x1.9f267e4b13aa6p-5, 0x1.91a436a3f3b39p-5, 0x1.85541b99c538cp-5},
    {-0x1.d6b71030da60ap-5, -0x1.6003ae92ed773p-5, -0x1.3e12e6ac0dd27p-5, -0x1.256eb7ac4a307p-5,
     -0x1.112f2d4db837fp-5, -0x1.002b4ed45ac60p-5, -0x1.e36188e5be8f3p-6, -0x1.ca75663a10c6dp-6,
     -0x1.b4c76b6819fafp-6, -0x1.a1bc1c15c3eb1p-6, -0x1.90db6e8ab72d6p-6, -0x1.81c7d1f06d900p-6,
     -0x1.74378acb07c6ap-6, -0x1.67efd6bdbf366p-6, -0x1.5cc15dcbd9f7cp-6, -0x1.528593fc66d01p-6},
    {0x1.38b82c16ae038p-6, 0x1.4a3aec440e957p-6, 0x1.30ca1e8d21873p-6, 0x1.1ac525b991342p-6,
     0x1.084a2f097f7e8p-6, 0x1.f149b366afa4dp-7, 0x1.d67f741da82adp-7, 0x1.bf4ef49845ba7p-7,
     0x1.ab078b2c1a2f2p-7, 0x1.992161098e945p-7, 0x1.89331a20055e0p-7, 0x1.7aea1de949c06p-7,
     0x1.6e04f0467fdf4p-7, 0x1.624f10a9b0b40p-7, 0x1.579df3120b548p-7, 0x1.4dcec3359f98ap-7},
    {-0x1.955eb76964ba1p-7, -0x1.568c26d0c3508p-7, -0x1.3be0214d2171ep-7, -0x1.25e0ae477b18ep-7,
     -0x1.1362ff247cf7bp-7, -0x1.03aaae42ddfbbp-7, -0x1.ec4cf36ffa213p-8, -0x1.d4ce500df8ccbp-8,
     -0x1.c02f13bd555b8p-8, -0x1.adebe16e40104p-8, -0x1.9d9e6e215a6e6p-8, -0x1.8ef62e2a6bb1fp-8,
     -0x1.81b2fc97d6f89p-8, -0x1.75a133326bebfp-8, -0x1.6a96cb3c44238p-8, -0x1.60713c02482e8p-8},
    {0x1.804633329a8f3p-8, 0x1.72f47f13a2fdep-8, 0x1.5743019ee8133p-8, 0x1.4015bc9df9f16p-8,
     0x1.2c891f958083dp-8, 0x1.1bdbc04b853a1p-8, 0x1.0d7882b7f1cdfp-8, 0x1.00ed62b47d34bp-8,
     0x1.ebc5e0d7f849cp-9, 0x1.d82b239a506bdp-9, 0x1.c6a0eb2c89c6bp-9, 0x1.b6d3bf4c7a04ep-9,
     0x1.a880ebb7f2581p-9, 0x1.9b728cdb5f94fp-9, 0x1.8f7ca662451ecp-9, 0x1.847af88a28ac9p-9},
    {-0x1.d1bdce4b82421p-9, -0x1.9fb064719ebdfp-9, -0x1.815a7ea912eebp-9, -0x1.67fbd34a6e51dp-9,
     -0x1.52869cc738697p-9, -0x1.402b0494d13eep-9, -0x1.304990d20938fp-9, -0x1.226859ac63e36p-9,
     -0x1.1629bc89e4a90p-9, -0x1.0b45269ba36c5p-9, -0x1.0181bb182aaebp-9, -0x1.f164d4682db03p-10,
     -0x1.e1662e324ed61p-10, -0x1.d2cd01ef87631p-10, -0x1.c5696faf2b03dp-10, -0x1.b913eb8b1b72bp-10},
    {0x1.fca0a96582b16p-10, 0x1.dcf6cb372553cp-10, 0x1.baee3eeca8afcp-10, 0x1.9e636c1dfcb7ep-10,
     0x1.86305291267bbp-10, 0x1.716f64ad583a8p-10, 0x1.5f70e1b0ce77ap-10, 0x1.4fae65b9d001fp-10,
     0x1.41c08c56870e9p-10, 0x1.3557050bbcf2dp-10, 0x1.2a32bb010ac65p-10, 0x1.2021913dd8473p-10,
     0x1.16fb46171a60cp-10, 0x1.0e9f2a9e24c95p-10, 0x1.06f271e653998p-10, 0x1.ffbddaee8fe49p-11},
    {-0x1.313cd25ae8055p-10, -0x1.168d0f646bd1bp-10, -0x1.030bc0e23f71cp-10, -0x1.e551752329629p-11,
     -0x1.c978d49f0db44p-11, -0x1.b18a86a6ac7fbp-11, -0x1.9cc06e6e956cdp-11, -0x1.8a82f73a5b311p-11,
     -0x1.7a5d53c7fe8b5p-11, -0x1.6bf49a9652a0fp-11, -0x1.5f013cd44de24p-11, -0x1.534a42b3a9afep-11,
     -0x1.48a1d0e8cbdbep-11, -0x1.3ee29a39bd1b6p-11, -0x1.35edfa28f7c5ap-11, -0x1.2daa895b5f072p-11},
    {0x1.632036fb6f64fp-11, 0x1.4a26a2c8c4a55p-11, 0x1.336b5a3f170cap-11, 0x1.20498d77da971p-11,
     0x1.10003d36d293dp-11, 0x1.01fa90ad53517p-11, 0x1.eb8d9a5cb0ce3p-12, 0x1.d61bba2a15751p-12,
     0x1.c319181ab4ef4p-12, 0x1.b21ce5d0827d7p-12, 0x1.a2d47cad06476p-12, 0x1.94fdf07c6604ep-12,
     0x1.8864184db08e9p-12, 0x1.7cdba3603e6fdp-12, 0x1.7240ee32d5dd0p-12, 0x1.6876620887f18p-12},
    {-0x1.b18330e51e6fap-12, -0x1.8f69859a58780p-12, -0x1.7457278339e7cp-12, -0x1.5d845c6867ddfp-12,
     -0x1.4a0dcaffd176cp-12, -0x1.3944a134d23c7p-12, -0x1.2aa356f701006p-12, -0x1.1dc3957da80c9p-12,
     -0x1.125644ec6821ap-12, -0x1.081d9dc1da341p-12, -0x1.fdd1a34a25bdcp-13, -0x1.ed21c372f9e14p-13,
     -0x1.ddec9d00cb46ep-13, -0x1.cffec7064bf3ep-13, -0x1.c32de56680687p-13, -0x1.b756c0c5bd2a5p-13},
    {0x1.048b0f358b87ap-12, 0x1.e39515ab6f94dp-13, 0x1.c33fb29ff621bp-13, 0x1.a7f2cbf75194dp-13,
     0x1.90a1b045b400fp-13, 0x1.7c7e26df418cap-13, 0x1.6aeaaed1fba4cp-13, 0x1.5b6e76c67528fp-13,
     0x1.4dabfefc94652p-13, 0x1.415a231de1cd2p-13, 0x1.363f03fab13e8p-13, 0x1.2c2c529320f27p-13,
     0x1.22fc99875dda9p-13, 0x1.1a913ca6323d2p-13, 0x1.12d0fb275fea0p-13, 0x1.0ba6d0452c9d5p-13},
    {-0x1.1da3b48cffa99p-13, -0x1.08382cc0ef4bcp-13, -0x1.ed5a37db8db01p-14, -0x1.cfb45b00cc281p-14,
     -0x1.b65cc44473066p-14, -0x1.a07522f8fb4e9p-14, -0x1.8d53aec47b5e7p-14, -0x1.7c761ba695b83p-14,
     -0x1.6d77817b60b90p-14, -0x1.6008e004bc78bp-14, -0x1.53eba80ab46ccp-14, -0x1.48edbff80524ep-14,
     -0x1.3ee699698e130p-14, -0x1.35b50a19879a9p-14, -0x1.2d3db101a5befp-14, -0x1.2569c0cf9071cp-14},
    {0x1.5cd61703b0c24p-14, 0x1.43c404992233fp-14, 0x1.2e847254483abp-14, 0x1.1c8a0325be56bp-14,
     0x1.0d26d14c85455p-14, 0x1.ffab6ac15644dp-15, 0x1.e861f3f38c9e3p-15, 0x1.d3d4ff3c7c8f8p-15,
     0x1.c18b66fde8262p-15, 0x1.b126329682b72p-15, 0x1.a25a13e6f76b6p-15, 0x1.94eaa89a11e1fp-15,
     0x1.88a6fff4db931p-15, 0x1.7d6708ec887c4p-15, 0x1.7309a70c0bf78p-15, 0x1.6973400127794p-15},
    {-0x1.6eb832017dddep-14, -0x1.548db35659df4p-14, -0x1.3eb80dfe1e059p-14, -0x1.2c32100885be2p-14,
     -0x1.1c4cc985a8dc2p-14, -0x1.0e827ae873b13p-14, -0x1.026ce59296f54p-14, -0x1.ef7ab327911a0p-15,
     -0x1.dc6d5babb17fcp-15, -0x1.cb51a02b92cf2p-15, -0x1.bbdb11cc0bed3p-15, -0x1.adcc3f4382527p-15,
     -0x1.a0f33df53f872p-15, -0x1.95271905cd1d6p-15, -0x1.8a45e5d379806p-15, -0x1.8033504b0e9e2p-15},
    {0x1.c84c403214da0p-15, 0x1.a84e6ccdc0ee2p-15, 0x1.8d5aeeccdf2bap-15, 0x1.76776a31c8f30p-15,
     0x1.62cdd8e724adcp-15, 0x1.51baaf0539e83p-15, 0x1.42c0da2aa013cp-15, 0x1.358004be9e812p-15,
     0x1.29ad3ac95bcafp-15, 0x1.1f0d8293c80a3p-15, 0x1.1571ecb140265p-15, 0x1.0cb4b45cd723dp-15,
     0x1.04b723058dbaap-15, 0x1.fabfff403a96dp-16, 0x1.ed34c51b7ada2p-16, 0x1.e0a9a4ed6d2a0p-16},
};

/* The same with a row for each octave. */
static double by_octave[OCTAVES][DEGREE + 2] __attribute__((aligned(16)));

__attribute__((constructor)) static void turn_the_table(void)
{
    for (int degree = 0; degree <= DEGREE; degree++)
        for (int octave = 0; octave < OCTAVES; octave++)
            by_octave[octave][degree] = power[degree][octave];
}

struct scales {
    double std, per_step, back; /* s, 1 / gamma, gamma / divisor */
    int64_t room; /* 1/2 less the error in units of gamma: the bits of a double */
};

struct cipher {
    pair keys[ROUNDS + 1];
    uint64_t high, low; /* the number of the first block */
    int64_t odd;        /* its words that are left out: 0 or 1 */
};

#if defined(__x86_64__)
#define ROUND(state, key) __asm__ volatile("vaesenc %1, %0, %0" : "+x"(state) : "x"(key))
#define LAST_ROUND(state, key) __asm__ volatile("vaesenclast %1, %0, %0" : "+x"(state) : "x"(key))

/* The key schedule of FIPS 197, section 5.2. */
__attribute__((target("avx2,fma"))) static void expand(struct cipher *cipher, const void *key)
{
    uint32_t word[4 * (ROUNDS + 1)], constant = 1;
    __builtin_memcpy(word, key, 32);
    for (int i = 8; i < 4 * (ROUNDS + 1); i++) {
        uint32_t last = word[i - 1];
        if (i % 4 == 0) {
            pair box = {(uint64_t)last << 32, 0};
            __asm__("vaeskeygenassist $0, %0, %0" : "+x"(box)); /* the S-box of its second word comes first */
            last = (uint32_t)box[0];
        }
        if (i % 8 == 0) {
            last = (last >> 8 | last << 24) ^ constant;
            constant <<= 1;
        }
        word[i] = word[i - 8] ^ last;
    }
    __builtin_memcpy(cipher->keys, word, sizeof word);
}
#else /* nothing calls them there */
#define ROUND(state, key) (void)(key)
#define LAST_ROUND(state, key) (void)(key)
#endif

/* CIPHERED blocks of the cipher, from number `block` after its first one on, in three parts. A number is 128 bits, its
   highest byte first (NIST SP 800-38A). */
static inline __attribute__((always_inline)) void begin(pair *state, const struct cipher *cipher, uint64_t block)
{
    const pair first = {cipher->low + block, cipher->high};
    UNROLL_ALL for (int i = 0; i < CIPHERED; i++)
        state[i] = (pair)REVERSED((octets)(first + (pair){(uint64_t)i, 0})) ^ cipher->keys[0];
}

static inline __attribute__((always_inline)) void go_on(pair *state, const struct cipher *cipher, int round)
{
    const pair key = cipher->keys[round];
    UNROLL_ALL for (int i = 0; i < CIPHERED; i++)
        ROUND(state[i], key);
}

static inline __attribute__((always_inline)) void end(pair *state, const struct cipher *cipher, uint64_t *words)
{
    const pair key = cipher->keys[ROUNDS];
    UNROLL_ALL for (int i = 0; i < CIPHERED; i++)
        LAST_ROUND(state[i], key);
    __builtin_memcpy(words, state, CIPHERED * sizeof *state);
}

static inline __attribute__((always_inline)) void draw(uint64_t *words, const struct cipher *cipher, uint64_t block)
{
    pair state[CIPHERED];
    begin(state, cipher, block);
    UNROLL_ALL for (int round = 1; round < ROUNDS; round++)
        go_on(state, cipher, round);
    end(state, cipher, words);
}

/* SOME vectors of values; writes to `open` which lanes are left. `permute`: rows of the table are looked up by a permutation
   of registers. Steps of several vectors alternate, so that a processor need not look far ahead for what it can begin.
   `cipher`, if there is one, writes the words of its blocks from number `block` on to `next`. */
static inline __attribute__((always_inline)) void add(
    const char *from, char *to, const uint64_t *words, bits *open, const struct scales *s, const int wide, const int permute,
    const struct cipher *cipher, uint64_t *next, uint64_t block)
{
    const int64_t bytes = LANES * (wide ? 8 : 4);
    bits word[SOME], octave[SOME];
    reals mantissa[SOME], size[SOME];
    UNROLL for (int i = 0; i < SOME; i++) {
        word[i] = ((const bits_there *)words)[i];
        const bits magnitude = word[i] & INT64_MAX;
        /* Where no instruction converts them: both halves of 32 bits are made doubles, whose sum is rounded as that would. */
        const reals high = (reals)((bits)((unsigned_bits)magnitude >> 32) | 0x4530000000000000) - 0x1.00000001p84;
        const reals low = (reals)((magnitude & 0xffffffff) | 0x4330000000000000);
        const reals tail = (permute ? __builtin_convertvector(magnitude, reals) : high + low) + 0.5;
        octave[i] = 1023 + 62 - (bits)((unsigned_bits)tail >> 52); /* tail in [2^62, 2^63) is octave 0 */
        mantissa[i] = (reals)(((bits)tail & 0xfffffffffffff) | 0x3ff0000000000000) - 1.5;
    }
    if (permute) {
        pair state[CIPHERED];
        if (cipher)
            begin(state, cipher, block);
        UNROLL_ALL for (int degree = DEGREE; degree >= 0; degree--) {
            UNROLL for (int i = 0; i < SOME; i++) {
                const reals found = PERMUTE(power[degree], octave[i]);
                size[i] = degree == DEGREE ? found : size[i] * mantissa[i] + found;
            }
            if (cipher && degree && degree < ROUNDS)
                go_on(state, cipher, ROUNDS - degree);
        }
        if (cipher)
            end(state, cipher, next);
    } else {
        if (cipher)
            draw(next, cipher, block);
        for (int i = 0; i < SOME; i++) {
            /* Of four lanes the rows of coefficients, two at a time, become columns. */
            const double *row[LANES];
            four at[LANES / 4], sum[LANES / 4];
            __builtin_memcpy(at, &mantissa[i], sizeof at);
            UNROLL_ALL for (int lane = 0; lane < LANES; lane++)
                row[lane] = by_octave[octave[i][lane] & (OCTAVES - 1)];
            UNROLL_ALL for (int degree = DEGREE; degree >= 0; degree -= 2)
                UNROLL for (int k = 0; k < LANES / 4; k++) {
                    const two *a = (const two *)(row[4 * k] + degree), *b = (const two *)(row[4 * k + 1] + degree);
                    const two *c = (const two *)(row[4 * k + 2] + degree), *d = (const two *)(row[4 * k + 3] + degree);
                    const four even = JOINED(*a, *c), odd = JOINED(*b, *d);
                    if (degree == DEGREE) {
                        sum[k] = LOW(even, odd);
                        continue;
                    }
                    sum[k] = sum[k] * at[k] + HIGH(even, odd);
                    sum[k] = sum[k] * at[k] + LOW(even, odd);
                }
            __builtin_memcpy(&size[i], sum, sizeof sum);
        }
    }
    UNROLL for (int i = 0; i < SOME; i++) {
        const reals noise = (reals)((bits)(size[i] * s->std) ^ (word[i] & INT64_MIN));
        const reals value = wide ? (reals) * (const reals_there *)(from + i * bytes)
                                 : __builtin_convertvector((halves) * (const halves_there *)(from + i * bytes), reals);
        const reals scaled = (value + noise) * s->per_step;
        const reals nearest = (scaled + 0x1.8p52) - 0x1.8p52; /* right below 2^51; what is larger is left */
        const reals off = (reals)((bits)(scaled - nearest) & INT64_MAX);
        const reals large = (reals)((bits)scaled & INT64_MAX);
        /* Positive numbers are ordered as their bits are, and what is not a number is above them all. */
        const bits apart = ((bits)(off + large * 0x1p-52) & INT64_MAX) - s->room;
        const bits sure = (apart & (octave[i] - OCTAVES) & ~octave[i]) >> 63;
        const reals found = (reals)(((bits)(nearest * s->back) & sure) | ((bits)value & ~sure));
        if (wide)
            *(reals_there *)(to + i * bytes) = found;
        else
            *(halves_there *)(to + i * bytes) = __builtin_convertvector(found, halves);
        open[i] = ~sure;
    }
}

static inline __attribute__((always_inline)) int64_t add_all(
    const char *from, char *to, const uint64_t *words, const struct cipher *cipher, int64_t *left, uint64_t *kept,
    int64_t count, const struct scales *s, const int wide, const int permute)
{
    const int64_t bytes = wide ? 8 : 4;
    int64_t listed = 0;
    uint64_t own[BLOCK + AHEAD];
    if (cipher)
        for (int64_t at = 0; at < AHEAD; at += 2 * CIPHERED)
            draw(own + at, cipher, (uint64_t)at / 2);
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t size = count - start < BLOCK ? count - start : BLOCK;
        const char *these = from + start * bytes;
        char *those = to + start * bytes;
        double copy[BLOCK];
        const uint64_t *drawn = cipher ? own + cipher->odd : words + start;
        if (size < BLOCK) {
            __builtin_memset(copy, 0, sizeof copy);
            __builtin_memcpy(copy, these, (size_t)(size * bytes));
            these = those = (char *)copy;
            if (!cipher) {
                __builtin_memset(own, 0, sizeof own);
                __builtin_memcpy(own, drawn, (size_t)size * sizeof *own);
                drawn = own;
            }
        }
        bits open[BLOCK / LANES], any = {0};
        for (int64_t at = 0; at < BLOCK; at += SOME * LANES) {
            const int64_t next = at + AHEAD;
            add(these + at * bytes, those + at * bytes, drawn + at, open + at / LANES, s, wide, permute, cipher, own + next,
                (uint64_t)(start + next) / 2);
        }
        if (size < BLOCK)
            __builtin_memcpy(to + start * bytes, copy, (size_t)(size * bytes));
        for (int i = 0; i < BLOCK / LANES; i++)
            any |= open[i];
        int64_t found = 0;
        for (int lane = 0; lane < LANES; lane++)
            found |= any[lane];
        if (__builtin_expect(found != 0, 0))
            for (int64_t at = 0; at < size; at++)
                if (open[at / LANES][at % LANES]) {
                    if (cipher)
                        kept[listed] = drawn[at];
                    left[listed++] = start + at;
                }
        if (cipher)
            __builtin_memcpy(own, own + BLOCK, AHEAD * sizeof *own);
    }
    return listed;
}

#define VERSION(name, permute)                                                                                         \
    static int64_t name(const void *from, void *to, const uint64_t *words, int64_t *left, int64_t count,               \
                        const struct scales *s, int wide)                                                              \
    {                                                                                                                  \
        return wide ? add_all(from, to, words, NULL, left, NULL, count, s, 1, permute)                                 \
                    : add_all(from, to, words, NULL, left, NULL, count, s, 0, permute);                                \
    }
#define KEYED_VERSION(name, permute)                                                                                   \
    static int64_t name(const void *from, void *to, const struct cipher *cipher, int64_t *left, uint64_t *kept,        \
                        int64_t count, const struct scales *s, int wide)                                               \
    {                                                                                                                  \
        return wide ? add_all(from, to, NULL, cipher, left, kept, count, s, 1, permute)                                \
                    : add_all(from, to, NULL, cipher, left, kept, count, s, 0, permute);                               \
    }

/* One version for each kind of processor. */
#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,fma")))
#define AVX2 __attribute__((target("avx2,fma")))
AVX512 VERSION(with_avx512, 1)
AVX2 VERSION(with_avx2, 0)
AVX512 KEYED_VERSION(keyed_with_avx512, 1)
AVX2 KEYED_VERSION(keyed_with_avx2, 0)
#endif
VERSION(with_any, 0)

/* `count` values from and to, float or double (`wide`), which may be the same; a word for each; room for `count` indices of
   those that are left. Gives how many these are. `best`: no better version than 2 (AVX-512), 1 (AVX2), 0. The name has
   the hash of this file in it, given by the compiler's command line: a library built from any other is not called. */
int64_t GAUSSIAN(
    const void *from, void *to, const uint64_t *words, int64_t *left, int64_t count, double std, double per_step,
    double room, double back, unsigned wide, unsigned best)
{
    struct scales s = {std, per_step, back, 0};
    __builtin_memcpy(&s.room, &room, sizeof room);
#if defined(__x86_64__)
    if (best >= 2 && versions_here() >= 2)
        return with_avx512(from, to, words, left, count, &s, (int)wide);
    if (best >= 1 && versions_here() >= 1)
        return with_avx2(from, to, words, left, count, &s, (int)wide);
#else
    (void)best;
#endif
    return with_any(from, to, words, left, count, &s, (int)wide);
}

#define JOIN(name, suffix) name##suffix
#define WITH(name, suffix) JOIN(name, suffix)

/* The same of words that are drawn here: word `odd` (0 or 1) and all that follow of AES-256 with this key (32 bytes), two a
   block, from block 2^64 high + low on, where low + count / 2 + 64 is below 2^64. Room for `count` indices of what is left,
   and for its words. Gives -1, and does nothing, where the processor (with `best`) cannot. */
int64_t WITH(GAUSSIAN, _keyed)(
    const void *from, void *to, const void *key, uint64_t high, uint64_t low, unsigned odd, int64_t *left, uint64_t *kept,
    int64_t count, double std, double per_step, double room, double back, unsigned wide, unsigned best)
{
#if defined(__x86_64__)
    static volatile int known = -1;
    if (known < 0) {
        unsigned a, b, c = 0, d;
        known = __get_cpuid(1, &a, &b, &c, &d) && (c >> 25 & 1) ? versions_here() : 0;
    }
    if (best < 1 || known < 1)
        return -1;
    struct scales s = {std, per_step, back, 0};
    struct cipher cipher;
    __builtin_memcpy(&s.room, &room, sizeof room);
    expand(&cipher, key);
    cipher.high = high, cipher.low = low, cipher.odd = odd & 1;
    return best >= 2 && known >= 2 ? keyed_with_avx512(from, to, &cipher, left, kept, count, &s, (int)wide)
                                   : keyed_with_avx2(from, to, &cipher, left, kept, count, &s, (int)wide);
#else
    return -1;
#endif
}
