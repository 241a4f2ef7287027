// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_communicator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"

namespace crosshatch::internal {

LocalCommunicator::LocalCommunicator(std::shared_ptr<LocalHub> hub,
                                     RankContext& context, const GroupKey& key,
                                     int member)
    : Communicator(key.name, member, key.world_ranks),
      hub_(std::move(hub)),
      context_(context),
      group_(hub_->Group(key)) {}

absl::StatusOr<std::vector<std::string>> LocalCommunicator::Exchange(
    std::string blob, const std::string& label) {
  if (context_.poisoned()) {
    Abort(context_.status());
    return context_.status();
  }
  absl::StatusOr<std::vector<std::string>> blobs =
      group_->Exchange(rank(), blob, label);
  if (!blobs.ok()) context_.Poison(blobs.status());
  return blobs;
}

void LocalCommunicator::Abort(absl::Status error) {
  CH_CHECK(!error.ok()) << Describe() << " aborted without an error";
  const absl::Status failure(
      error.code(), absl::StrCat(Describe(), " was aborted by rank ",
                                 world_ranks()[rank()], ": ", error.message()));
  hub_->FailGroup(*group_, failure);
}

void LocalCommunicator::IssueChecked(Collective collective, int64_t sequence,
                                     Stream& stream) {
  if (stream_ == nullptr) {
    stream_ = &stream;
    group_->SetAgent(rank(), context_.AgentOf(stream));
  }
  CH_CHECK(stream_ == &stream)
      << Describe() << " is used on stream " << stream_->name()
      << " and then on stream " << stream.name();
  stream.Launch(
      [this, collective = std::move(collective), sequence](KernelContext&) {
        if (context_.poisoned()) {
          // Peers may be on their way to this collective.
          Abort(context_.status());
          return;
        }
        const absl::Status status =
            group_->Run(rank(), collective, sequence, context_.kernels());
        if (!status.ok()) context_.Poison(status);
      });
}

}  // namespace crosshatch::internal
