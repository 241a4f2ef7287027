// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_ROW_EXCHANGE_H_
#define CROSSHATCH_DTENSOR_ROW_EXCHANGE_H_

/// \file
/// An all-to-all of rows between the ranks of a mesh: the tokens of experts.
/// Every rank gives each other rank as many rows as it likes, and none is fine.
///
/// How many is data, which ranks tell each other first (GatherNumbers): both
/// sides of a transfer know its rows before it is issued, and where they do not
/// agree the collective is an error on every rank that names both.
///
///     // Two rows to rank 0 and one to rank 1; three from rank 0, none from 1.
///     Tensor there = AllToAllRows(x, ExchangeOf({2, 1}, {3, 0}), mesh);

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Rows [first, first + count) of a tensor.
struct RowRun {
  int64_t first = 0;
  int64_t count = 0;

  friend bool operator==(const RowRun& a, const RowRun& b) {
    return a.first == b.first && a.count == b.count;
  }
};

/// What a rank gives and takes. Runs of a peer are matched row by row in their
/// order; how a list is cut into runs may differ between the two sides.
struct RowExchange {
  /// By the peers' indices on the mesh. Together they name each of `rows_given`
  /// once.
  std::vector<std::vector<RowRun>> give;
  /// Together they name each of `rows_taken` once.
  std::vector<std::vector<RowRun>> take;
  int64_t rows_given = 0;
  int64_t rows_taken = 0;

  /// The way back.
  RowExchange Reversed() const { return {take, give, rows_taken, rows_given}; }
};

/// The exchange in which rows are given and taken in the order of the peers:
/// give[r] rows to peer r, take[r] rows from it.
RowExchange ExchangeOf(absl::Span<const int64_t> give,
                       absl::Span<const int64_t> take);

/// (x) -> the rows taken. Of plain tensors: rows are a rank's own.
class AllToAllRowsOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"all_to_all_rows"};
  AllToAllRowsOp(std::shared_ptr<const RowExchange> exchange,
                 const DeviceMesh& mesh)
      : exchange(std::move(exchange)), mesh(mesh) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

  const std::shared_ptr<const RowExchange> exchange;
  const DeviceMesh mesh;
};

/// Exchanges rows on the current stream; the gradient goes the way back, and so
/// does its own. Each row that another rank gives is received once, to its
/// final place: rows_taken but for a rank's own, times the bytes of a row.
/// Checks that `exchange` fits the mesh and x, and that x is a plain tensor.
/// \param x [rows_given, ...], the sizes of a row alike on all ranks.
/// \param mesh its ranks, in row-major order, are the peers; this one is one.
/// \returns [rows_taken, ...]
Tensor AllToAllRows(const Tensor& x, RowExchange exchange,
                    const DeviceMesh& mesh);

/// The numbers of every rank of `mesh`, in row-major order, as many of each:
/// what is to be exchanged, say. Waits for this rank's current stream. On a dry
/// run, which has no data, every rank has what this one has.
/// \error the rank's first error.
absl::StatusOr<std::vector<int64_t>> GatherNumbers(
    absl::Span<const int64_t> numbers, const DeviceMesh& mesh);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_ROW_EXCHANGE_H_
