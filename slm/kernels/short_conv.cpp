// The gated short convolution with activations in bf16.
#include <omp.h>

#include "simd.h"

using value = bf16;
using lanes = __m512;
constexpr long LANES = 16;
INLINE lanes load_value(const value* p) { return load_bf16(p); }
INLINE void store_value(value* p, lanes x) { store_bf16(p, x); }
INLINE lanes load_f32(const float* p) { return _mm512_loadu_ps(p); }
INLINE void store_f32(float* p, lanes x) { _mm512_storeu_ps(p, x); }

#include "short_conv.h"
