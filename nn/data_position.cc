// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/data_position.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::nn {

DataPosition::DataPosition(int64_t size) : size_(size) {
  CH_CHECK(size > 0) << "a DataPosition in a data set of " << size << " rows";
}

std::vector<int64_t> DataPosition::Next(const DeviceMesh& data, int64_t rows) {
  std::vector<int64_t> read = NextIndices(data, rows);
  for (int64_t& row : read) row %= size_;
  return read;
}

std::vector<int64_t> DataPosition::NextIndices(const DeviceMesh& data,
                                               int64_t rows) {
  const Interval mine = RowsOf(data, rows);
  std::vector<int64_t> read;
  read.reserve(static_cast<size_t>(mine.size()));
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    read.push_back(epoch_ * size_ + row_ + i);
  }
  epoch_ += (row_ + rows) / size_;
  row_ = (row_ + rows) % size_;
  return read;
}

absl::StatusOr<StateDict> DataPosition::State() {
  StateDict state;
  CH_RETURN_IF_ERROR(state.Add("size", size_));
  CH_RETURN_IF_ERROR(state.Add("row", row_));
  CH_RETURN_IF_ERROR(state.Add("epoch", epoch_));
  return state;
}

absl::StatusOr<StateDict> DataPosition::StateToFill(
    const std::vector<std::string>& saved) {
  CH_ASSIGN_OR_RETURN(StateDict state, State());
  CH_RETURN_IF_ERROR(
      MatchStateNames("this DataPosition", NamesOf(state), saved, {}).status());
  return state;
}

absl::Status DataPosition::Restore(const StateDict& state) {
  CH_ASSIGN_OR_RETURN(const int64_t size, state.Get<int64_t>("size"));
  CH_ASSIGN_OR_RETURN(const int64_t row, state.Get<int64_t>("row"));
  CH_ASSIGN_OR_RETURN(const int64_t epoch, state.Get<int64_t>("epoch"));
  if (size != size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the position is that of a data set of ", size,
                     " rows, and this one has ", size_));
  }
  if (row < 0 || row >= size || epoch < 0) {
    return absl::DataLossError(absl::StrCat("row ", row, " of epoch ", epoch,
                                            " is no position in ", size,
                                            " rows"));
  }
  row_ = row;
  epoch_ = epoch;
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
