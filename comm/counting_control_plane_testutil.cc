// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/counting_control_plane_testutil.h"

#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"

namespace crosshatch {
namespace {

class CountingGroup final : public ControlGroup {
 public:
  CountingGroup(std::unique_ptr<ControlGroup> inner, int members,
                CountingControlPlane::Counts& counts)
      : inner_(std::move(inner)), members_(members), counts_(counts) {}

  void Bind(Stream& stream) override { inner_->Bind(stream); }
  absl::Status Agree(const Fingerprint& fingerprint,
                     absl::FunctionRef<void(PayloadRoom)> offer) override {
    return inner_->Agree(fingerprint, offer);
  }
  absl::string_view Of(int member) const override { return inner_->Of(member); }
  void Done() override { inner_->Done(); }
  absl::StatusOr<std::vector<std::string>> Gather(
      GatherOrder order, std::string blob, const std::string& what) override {
    ++counts_.exchanges;
    counts_.messages += members_ - 1;
    counts_.bytes += static_cast<int64_t>(blob.size()) * (members_ - 1);
    return inner_->Gather(order, std::move(blob), what);
  }
  absl::Status Fail(const absl::Status& failure) override {
    return inner_->Fail(failure);
  }

 private:
  const std::unique_ptr<ControlGroup> inner_;
  const int members_;
  CountingControlPlane::Counts& counts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlGroup>> CountingControlPlane::Join(
    const GroupKey& key, int member, absl::Duration timeout) {
  CH_ASSIGN_OR_RETURN(std::unique_ptr<ControlGroup> inner,
                      inner_.Join(key, member, timeout));
  ++counts_.groups;
  return std::make_unique<CountingGroup>(std::move(inner), key.size(), counts_);
}

}  // namespace crosshatch
