// 2^x near zero, tanh, and a gated feed-forward's activation, over the vectors of a number format (family.h).
#pragma once

constexpr float LOG2_E = 1.44269504f;

// 2^r to f32 precision for r in [-1/2, 1/2] (degree-6 polynomial).
INLINE lanes exp2_near_zero(lanes r) {
    lanes p = all(1.5403530e-4f);
    p = p * r + 1.3333558e-3f;
    p = p * r + 9.6181291e-3f;
    p = p * r + 5.5504109e-2f;
    p = p * r + 2.4022651e-1f;
    p = p * r + 6.9314718e-1f;
    return p * r + 1.0f;
}
INLINE lanes exp2_of(lanes x);

// For x below -87 the true value is below 1e-38 and this gives about that.
INLINE lanes sigmoid(lanes x) { return reciprocal(1.0f + exp2_of(min_of(x * -LOG2_E, all(126.0f)))); }

// To f32 precision, near zero by its series: there 2 sigmoid(2 x) - 1 keeps few digits. NaN gives NaN.
INLINE lanes tanh_of(lanes x) {
    const lanes square = x * x;
    const lanes near = x * (square * (square * (square * -0.0539682540f + 0.1333333333f) - 0.3333333333f) + 1.0f);
    return choose(square > 0.0625f, sigmoid(x * 2.0f) * 2.0f - 1.0f, near);
}

// f(x) = x sigmoid(z(x)) and its slope: SiLU with z = x, or GELU's tanh form with z = 2 c (x + 0.044715 x^3),
// c = sqrt(2 / pi).
struct Activation {
    lanes value, slope;
};
INLINE Activation activation(lanes x, bool gelu) {
    if (gelu) {
        const lanes square = x * x, s = sigmoid(x * (square * 0.0713548163f + 1.5957691216f));
        return {x * s, s * (x * (1.0f - s) * (square * 0.2140644489f + 1.5957691216f) + 1.0f)};
    }
    const lanes s = sigmoid(x);
    return {x * s, s * (x * (1.0f - s) + 1.0f)};
}
