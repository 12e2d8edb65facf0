// What callers must know of the kernels' sizes. Compiled for any processor: nothing here needs AVX-512.
#ifdef SLM_BF16
#include "bf16/sizes.h"
#else
#include "f32/sizes.h"
#endif

extern "C" {

// Bytes of one value of an activation.
long slm_activation_bytes() { return sizeof(value); }

// Widths of layers and heads are multiples of this.
long slm_width_multiple() { return NR; }

// The largest head_dim.
long slm_max_head_dim() { return MAX_HEAD_DIM; }

// Rows of logits that slm_cross_entropy needs where it does not keep them (keep = 0).
long slm_cross_entropy_rows() { return LOSS_ROWS; }

// Packed items of scratch for slm_attention_forward: keys and values.
long slm_attention_scratch(long B, long T, long K, long E) { return B * K * 2 * padded_length(T) * E / PAIR; }

// f32 values of scratch for slm_attention_backward: keys' and values' gradients of every query head.
long slm_attention_backward_scratch(long B, long T, long H, long E) { return B * H * 2 * padded_length(T) * E; }

// Packed items of scratch for slm_weight_gradient.
long slm_weight_gradient_scratch(long m, long n, long k) { return gradient_scratch(m, n, k); }

// f32 values of scratch for slm_rmsnorm_backward.
long slm_rmsnorm_backward_scratch(long d) { return NORM_PARTS * d; }

// f32 values of scratch for slm_short_conv_backward.
long slm_short_conv_scratch(long d, long taps) { return NORM_PARTS * taps * d; }

}  // extern "C"
