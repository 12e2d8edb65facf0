// The gated short convolution in f32.
#include "sizes.h"

using value = float;
using lanes = vec;
constexpr long LANES = W;
INLINE lanes load_value(const value* p) { return load(p); }
INLINE void store_value(value* p, lanes x) { store(p, x); }
INLINE lanes load_f32(const float* p) { return load(p); }
INLINE void store_f32(float* p, lanes x) { store(p, x); }

#include "../short_conv.h"
