// SPDX-License-Identifier: Apache-2.0

/// \file
/// The code of docs/point_to_point.md, which prints the text between [name] and
/// [/name].

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/functional_collectives.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace ch = crosshatch;

namespace {

// [ring]
// Returns the sum of squares of the products of this rank's queries with the
// keys of all ranks. `rows` are the numbers of keys of each rank.
ch::Tensor Energy(const ch::Tensor& queries, ch::Tensor keys,
                  const std::vector<int64_t>& rows,
                  const ch::DeviceMesh& ring) {
  const int size = ring.size();
  ch::Tensor sum = ch::Zeros({});
  for (int step = 0; step < size; ++step) {
    const ch::Tensor scores = ch::MatMul(queries, ch::Transpose(keys, 0, 1));
    sum = ch::Add(sum, ch::Sum(ch::Square(scores)));
    if (step == size - 1) break;
    // Those of this rank's predecessor, which has those of its own.
    const int next = (*ring.index(0) - step - 1 + size) % size;
    keys = ch::Shift(keys, ring, 1,
                     {.receive_sizes = {{rows[next], keys.size(1)}}});
  }
  return sum;
}
// [/ring]

// [halo]
// Subtracts from each row the row before it, which for the first row of a rank
// is on the rank before. The row before the first of all is zero.
ch::Tensor Differences(const ch::Tensor& x, const ch::DeviceMesh& axis) {
  const int64_t rows = x.size(0);
  const ch::Tensor before =
      ch::Shift(ch::Narrow(x, 0, rows - 1, 1), axis, 1, {.wrap = false});
  return ch::Sub(x, ch::Cat({before, ch::Narrow(x, 0, 0, rows - 1)}, 0));
}
// [/halo]

ch::Tensor Rows(int64_t begin, int64_t end, int64_t width) {
  ch::Tensor x =
      ch::Reshape(ch::Narrow(ch::ToDType(ch::Arange(100), ch::kFloat32), 0,
                             begin * width, (end - begin) * width),
                  {end - begin, width});
  x.set_requires_grad(true);
  return x;
}

TEST(PointToPointPage, RingGivesWhatAGatherGives) {
  ch::OnMesh(
      {{"fsdp", 1}, {"tp", 1}, {"context", 3}},
      [](const ch::DeviceMesh& mesh) -> absl::Status {
        // [timeout]
        CH_RETURN_IF_ERROR(mesh.SetTimeout("context", absl::Minutes(2)));
        CH_ASSIGN_OR_RETURN(const ch::DeviceMesh ring, mesh.Slice("context"));
        // [/timeout]
        const std::vector<int64_t> rows = {3, 0, 2};
        const int64_t begins[] = {0, 3, 3, 5};
        const int here = *ring.index(0);
        const auto keys = [&] {
          return Rows(begins[here], begins[here + 1], 2);
        };
        const ch::Tensor queries = Rows(here, here + 2, 2).Detach();
        const ch::Tensor a = keys();
        const ch::Tensor energy = Energy(queries, a, rows, ring);
        CH_RETURN_IF_ERROR(ch::Backward(energy));
        const ch::Tensor b = keys();
        // [gather]
        const ch::Tensor whole = ch::AllGather(b, ring, /*dim=*/0, rows);
        // [/gather]
        const ch::Tensor expected = ch::Sum(
            ch::Square(ch::MatMul(queries, ch::Transpose(whole, 0, 1))));
        CH_RETURN_IF_ERROR(ch::Backward(expected));
        // Integers below 2^24: sums in any order are exact.
        CH_EXPECT_EQ(energy.ToVector<float>(), expected.ToVector<float>());
        CH_EXPECT_EQ(a.grad().ToVector<float>(), b.grad().ToVector<float>());
        return absl::OkStatus();
      });
}

TEST(PointToPointPage, DifferencesCrossRanks) {
  ch::OnMesh({{"context", 3}}, [](const ch::DeviceMesh& axis) -> absl::Status {
    const int here = *axis.index(0);
    const ch::Tensor x = Rows(2 * here, 2 * here + 2, 3);
    const float first = here == 0 ? 0 : 3;
    std::vector<float> expected(6, 3.0F);
    // Row 0 holds 0, 1 and 2, and nothing is before it.
    for (int i = 0; i < 3; ++i) {
      expected[i] = here == 0 ? static_cast<float>(i) : first;
    }
    CH_EXPECT_EQ(Differences(x, axis).ToVector<float>(), expected);
    return absl::OkStatus();
  });
}

}  // namespace
