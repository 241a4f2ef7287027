// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_DATA_PARALLEL_H_
#define CROSSHATCH_EXAMPLES_DATA_PARALLEL_H_

/// \file
/// DataParallel: how rows split over the ranks of some axes of a mesh, and sums
/// over these ranks.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::examples {

/// \threadsafety the rank's thread only.
class DataParallel {
 public:
  /// \param axes of `mesh`, major first.
  /// \error as DeviceMesh::communicator
  static absl::StatusOr<DataParallel> Create(
      const DeviceMesh& mesh, const std::vector<std::string>& axes);

  /// This rank's of `count` rows; of few rows it may have none.
  Interval RowsOf(int64_t count) const {
    return rows_.DimInterval(0, count, *mesh_.coordinate());
  }

  /// The sum of the ranks' `scalar`, in float64, in which it is overwritten; 0
  /// on a dry run. Waits for the current stream.
  /// \error the rank's first error
  absl::StatusOr<double> Sum(const Tensor& scalar,
                             const std::string& label) const;

 private:
  DataParallel(DeviceMesh mesh, Layout rows, Communicator* comm)
      : mesh_(std::move(mesh)), rows_(std::move(rows)), comm_(comm) {}

  DeviceMesh mesh_;
  Layout rows_;  // Of a tensor of one dim.
  Communicator* comm_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_DATA_PARALLEL_H_
