// The matrix micro-kernel that every product here is built on, in one of two instruction sets.
//
//   TileUnit                        lives in each thread of a parallel region while it computes products
//   tile(rows, n_pairs, A, lda, B, use, ahead)   up to MR rows of A, `lda` pairs from row to row, times a panel B [n_pairs][32]
//   tile_into(add, out, ld, ...)    the same, with the results in rows of f32, `ld` values from row to row, or added to them
//   pack_left, tile_packed_into     the same for a left operand that is laid out first, from its columns
//   Columns, tile_into(..., columns, B)   the same for a few pairs that lie by columns already
//
// Results come by rows: use(row, left 16 columns, right 16 columns). tile_into writes whole blocks: 16 or 32 rows in AMX,
// also where `rows` are fewer. `ahead(part)` is called with 0, 1, 2, ... while the
// product runs, once in 16 pairs, to ask memory for what comes next.
#pragma once
#ifdef SLM_AMX
#include "tile_amx.h"
#else
#include "tile_avx512.h"
#endif
