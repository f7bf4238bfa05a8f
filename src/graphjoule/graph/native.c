/* Loops for the CPU that PyTorch makes in many passes over memory. `native.py` has this file built and calls it.

   Matrices are row-major float32; rows of `d` columns, a multiple of 16. Work is cut by numbers of rows alone and sums
   have a fixed order, so that no result depends on the number of threads. */

#include <stdint.h>

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define HAS_MASKS 1
#endif

#if defined(__AVX512F__)
enum { LANES = 16, VECTORS = 4 };
#elif defined(__AVX__)
enum { LANES = 8, VECTORS = 2 };
#else
enum { LANES = 4, VECTORS = 2 };
#endif
enum {
    ROWS = 6,       /* of a product that are in registers at once, of so many vectors each */
    TILE = 48,      /* rows whose product a thread makes while they are in its cache */
    WIDEST = 256,   /* columns; native.py knows */
    AHEAD = 12,     /* entries of a sparse matrix whose rows are fetched in advance */
};

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef double doubles __attribute__((vector_size(8 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define LOAD(p) (*(const vec *)(p))
#define STORE(p, v) (*(vec *)(p) = (v))
#define DOUBLES(v) __builtin_convertvector(v, doubles)

/* The hash of `graphjoule.ops.dropout`, to the bit; of one word or of many. */
#define MIX(word, key)                   \
    do {                                 \
        (word) ^= (word) >> 16;          \
        (word) = (word)*0x7FEB352Du ^ (key); \
        (word) ^= (word) >> 15;          \
        (word) *= 0x846CA68Bu;           \
        (word) ^= (word) >> 16;          \
    } while (0)

/* Which elements are dropped: a key and how many of 65,536 values mean so. A word's low half serves an element of the
   first half of a tensor, its high half one of the second, which is a word shorter where the count is odd. */
typedef struct {
    uint32_t key0, key1, dropped, half;
} Mask;

INLINE vec masked(vec z, uint32_t element, Mask mask) {
    words place;
    for (int lane = 0; lane < LANES; lane++) place[lane] = lane;
    place += element;
    const words is_high = (words)(place >= mask.half);
    words word = place - (is_high & mask.half) + mask.key0;
    MIX(word, mask.key1);
    word = (word >> 16 & is_high) | (word & 0xFFFF & ~is_high);
    return (vec)((words)z & (words)(word >= mask.dropped));
}

/* out = x where the hash keeps an element, else 0. `out` may be `x`. */
void drop(const uint32_t *x, uint32_t *out, int64_t count, uint32_t key0, uint32_t key1, uint32_t dropped, int threads) {
    const int64_t half = (count + 1) / 2, pairs = count - half;
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (int64_t i = 0; i < pairs; i++) {
        uint32_t word = (uint32_t)i + key0;
        MIX(word, key1);
        out[i] = (word & 0xFFFF) >= dropped ? x[i] : 0;
        out[half + i] = word >> 16 >= dropped ? x[half + i] : 0;
    }
    if (pairs < half) {
        uint32_t word = (uint32_t)pairs + key0;
        MIX(word, key1);
        out[pairs] = (word & 0xFFFF) >= dropped ? x[pairs] : 0;
    }
}

/* <x, x> and <x, y> of every stretch of elements, side by side in `sums`; the last stretch may be shorter. */
void inner_products(const float *x, const float *y, int64_t count, int64_t stretch, float *sums, int threads) {
    const int64_t stretches = (count + stretch - 1) / stretch;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t s = 0; s < stretches; s++) {
        const int64_t stop = (s + 1) * stretch < count ? (s + 1) * stretch : count;
        float xx = 0, xy = 0;
#pragma omp simd reduction(+ : xx, xy)
        for (int64_t i = s * stretch; i < stop; i++) {
            xx += x[i] * x[i];
            xy += x[i] * y[i];
        }
        sums[2 * s] = xx;
        sums[2 * s + 1] = xy;
    }
}

/* Some columns of a row of A x, for a matrix A in compressed rows. */
INLINE void gather_columns(const int32_t *col, const float *value, int32_t start, int32_t stop, int32_t last,
                           const float *x, int64_t d, float *out, const int vectors) {
    vec sum[VECTORS];
    for (int v = 0; v < vectors; v++) sum[v] = (vec){0};
    for (int32_t e = start; e < stop; e++) {
        const float *ahead = x + (int64_t)col[e + AHEAD < last ? e + AHEAD : e] * d;
        for (int v = 0; v < vectors * LANES; v += 16) __builtin_prefetch(ahead + v);
        const float *from = x + (int64_t)col[e] * d;
        for (int v = 0; v < vectors; v++) sum[v] += value[e] * LOAD(from + v * LANES);
    }
    for (int v = 0; v < vectors; v++) STORE(out + v * LANES, sum[v]);
}

INLINE void gather_row(const int32_t *rowptr, const int32_t *col, const float *value, const float *x, int64_t row,
                       int64_t n, int64_t d, float *out) {
    const int32_t start = rowptr[row], stop = rowptr[row + 1], last = rowptr[n];
    int64_t c = 0;
    for (; c + VECTORS * LANES <= d; c += VECTORS * LANES)
        gather_columns(col, value, start, stop, last, x + c, d, out + c, VECTORS);
    for (; c < d; c += LANES) gather_columns(col, value, start, stop, last, x + c, d, out + c, 1);
}

INLINE double sum_of(doubles lanes) {
    double sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += lanes[lane];
    return sum;
}

/* Some columns of a row in the sums below. */
INLINE void form_columns(const int32_t *col, const float *value, const float *scale, int32_t start, int32_t stop,
                         int32_t last, const float *x, const float *mean, int64_t row, int64_t d, vec *yy, vec *ys,
                         const int vectors) {
    vec m[VECTORS], y[VECTORS], of_row = {0};
    for (int v = 0; v < vectors; v++) {
        m[v] = LOAD(mean + v * LANES);
        y[v] = LOAD(x + row * d + v * LANES) - scale[row] * m[v];
        *yy += y[v] * y[v];
    }
    for (int32_t e = start; e < stop; e++) {
        const float *ahead = x + (int64_t)col[e + AHEAD < last ? e + AHEAD : e] * d;
        for (int v = 0; v < vectors * LANES; v += 16) __builtin_prefetch(ahead + v);
        const float *from = x + (int64_t)col[e] * d;
        vec both = {0};
        for (int v = 0; v < vectors; v++) both += y[v] * (LOAD(from + v * LANES) - scale[col[e]] * m[v]);
        of_row += value[e] * both;
    }
    *ys += of_row;
}

/* <y, y> and <y, S y> of every tile, side by side in `sums`; y is x less `scale` times the mean of a row's component.
   A row is summed up in float32. */
void form(const int32_t *rowptr, const int32_t *col, const float *value, const float *x, const float *scale,
          const float *means, const int64_t *component, double *sums, int64_t n, int64_t d, int threads) {
    const int32_t last = rowptr[n];
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t tile = 0; tile < (n + TILE - 1) / TILE; tile++) {
        const int64_t stop = (tile + 1) * TILE < n ? (tile + 1) * TILE : n;
        sums[2 * tile] = sums[2 * tile + 1] = 0;
        for (int64_t row = tile * TILE; row < stop; row++) {
            vec yy = {0}, ys = {0};
            const float *mean = means + component[row] * d;
            const int32_t from = rowptr[row], to = rowptr[row + 1];
            int64_t c = 0;
            for (; c + VECTORS * LANES <= d; c += VECTORS * LANES)
                form_columns(col, value, scale, from, to, last, x + c, mean + c, row, d, &yy, &ys, VECTORS);
            for (; c < d; c += LANES)
                form_columns(col, value, scale, from, to, last, x + c, mean + c, row, d, &yy, &ys, 1);
            sums[2 * tile] += sum_of(DOUBLES(yy));
            sums[2 * tile + 1] += sum_of(DOUBLES(ys));
        }
    }
}

/* Some rows and columns of x w. */
INLINE void product_block(const float *x, const float *w, float *out, int64_t d, const int rows, const int vectors) {
    vec sum[ROWS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sum[r][v] = (vec){0};
    for (int64_t k = 0; k < d; k++) {
        vec right[VECTORS];
        for (int v = 0; v < vectors; v++) right[v] = LOAD(w + k * d + v * LANES);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++) sum[r][v] += x[r * d + k] * right[v];
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) STORE(out + r * d + v * LANES, sum[r][v]);
}

INLINE void product_rows(const float *x, const float *w, float *out, int64_t d, const int rows) {
    int64_t c = 0;
    for (; c + VECTORS * LANES <= d; c += VECTORS * LANES) product_block(x, w + c, out + c, d, rows, VECTORS);
    for (; c < d; c += LANES) product_block(x, w + c, out + c, d, rows, 1);
}

/* out = x w, for d columns of both. */
static void product(const float *x, const float *w, float *out, int64_t rows, int64_t d) {
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS) product_rows(x + r * d, w, out + r * d, d, ROWS);
    for (; r < rows; r++) product_rows(x + r * d, w, out + r * d, d, 1);
}

/* sums += x^T y, a block of four rows at a time. */
INLINE void outer_block(const float *x, const float *y, float *sums, int64_t rows, int64_t d, const int vectors) {
    vec sum[4][VECTORS];
    for (int i = 0; i < 4; i++)
        for (int v = 0; v < vectors; v++) sum[i][v] = LOAD(sums + i * d + v * LANES);
    for (int64_t r = 0; r < rows; r++) {
        vec right[VECTORS];
        for (int v = 0; v < vectors; v++) right[v] = LOAD(y + r * d + v * LANES);
        for (int i = 0; i < 4; i++)
            for (int v = 0; v < vectors; v++) sum[i][v] += x[r * d + i] * right[v];
    }
    for (int i = 0; i < 4; i++)
        for (int v = 0; v < vectors; v++) STORE(sums + i * d + v * LANES, sum[i][v]);
}

static void add_outer_product(const float *x, const float *y, float *sums, int64_t rows, int64_t d) {
    for (int64_t i = 0; i < d; i += 4) {
        int64_t c = 0;
        for (; c + VECTORS * LANES <= d; c += VECTORS * LANES)
            outer_block(x + i, y + c, sums + i * d + c, rows, d, VECTORS);
        for (; c < d; c += LANES) outer_block(x + i, y + c, sums + i * d + c, rows, d, 1);
    }
}

/* A bit per lane, set where all bits of the lane are. */
INLINE uint32_t bits_of(words on) {
#if defined(HAS_MASKS)
    return _mm512_movepi32_mask((__m512i)on);
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < LANES; lane++) bits |= on[lane] & 1u << lane;
    return bits;
#endif
}

/* The other way round. */
INLINE words lanes_of(uint32_t bits) {
    words bit;
    for (int lane = 0; lane < LANES; lane++) bit[lane] = 1u << lane;
    return (words)((bit & bits) != 0);
}

/* max(b, z) of some rows, in place; returns whether it changed any, and has a bit for every element it did not. NaN is
   larger than all: it must stay visible. */
static int cut_below(float *z, const float *shift, uint16_t *active, int64_t rows, int64_t d) {
    int is_cut = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < d; c += 16) {
            uint32_t bits = 0;
            for (int lane = 0; lane < 16; lane += LANES) {
                float *place = z + r * d + c + lane;
                const vec from = LOAD(place), least = LOAD(shift + c + lane);
                const words on = (words)(from > least) | (words)(from != from);
                STORE(place, (vec)(((words)from & on) | ((words)least & ~on)));
                bits |= bits_of(on) << lane;
            }
            is_cut |= bits != 0xFFFF;
            if (active) active[(r * d + c) / 16] = bits;
        }
    return is_cut;
}

/* A layer of EGNN: out = drop(max(shift, (S x + beta x0) w)) with a sparse S. Returns whether max changed anything.

   `shift`, `mixed`, `active`, `sums` and `mask` may be null. `mixed` gets S x + beta x0; `active` a bit per element
   where max changed nothing; `sums` <x, x> and <x, S x> of every tile. */
int egnn_layer(const int32_t *rowptr, const int32_t *col, const float *value, const float *x, const float *x0,
               float beta, const float *w, const float *shift, float *mixed, float *out, uint16_t *active, double *sums,
               int64_t n, int64_t d, const Mask *mask, int threads) {
    int is_cut = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic) reduction(| : is_cut)
    for (int64_t tile = 0; tile < (n + TILE - 1) / TILE; tile++) {
        float own[TILE * WIDEST];
        const int64_t first = tile * TILE, rows = n - first < TILE ? n - first : TILE;
        float *m = mixed ? mixed + first * d : own, *z = out + first * d;
        doubles xx = {0}, xm = {0}; /* an energy is a small difference of the two */
        for (int64_t r = 0; r < rows; r++) {
            float *of_row = m + r * d;
            const float *x_row = x + (first + r) * d, *x0_row = x0 + (first + r) * d;
            gather_row(rowptr, col, value, x, first + r, n, d, of_row);
            for (int64_t c = 0; sums && c < d; c += LANES) {
                const doubles of_x = DOUBLES(LOAD(x_row + c));
                xx += of_x * of_x;
                xm += of_x * DOUBLES(LOAD(of_row + c));
            }
            for (int64_t c = 0; c < d; c += LANES) STORE(of_row + c, LOAD(of_row + c) + beta * LOAD(x0_row + c));
        }
        if (sums) {
            sums[2 * tile] = sum_of(xx);
            sums[2 * tile + 1] = sum_of(xm);
        }
        product(m, w, z, rows, d);
        if (shift) is_cut |= cut_below(z, shift, active ? active + first * d / 16 : 0, rows, d);
        if (mask)
            for (int64_t i = 0; i < rows * d; i += LANES)
                STORE(z + i, masked(LOAD(z + i), (uint32_t)(first * d + i), *mask));
    }
    return is_cut;
}

/* The dense half of its gradient: grad_mixed = g w^T, where g is `grad` where `active`, which may be null; grad_x0 +=
   beta grad_mixed; and of every stretch of rows, in `partial`, mixed^T g and then the sum of what is not active.
   `grad_mixed` may be `mixed`. */
void egnn_layer_backward(const float *grad, const float *mixed, const float *transposed, const uint16_t *active,
                         float *grad_mixed, float *grad_x0, float beta, float *partial, int64_t stretch, int64_t n,
                         int64_t d, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t s = 0; s < (n + stretch - 1) / stretch; s++) {
        const int64_t stop = (s + 1) * stretch < n ? (s + 1) * stretch : n;
        float own[TILE * WIDEST], *of_weight = partial + s * (d + 1) * d, *of_shift = of_weight + d * d;
        for (int64_t i = 0; i < (d + 1) * d; i++) of_weight[i] = 0;
        for (int64_t first = s * stretch; first < stop; first += TILE) {
            const int64_t rows = stop - first < TILE ? stop - first : TILE;
            const float *g = grad + first * d;
            float *to = grad_mixed + first * d, *to_x0 = grad_x0 + first * d;
            if (active) {
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t c = 0; c < d; c += LANES) {
                        const words on = lanes_of(active[((first + r) * d + c) / 16] >> c % 16);
                        const words from = (words)LOAD(g + r * d + c);
                        STORE(own + r * d + c, (vec)(from & on));
                        STORE(of_shift + c, LOAD(of_shift + c) + (vec)(from & ~on));
                    }
                g = own;
            }
            add_outer_product(mixed + first * d, g, of_weight, rows, d);
            product(g, transposed, to, rows, d);
            for (int64_t i = 0; i < rows * d; i += LANES) STORE(to_x0 + i, LOAD(to_x0 + i) + beta * LOAD(to + i));
        }
    }
}

/* out = drop(S x); `mask` may be null. */
void gather(const int32_t *rowptr, const int32_t *col, const float *value, const float *x, float *out, int64_t n,
            int64_t d, const Mask *mask, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, TILE)
    for (int64_t row = 0; row < n; row++) {
        float *of_row = out + row * d;
        gather_row(rowptr, col, value, x, row, n, d, of_row);
        if (mask)
            for (int64_t c = 0; c < d; c += LANES)
                STORE(of_row + c, masked(LOAD(of_row + c), (uint32_t)(row * d + c), *mask));
    }
}
