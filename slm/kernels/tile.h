// The innermost product of instructions that need no state of their own: f32, integers and AVX512-BF16. How each multiplies
// stands before this file: multiply_add(sums, columns of B, item of A).
#pragma once

constexpr long LINE = 16;  // items of a cache line

template <class Sums, class Item, class Items>
INLINE void multiply_add(Sums& c0, Sums& c1, const Item& a, Items b0, Items b1) {
    c0 = multiply_add(c0, b0, a);
    c1 = multiply_add(c1, b1, a);
}

// One tile of R rows and NR columns: sums over k of A[r * ra + k * ka] * B[k * NR + column], which begin with `left` and
// `right`, handed row by row to `use(row, left W columns, right W columns)`. Row-major rows of A are (ra = row length,
// ka = 1), strips (ra = 1, ka = rows of a strip). ahead(part) is called before every PART items, to ask memory for what
// comes next.
template <int R, long PART, class Sums, class Item, class Use, class Ahead>
INLINE void tile_of(long depth, const Item* A, long ra, long ka, const Item* B, Sums left, Sums right, Use&& use, Ahead&& ahead) {
    Sums c[R][2];
    unrolled<R>([&](auto r) ALWAYS { c[r][0] = left, c[r][1] = right; });
    auto step = [&]() ALWAYS {
        const auto b0 = load(B), b1 = load(B + W);
        unrolled<R>([&](auto r) ALWAYS { multiply_add(c[r][0], c[r][1], A[r * ra], b0, b1); });
        A += ka;
        B += NR;
    };
    for (long part = 0; part < depth / PART; part++) {
        ahead(part);
#pragma GCC unroll 4
        for (int i = 0; i < PART; i++) step();
    }
    for (long i = 0; i < depth % PART; i++) step();
    unrolled<R>([&](auto r) ALWAYS { use(r, c[r][0], c[r][1]); });
}

// The 1 to MR rows of a tile: MR at once, fewer by four and one. each(how many rows, as a constant; the first of them).
template <class Each> INLINE void by_rows(long rows, Each&& each) {
    if (rows >= MR) return each(std::integral_constant<int, (int)MR>{}, 0L);
    long done = 0;
    for (; rows - done >= 4; done += 4) each(std::integral_constant<int, 4>{}, done);
    for (; done < rows; done++) each(std::integral_constant<int, 1>{}, done);
}

// A tile of 1 to MR rows.
template <class Use, class Ahead = Nothing>
INLINE void tile(long rows, long depth, const packed* A, long ra, long ka, const packed* B, Use&& use, Ahead&& ahead = {}) {
    by_rows(rows, [&](auto count, long first) ALWAYS {
        const auto shifted = [&](int r, lanes x, lanes y) ALWAYS { use((int)(r + first), x, y); };
        tile_of<count, LINE>(depth, A + first * ra, ra, ka, B, lanes{}, lanes{}, shifted, ahead);
    });
}

// What becomes of a tile's sums: rows of f32 that are `ld` values apart, or additions to what is there.
struct Into {
    bool add;
    float* out;
    long ld;

    INLINE void operator()(int r, lanes x, lanes y) const {
        float* o = out + r * ld;
        if (add) {
            x += load_f32(o);
            y += load_f32(o + LANES);
        }
        store_f32(o, x);
        store_f32(o + LANES, y);
    }
};

// Nothing to prepare: these instructions need no state.
struct TileUnit {
    ~TileUnit() {}
};

// Up to MR rows of `depth` values, `lda` values from row to row, times a panel.
template <class Use, class Ahead = Nothing>
INLINE void product(long rows, long depth, const value* A, long lda, const packed* B, Use&& use, Ahead&& ahead = {}) {
    tile(rows, depth / PAIR, (const packed*)A, lda / PAIR, 1, B, use, ahead);
}
INLINE void product_into(bool add, float* out, long ld, long rows, long depth, const value* A, long lda, const packed* B) {
    product(rows, depth, A, lda, B, Into{add, out, ld});
}

// Rows of a left operand that lies by columns: the item k of row r is at A[r + k * ld].
struct Columns {
    long rows, items;
    const packed* A;
    long ld;

    INLINE Columns(long rows, long items, const packed* A, long ld) : rows(rows), items(items), A(A), ld(ld) {}
};
INLINE void product_into(bool add, float* out, long ld, const Columns& a, const packed* B) {
    tile(a.rows, a.items, a.A, 1, a.ld, B, Into{add, out, ld});
}
