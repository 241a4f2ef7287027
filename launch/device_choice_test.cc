// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/device_choice.h"

#include <string>

#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The CPU and an emulated device stand for devices 0 and 1.
absl::StatusOr<const DeviceBackend*> OneOfTwo(int index,
                                              const CudaOptions& /*options*/) {
  if (index == 0) return &CpuBackend();
  if (index == 1) return *CudaBackend(0);
  return absl::NotFoundError("no more");
}

RunOptions OnCuda(
    std::function<absl::StatusOr<const DeviceBackend*>(int, const CudaOptions&)>
        find) {
  return {.device = Device::Kind::kCuda, .cuda_device = std::move(find)};
}

TEST(DeviceChoiceTest, DealsRanksOutToTheDevices) {
  const DeviceBackend* const a = &CpuBackend();
  const DeviceBackend* const b = *CudaBackend(0);
  EXPECT_THAT(*ChooseDevices(OnCuda(OneOfTwo), 1), ElementsAre(a));
  EXPECT_THAT(*ChooseDevices(OnCuda(OneOfTwo), 2), ElementsAre(a, b));
  EXPECT_THAT(*ChooseDevices(OnCuda(OneOfTwo), 5), ElementsAre(a, b, a, b, a));
  EXPECT_THAT(*ChooseDevices({}, 3), IsEmpty());
}

TEST(DeviceChoiceTest, SaysWhyThereIsNone) {
  const auto none =
      ChooseDevices(OnCuda([](int, const CudaOptions&) {
                      return absl::NotFoundError("no CUDA device");
                    }),
                    2);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(none.status().message()),
            "--device=cuda: no CUDA device");
  // One that is there and cannot be used is not passed over.
  const auto second = ChooseDevices(
      OnCuda([](int index,
                const CudaOptions&) -> absl::StatusOr<const DeviceBackend*> {
        if (index == 0) return &CpuBackend();
        return absl::FailedPreconditionError("cuda:1 is too old");
      }),
      2);
  EXPECT_EQ(std::string(second.status().message()),
            "--device=cuda: cuda:1 is too old");
}

TEST(DeviceChoiceTest, DevicesGetTheirOptions) {
  bool tf32 = false;
  RunOptions options = OnCuda([&](int index, const CudaOptions& of_cuda) {
    tf32 = of_cuda.tf32;
    return OneOfTwo(index, of_cuda);
  });
  options.cuda.tf32 = true;
  EXPECT_TRUE(ChooseDevices(options, 1).ok());
  EXPECT_TRUE(tf32);
}

TEST(DeviceChoiceTest, NullIsNoDevice) {
  RunOptions options =
      OnCuda([](int index, const CudaOptions&) -> const DeviceBackend* {
        return index == 0 ? &CpuBackend() : nullptr;
      });
  EXPECT_TRUE(ChooseDevices(options, 1).ok());
  EXPECT_EQ(ChooseDevices(options, 2).status(),
            absl::InvalidArgumentError(
                "--device=cuda: RunOptions::cuda_device returned null: it must "
                "return a backend, or an error that says why there is none"));
  options.cuda_of_dry_runs = [] { return nullptr; };
  EXPECT_THAT(std::string(ChooseDeviceOfDryRun(options).status().message()),
              HasSubstr("RunOptions::cuda_of_dry_runs returned null"));
}

TEST(DeviceChoiceTest, ADryRunAsksForNoDevice) {
  EXPECT_EQ(*ChooseDeviceOfDryRun({}), nullptr);
  RunOptions options = OnCuda(
      [](int, const CudaOptions&) -> absl::StatusOr<const DeviceBackend*> {
        ADD_FAILURE() << "asked for a device";
        return absl::NotFoundError("no CUDA device");
      });
  options.cuda_of_dry_runs = [] { return CudaBackend(0); };
  EXPECT_EQ(*ChooseDeviceOfDryRun(options), *CudaBackend(0));
  options.cuda_of_dry_runs = [] {
    return absl::UnimplementedError("no code for CUDA");
  };
  EXPECT_EQ(std::string(ChooseDeviceOfDryRun(options).status().message()),
            "--device=cuda: no code for CUDA");
}

TEST(DeviceChoiceTest, DevicesHaveNames) {
  EXPECT_EQ(*ParseDevice("cpu", "--d"), Device::Kind::kCpu);
  EXPECT_EQ(*ParseDevice("cuda", "--d"), Device::Kind::kCuda);
  EXPECT_THAT(std::string(ParseDevice("gpu", "--d").status().message()),
              HasSubstr("--d=gpu: must be cpu or cuda"));
}

}  // namespace
}  // namespace crosshatch
