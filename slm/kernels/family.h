// The number format that a source is compiled for: activations in bf16 (SLM_BF16) or in f32. The bodies beside this file are
// written once, over what both folders define:
//
//   value, packed        an activation; an item of a packed operand: PAIR activations that follow each other along the
//                        reduced dimension
//   lanes, LANES         a vector of f32; load_value, store_value, store_values, load_f32, store_f32, all, sum_of, max_lane
//   MR, NR               rows and columns of a tile; NR = 2 LANES is the width of a packed panel
//   gemm, gemm_loop      activations times packed weights; each result goes to use(row, panel, left LANES, right LANES)
//   product_into, Columns, TileUnit     single tiles
#pragma once
#ifdef SLM_BF16
#include "bf16/operands.h"
#else
#include "f32/operands.h"
#endif
#include "gemm.h"
