// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/counting_engine_testutil.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/transport.h"

namespace crosshatch {
namespace {

class CountingTransport final : public Transport {
 public:
  CountingTransport(std::unique_ptr<Transport> inner, int members,
                    CountingEngine::Counts& counts)
      : inner_(std::move(inner)), members_(members), counts_(counts) {}

  void Bind(Stream& stream) override { inner_->Bind(stream); }
  absl::Status Run(const Collective& collective, const Fingerprint& fingerprint,
                   KernelContext& context) override {
    return inner_->Run(collective, fingerprint, context);
  }
  absl::StatusOr<std::vector<std::string>> Gather(
      std::string blob, const std::string& what) override {
    ++counts_.exchanges;
    counts_.messages += members_ - 1;
    counts_.bytes += static_cast<int64_t>(blob.size()) * (members_ - 1);
    return inner_->Gather(std::move(blob), what);
  }
  void Fail(const absl::Status& failure) override { inner_->Fail(failure); }

 private:
  const std::unique_ptr<Transport> inner_;
  const int members_;
  CountingEngine::Counts& counts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CountingEngine::Connect(
    const GroupKey& key, int member) {
  CH_ASSIGN_OR_RETURN(std::unique_ptr<Transport> inner,
                      inner_.Connect(key, member));
  ++counts_.groups;
  return std::make_unique<CountingTransport>(std::move(inner), key.size(),
                                             counts_);
}

}  // namespace crosshatch
