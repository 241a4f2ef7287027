// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_WARP_MATRIX_H_
#define CROSSHATCH_EMULATION_WARP_MATRIX_H_

/// \file
/// Matrix instructions, executed by all lanes of a warp together. Lanes hold
/// the fragments that the PTX ISA defines ("Matrix fragments for mma.m16n8k16",
/// "ldmatrix"), with g = lane / 4 and t = lane % 4. The first of a pair of
/// 16-bit elements is in the lower bits.
///
/// | | of a matrix | row | columns |
/// |---|---|---|---|
/// | a[i] | 16 x 16 | g + 8 (i % 2) | 2t + 8 (i / 2), and the next |
/// | c[2i], c[2i + 1] | 16 x 8 | g + 8 i | 2t, 2t + 1 |
///
/// | | of a matrix | rows | column |
/// |---|---|---|---|
/// | b[i] | 16 x 8 | 2t + 8 i, and the next | g |
///
/// Undefined behaviour ends the program (grid.h): different instructions on the
/// lanes of a warp, a missing lane, an unaligned row, lanes that may have
/// diverged (CheckConverged).

#include <cstdint>

namespace crosshatch::emulation {

/// Computes c += a b: mma.sync.m16n8k16.row.col with 16-bit elements, converted
/// by `widen`. Sums are rounded at each term, in order.
void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                 float (*widen)(uint16_t));

/// Loads four matrices of 8 x 8 16-bit elements: ldmatrix.sync.m8n8.x4. Lane l
/// passes row l % 8 of matrix l / 8: 16 aligned bytes in shared memory.
/// \param[out] pairs row g, columns 2t and 2t + 1, of each matrix; if
///     `transposed`, rows 2t and 2t + 1, column g
void LoadMatrices(uint32_t (&pairs)[4], const void* row, bool transposed);

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_WARP_MATRIX_H_
