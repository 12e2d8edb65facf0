// Values in f32: what is not the same in all number formats (family.h).
#pragma once
#include "sizes.h"

INLINE lanes load_value(const value* p) { return load(p); }
INLINE void store_value(value* p, lanes x) { store(p, x); }
// Two vectors, one behind the other.
INLINE void store_values(value* p, lanes left, lanes right) {
    store(p, left);
    store(p + W, right);
}
INLINE void store_packed(packed* p, const lanes (&rows)[PAIR]) { store(p, rows[0]); }
INLINE value value_of(float x) { return x; }
INLINE lanes load_logits(const value* z) { return load(z); }
INLINE float logit_at(const value* z) { return *z; }
INLINE void store_logits(value* z, lanes left, lanes right) { store_values(z, left, right); }

// 1 / x to the last bit or two, for x up to 2^126: an estimate of 8 bits, and two of Newton's steps. Most cores have no
// pipeline for divisions.
INLINE vec reciprocal(vec x) {
#ifdef SLM_NEON
    vec y = vrecpeq_f32(x);
    y = vmulq_f32(y, vrecpsq_f32(x, y));
    return vmulq_f32(y, vrecpsq_f32(x, y));
#else
    return 1.0f / x;
#endif
}

#include "../activation.h"

// 2^x to f32 precision for x up to 127; x below -126 gives 0, -inf included. NaN gives NaN: of two values that do not
// compare, x86's maximum is the second.
INLINE vec exp2_of(vec x) {
    const vec magic = all(12582912.0f), kept = max_of(all(-126.0f), x);  // adding 1.5 * 2^23 rounds to a whole number
    const vec shifted = kept + magic;
    const vec n = shifted - magic, p = exp2_near_zero(kept - n);
    // The whole number stands in the last bits of `shifted`: moved to the exponent it is the factor 2^n.
    const ivec bits = (ivec)shifted << 23;
    return choose(x < -126.0f, vec{}, (vec)((ivec)p + bits));
}
