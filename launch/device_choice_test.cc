// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/device_choice.h"

#include <string>

#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/backends/reference/reference_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two backends stand for devices 0 and 1.
absl::StatusOr<const DeviceBackend*> OneOfTwo(int index) {
  if (index == 0) return &CpuBackend();
  if (index == 1) return &ReferenceBackend();
  return absl::NotFoundError("no more");
}

RunOptions OnCuda(
    std::function<absl::StatusOr<const DeviceBackend*>(int)> find) {
  return {.device = Device::Kind::kCuda, .cuda_device = std::move(find)};
}

TEST(DeviceChoiceTest, DealsRanksOutToTheDevices) {
  const DeviceBackend* const a = &CpuBackend();
  const DeviceBackend* const b = &ReferenceBackend();
  EXPECT_THAT(*ChooseDevices(OnCuda(OneOfTwo), 1), ElementsAre(a));
  EXPECT_THAT(*ChooseDevices(OnCuda(OneOfTwo), 2), ElementsAre(a, b));
  EXPECT_THAT(*ChooseDevices(OnCuda(OneOfTwo), 5), ElementsAre(a, b, a, b, a));
  EXPECT_THAT(*ChooseDevices({}, 3), IsEmpty());
}

TEST(DeviceChoiceTest, SaysWhyThereIsNone) {
  const auto none = ChooseDevices(
      OnCuda([](int) { return absl::NotFoundError("no CUDA device"); }), 2);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(none.status().message()),
            "--device=cuda: no CUDA device");
  // One that is there and cannot be used is not passed over.
  const auto second = ChooseDevices(
      OnCuda([](int index) -> absl::StatusOr<const DeviceBackend*> {
        if (index == 0) return &CpuBackend();
        return absl::FailedPreconditionError("cuda:1 is too old");
      }),
      2);
  EXPECT_EQ(std::string(second.status().message()),
            "--device=cuda: cuda:1 is too old");
}

TEST(DeviceChoiceTest, DevicesHaveNames) {
  EXPECT_EQ(*ParseDevice("cpu", "--d"), Device::Kind::kCpu);
  EXPECT_EQ(*ParseDevice("cuda", "--d"), Device::Kind::kCuda);
  EXPECT_THAT(std::string(ParseDevice("gpu", "--d").status().message()),
              HasSubstr("--d=gpu: must be cpu or cuda"));
}

}  // namespace
}  // namespace crosshatch
