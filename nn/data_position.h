// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_DATA_POSITION_H_
#define CROSSHATCH_NN_DATA_POSITION_H_

/// \file
/// DataPosition: the position of a run in its data, independent of the mesh.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::nn {

/// The position of a run in a data set of numbered rows, which it reads in
/// order and repeatedly. It counts rows of global batches, so a run that
/// resumes on another number of ranks continues with the next row.
///
///     nn::DataPosition position(dataset.size());
///     nn::CombinedState run({{"model", &parameters}, {"data", &position}});
///     for (...) {
///       for (const int64_t row : position.Next(data, /*rows=*/10)) ...
///     }
///
/// All ranks make the same calls.
/// \threadsafety the rank's thread only.
class DataPosition final : public Stateful {
 public:
  /// \param size rows of the data set.
  /// \checks size > 0
  explicit DataPosition(int64_t size);

  /// Returns the rows of the data set that this rank reads of the next global
  /// batch of `rows` rows (RowsOf), each from 0 to size() - 1, and moves past
  /// that batch. Of several micro-batches a step, each is a batch here.
  /// \param data the data-parallel mesh, over which the batch is split.
  std::vector<int64_t> Next(const DeviceMesh& data, int64_t rows);

  /// Moves as Next does and returns each row as epoch * size() + row. A batch
  /// may cross the end of the data, so its rows may be of two epochs. For
  /// another order in each epoch:
  ///
  ///     for (const int64_t index : position.NextIndices(data, /*rows=*/10)) {
  ///       const int64_t epoch = index / position.size();
  ///       const int64_t row = Permuted(seed, epoch, index % position.size());
  ///     }
  std::vector<int64_t> NextIndices(const DeviceMesh& data, int64_t rows);

  int64_t size() const { return size_; }
  /// Returns the first row of the next batch.
  int64_t row() const { return row_; }
  /// Returns the number of times that the data set has been read to its end.
  int64_t epoch() const { return epoch_; }

  absl::StatusOr<StateDict> State() override;
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  /// \error kInvalidArgument for the position of a data set of another size.
  absl::Status Restore(const StateDict& state) override;

 private:
  const int64_t size_;
  int64_t row_ = 0;
  int64_t epoch_ = 0;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_DATA_POSITION_H_
