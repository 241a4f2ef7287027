// SPDX-License-Identifier: Apache-2.0

/// \file
/// Tests that need emulated CUDA devices: counts of runtime calls, and delayed
/// streams.

#include <cstdint>
#include <sstream>
#include <string>
#include <thread>

#include "crosshatch/base/check.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(EmulatedCudaDeviceTest, NamesADeviceThatIsNotThere) {
  for (int index : {-1, 2}) {
    const auto backend = CudaBackend(index);
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(backend.status().message()),
                HasSubstr("the process sees 2"));
  }
}

TEST(EmulatedCudaDeviceTest, AStepWaitsForNothingAndAllocatesNothing) {
  const Tensor a = Zeros({40, 30});
  const auto step = [&] {
    Tensor x = a;
    for (int i = 0; i < 5; ++i) x = MatMul(x, MatMul(Transpose(a, 0, 1), x));
  };
  step();
  step();
  const emulation::RuntimeCounts before = emulation::CountsOfRuntime();
  step();
  const emulation::RuntimeCounts after = emulation::CountsOfRuntime();
  EXPECT_EQ(after.kernels - before.kernels, 10);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.synchronizations, before.synchronizations);
  EXPECT_EQ(after.host_functions, before.host_functions);
}

struct Batch {
  Tensor rows;        // f32[2, 3]
  Tensor transposed;  // f32[3, 2], a view of `rows`.
  Tensor ids;         // i64[2]
  Tensor none;        // f32[0, 3]
};

Batch MadeByALoader() {
  Batch batch;
  std::thread([&] {
    batch.rows = FromValues<float>({2, 3}, {0, 1, 2, 3, 4, 5});
    batch.transposed = Transpose(batch.rows, 0, 1);
    batch.ids = FromValues<int64_t>({2}, {1, 0});
    batch.none = Zeros({0, 3});
  }).join();
  return batch;
}

class Words final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {table_.Forward(inputs[0])};
  }

 private:
  nn::Embedding& table_ = Make<nn::Embedding>("table", 4, 2);
};

// ToThisDevice moves tensors of a thread without a rank to the current device:
// values, gradients and memory are right, also for strided and empty tensors.
// Any other use ends with an error.
TEST(EmulatedCudaDeviceDeathTest, CopiesTensorsOfALoader) {
  RankContext& rank = RankContext::Current();
  const Device device = rank.device();
  ASSERT_NE(device, Device::Cpu());
  const Batch batch = MadeByALoader();
  ASSERT_EQ(batch.rows.device(), Device::Cpu());
  // The host may read its own tensors.
  EXPECT_THAT(batch.transposed.ToVector<float>(),
              ElementsAre(0, 3, 1, 4, 2, 5));

  const int64_t before = rank.device_allocator().stats().current_total;
  {
    const Tensor rows = ToThisDevice(batch.rows);
    EXPECT_EQ(rows.device(), device);
    EXPECT_EQ(rank.device_allocator().stats().current_total, before + 6 * 4);
    EXPECT_TRUE(ToThisDevice(rows).SameAs(rows));
    EXPECT_THAT(rows.ToVector<float>(), ElementsAre(0, 1, 2, 3, 4, 5));
    const Tensor transposed = ToThisDevice(batch.transposed);
    EXPECT_TRUE(transposed.is_contiguous());
    EXPECT_THAT(transposed.ToVector<float>(), ElementsAre(0, 3, 1, 4, 2, 5));
    EXPECT_THAT(ToThisDevice(Select(batch.transposed, 1, 1)).ToVector<float>(),
                ElementsAre(3, 4, 5));
    EXPECT_EQ(ToThisDevice(batch.none).sizes(), Shape({0, 3}));
    EXPECT_THAT(ToThisDevice(batch.none).ToVector<float>(), IsEmpty());

    // A copy belongs to the rank and may be written and trained.
    const Tensor weight = Ones({2, 3}).set_requires_grad(true);
    ASSERT_TRUE(Backward(Sum(Mul(weight, rows))).ok());
    EXPECT_THAT(weight.grad().ToVector<float>(), ElementsAre(0, 1, 2, 3, 4, 5));
    AddInPlace(rows, rows);
    EXPECT_THAT(rows.ToVector<float>(), ElementsAre(0, 2, 4, 6, 8, 10));
    EXPECT_THAT(batch.rows.ToVector<float>(), ElementsAre(0, 1, 2, 3, 4, 5));
    EXPECT_THAT(
        Embedding(ToThisDevice(batch.ids), Ones({2, 1})).ToVector<float>(),
        ElementsAre(1, 1));
  }
  EXPECT_EQ(rank.device_allocator().stats().current_total, before);

  std::ostringstream name;
  name << device;
  const std::string refusal =
      "f32\\[2, 3\\] on cpu is used on " + name.str() +
      ": a thread without a "
      "rank, such as a loader's, made it; bring it to the rank's device by "
      "ToThisDevice";
  EXPECT_DEATH(Add(batch.rows, 1.0), refusal);
  EXPECT_DEATH(Add(Ones({2, 3}), batch.rows), refusal);
  EXPECT_DEATH(Clone(batch.rows), refusal);
}

// However late the device reports it.
TEST(EmulatedCudaDeviceDeathTest, NamesThePlaceOfAnIdOutOfRange) {
  const auto look_up = [] {
    Words words;
    CH_CHECK_OK(words.Materialize({}));
    const Tensor rows = words.Forward(FromValues<int64_t>({3}, {0, 7, 1}));
    // By then the thread runs other code.
    Add(rows, rows).ToVector<float>();
  };
  EXPECT_DEATH(
      look_up(),
      "id 7 at 1 is out of range: there are 4 rows in the table\n"
      "  at .*module table \\(Embedding\\), op embedding of i64\\[3\\] "
      "on [^,]*, f32\\[4, 2\\]");
}

}  // namespace
}  // namespace crosshatch
