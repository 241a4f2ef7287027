// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_WARP_MATRIX_H_
#define CROSSHATCH_EMULATION_WARP_MATRIX_H_

/// \file
/// Instructions that multiply matrices, each by all lanes of a warp together.
/// Lanes have their parts of the matrices where the PTX ISA puts them ("Matrix
/// fragments for mma.m16n8k16", "ldmatrix"). With g = lane / 4, t = lane % 4,
/// and of a pair of 16-bit elements the first in the lower bits:
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
/// What a device would leave undefined ends the program (grid.h): lanes that
/// come to different ones of these, a lane that never comes, a row that is not
/// aligned.

#include <cstdint>

namespace crosshatch::emulation {

/// c += a b: mma.sync.m16n8k16.row.col with 16-bit elements, whose values
/// `widen` gives. Sums are rounded at each term, in order.
void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                 float (*widen)(uint16_t));

/// ldmatrix.sync.m8n8.x4: four matrices of 8 x 8 elements of 16 bits, of which
/// lane l points to row l % 8 of the matrix l / 8: 16 bytes, aligned to them,
/// in shared memory.
/// \param[out] pairs row g, columns 2t and 2t + 1, of each; of a `transposed`
///     one rows 2t and 2t + 1, column g
void LoadMatrices(uint32_t (&pairs)[4], const void* row, bool transposed);

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_WARP_MATRIX_H_
