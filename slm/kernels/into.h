// What becomes of a tile's sums, over the vectors of a number format (family.h).
#pragma once

// Hands them to `out`, rows of f32 that are `ld` values apart, or adds them to what is there.
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
