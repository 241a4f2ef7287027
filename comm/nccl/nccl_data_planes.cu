// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/process.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/nccl/nccl_comm.h"
#include "crosshatch/comm/nccl/nccl_data_plane.h"
#include "crosshatch/comm/nccl/nccl_data_planes.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"

namespace crosshatch::internal {
namespace {

constexpr size_t kPlaceBytes = 160;
/// The last byte if the process supports several ranks on a device.
constexpr char kSeveral = 1;

/// Returns "GPU 0000:65:00.0 of host n1" and, on a line of its own, an identity
/// of the host, since hosts may share a name. Shorter than kPlaceBytes.
std::string PlaceOf(int device) {
#if defined(CROSSHATCH_CUDA_EMULATION)
  const std::string bus = absl::StrCat(device);
#else
  char bus[32] = {};
  CheckCuda(cudaDeviceGetPCIBusId(bus, sizeof(bus), device),
            "cudaDeviceGetPCIBusId");
#endif
  return absl::StrCat("GPU ", bus, " of host ", ThisMachine());
}

/// The environment in which NCCL supports several ranks on a device. Otherwise
/// a kernel that is loaded at its first launch waits for the device, where
/// another rank waits for that kernel, and streams share the device's queues.
constexpr std::pair<const char*, const char*> kForSeveral[] = {
    {"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
    {"CUDA_MODULE_LOADING", "EAGER"},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "32"}};

/// Returns whether NCCL supports several ranks on a device, and is set to do
/// so.
bool TakesSeveralOnADevice() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess || version < 23000) return false;
  return std::all_of(
      std::begin(kForSeveral), std::end(kForSeveral), [](const auto& variable) {
        const char* const value = std::getenv(variable.first);
        return value != nullptr && std::string(value) == variable.second;
      });
}

/// Checks that each rank has its own device, because NCCL would only report an
/// invalid usage.
/// \param blobs by member: its device, and whether its process supports several
///     ranks there; equal on all members
absl::Status CheckPlaces(const GroupKey& key,
                         const std::vector<std::string>& blobs) {
  const bool takes_several = std::all_of(
      blobs.begin(), blobs.end(),
      [](const std::string& one) { return one[kPlaceBytes - 1] == kSeveral; });
  if (takes_several) return absl::OkStatus();
  std::map<std::string, int> rank_at;
  for (size_t r = 0; r < blobs.size(); ++r) {
    const std::string place = blobs[r].substr(0, blobs[r].find('\0'));
    const auto [at, is_first] = rank_at.emplace(place, key.world_ranks[r]);
    if (is_first) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(key), ": ranks ", at->second, " and ", key.world_ranks[r],
        " are both on ", place.substr(0, place.find('\n')),
        ", and NCCL supports one rank on a GPU: start one process for each "
        "GPU, and select its GPU with LOCAL_RANK or CUDA_VISIBLE_DEVICES; rank "
        "threads of one process share GPUs, and so do processes with NCCL 2.30 "
        "or later and ",
        absl::StrJoin(kForSeveral, ", ", absl::PairFormatter("=")),
        " in all of them"));
  }
  return absl::OkStatus();
}

class Planes final : public DataPlanes {
 public:
  explicit Planes(const NcclOptions& options) : options_(options) {}

  const std::string& name() const override { return name_; }
  bool moves_host_memory() const override { return false; }
  bool can_be_captured() const override { return true; }

  absl::Status Split(const std::vector<int>& world_ranks,
                     const std::vector<std::vector<int>>& groups,
                     RankContext& context, absl::Duration timeout,
                     Exchange exchange) override {
    if (world_ranks.size() < 2) return absl::OkStatus();
    SetDevice(context);
    const GroupKey all = {"world", world_ranks, "split"};
    auto whole = undivided_.find(world_ranks);
    if (whole == undivided_.end()) {
      const auto me = std::find(world_ranks.begin(), world_ranks.end(),
                                context.world_rank());
      CH_ASSIGN_OR_RETURN(std::unique_ptr<NcclComm> made,
                          OfId(all, static_cast<int>(me - world_ranks.begin()),
                               context, timeout, exchange));
      whole = undivided_.emplace(world_ranks, std::move(made)).first;
    }
    for (const std::vector<int>& group : groups) {
      // All ranks skip the group of all ranks. No other group is skipped,
      // whatever its size: ranks without a group do not know it, and split.
      if (group == world_ranks) continue;
      const auto me =
          std::find(group.begin(), group.end(), context.world_rank());
      const std::optional<int> color =
          group.empty() ? std::nullopt : std::optional(group[0]);
      CH_ASSIGN_OR_RETURN(
          std::unique_ptr<NcclComm> made,
          NcclComm::Split(*whole->second, color,
                          static_cast<int>(me - group.begin()),
                          Describe({"axis", group, "split"}), timeout));
      if (made != nullptr) undivided_[group] = std::move(made);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<DataPlane>> Connect(
      const GroupKey& key, int member, RankContext& context,
      absl::Duration timeout, Exchange exchange) override {
    std::unique_ptr<NcclComm> comm;
    if (key.size() > 1) {
      SetDevice(context);
      const auto found = undivided_.find(key.world_ranks);
      if (found == undivided_.end()) {
        CH_ASSIGN_OR_RETURN(comm,
                            OfId(key, member, context, timeout, exchange));
      } else {
        CH_ASSIGN_OR_RETURN(comm,
                            NcclComm::Split(*found->second, /*color=*/0, member,
                                            Describe(key), timeout));
      }
    }
    return MakeNcclDataPlane(key, member, context, options_, std::move(comm));
  }

  void Abort(RankContext& context) override {
    SetDevice(context);
    for (const auto& [ranks, comm] : undivided_) comm->Abort();
  }

 private:
  void SetDevice(const RankContext& context) {
    if (context.id() != context_) undivided_.clear();
    context_ = context.id();
    CheckCuda(cudaSetDevice(context.device().index()), "cudaSetDevice");
  }

  /// Creates a communicator from an id of the group's first member.
  absl::StatusOr<std::unique_ptr<NcclComm>> OfId(const GroupKey& key,
                                                 int member,
                                                 RankContext& context,
                                                 absl::Duration timeout,
                                                 Exchange exchange) {
    // The device, whether it supports several ranks, and from the first member
    // the id.
    std::string mine = PlaceOf(context.device().index());
    mine.resize(kPlaceBytes);
    if (TakesSeveralOnADevice()) mine[kPlaceBytes - 1] = kSeveral;
    ncclUniqueId id = {};
    // With an empty id, all members fail alike.
    if (member == 0 && ncclGetUniqueId(&id) == ncclSuccess) {
      mine.append(id.internal, sizeof(id.internal));
    }
    CH_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        exchange(std::move(mine)));
    CH_RETURN_IF_ERROR(CheckPlaces(key, blobs));
    return NcclComm::Create(blobs[0].substr(kPlaceBytes), key.size(), member,
                            Describe(key), timeout);
  }

  const std::string name_ = "nccl";
  const NcclOptions options_;
  /// RankContext::id of the rank that owns the following.
  uint64_t context_ = 0;
  /// By members. They are only split; no work is issued to them.
  std::map<std::vector<int>, std::shared_ptr<NcclComm>> undivided_;
};

}  // namespace
}  // namespace crosshatch::internal

namespace crosshatch {

std::unique_ptr<DataPlanes> MakeNcclDataPlanes(const NcclOptions& options) {
  return std::make_unique<internal::Planes>(options);
}

}  // namespace crosshatch
