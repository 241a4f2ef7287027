// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_ROW_EXCHANGE_H_
#define CROSSHATCH_DTENSOR_ROW_EXCHANGE_H_

/// \file
/// An all-to-all of rows between the ranks of a mesh, as for the tokens of
/// experts. Every rank sends any number of rows to every other rank, including
/// none.
///
/// The numbers of rows are data, which ranks exchange first (GatherNumbers).
/// Both sides of a transfer therefore know its rows before it is issued. If
/// they disagree, the collective is an error on every rank that names both.
///
///     // Two rows to rank 0 and one to rank 1; three from rank 0, none from 1.
///     Tensor there = AllToAllRows(x, ExchangeOf({2, 1}, {3, 0}), mesh);

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// The name of the op and the label of its collective. A dry run does not know
/// the numbers of rows that other ranks send.
inline constexpr char kAllToAllRows[] = "all_to_all_rows";

/// Rows [first, first + count) of a tensor.
struct RowRun {
  int64_t first = 0;
  int64_t count = 0;

  friend bool operator==(const RowRun& a, const RowRun& b) {
    return a.first == b.first && a.count == b.count;
  }
};

/// The rows that a rank sends and receives. Runs of a peer are matched row by
/// row in their order. The two sides may cut a list into different runs.
struct RowExchange {
  /// By the peers' indices on the mesh. Together the runs contain each of
  /// `rows_given` rows once.
  std::vector<std::vector<RowRun>> give;
  /// Together the runs contain each of `rows_taken` rows once.
  std::vector<std::vector<RowRun>> take;
  int64_t rows_given = 0;
  int64_t rows_taken = 0;

  /// Returns the exchange in the other direction.
  RowExchange Reversed() const { return {take, give, rows_taken, rows_given}; }
};

/// Returns the exchange of rows in the order of the peers: give[r] rows to peer
/// r, take[r] rows from it.
RowExchange ExchangeOf(absl::Span<const int64_t> give,
                       absl::Span<const int64_t> take);

/// Exchanges rows on the current stream. The gradient is exchanged in the other
/// direction, and so is its gradient. A row from another rank is received once,
/// at its final place: (rows_taken - the rank's own rows) times the bytes of a
/// row. Checks that `exchange` fits the mesh and x, and that x is a plain
/// tensor.
/// \param x [rows_given, ...], with rows of equal sizes on all ranks.
/// \param mesh its ranks, in row-major order, are the peers, this rank
///     included.
/// \returns [rows_taken, ...]
Tensor AllToAllRows(const Tensor& x, RowExchange exchange,
                    const DeviceMesh& mesh);

/// Returns the numbers of every rank of `mesh`, in row-major order, for example
/// the rows to exchange. All ranks pass equally many. Waits for this rank's
/// current stream. In a dry run, which has no data, the numbers of every rank
/// are those of this one.
/// \error the rank's first error.
absl::StatusOr<std::vector<int64_t>> GatherNumbers(
    absl::Span<const int64_t> numbers, const DeviceMesh& mesh);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_ROW_EXCHANGE_H_
