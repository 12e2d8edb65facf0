// The matrix micro-kernel that every product here is built on, in one of two instruction sets.
//
//   TileUnit                        lives in each thread of a parallel region while it computes products
//   tile(rows, n_pairs, A, lda, B, use, ahead)   up to MR rows of A, `lda` pairs from row to row, times a panel B [n_pairs][32]
//   pack_left, tile_packed          the same for a left operand that is laid out first, from its columns
//   Columns, tile(columns, B, use)  the same for a few pairs that lie by columns already
//
// Results come by rows: use(row, left 16 columns, right 16 columns). `ahead(part)` is called with 0, 1, 2, ... while the
// product runs, once in 16 pairs, to ask memory for what comes next.
#pragma once
#ifdef SLM_AMX
#include "tile_amx.h"
#else
#include "tile_avx512.h"
#endif
