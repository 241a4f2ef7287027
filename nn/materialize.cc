// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/materialize.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

bool IsDeferred(const Parameter& parameter) {
  return !LocalTensor(parameter.data()).storage()->attached();
}

void Fill(const Parameter& parameter, const MaterializeOptions& options) {
  const Tensor& data = parameter.data();
  const Initializer& initializer = parameter.initializer();
  switch (initializer.kind) {
    case Initializer::Kind::kZeros:
      return ZeroInPlace(WritableLocalTensor(data, "Materialize"));
    case Initializer::Kind::kOnes:
      return FillInPlace(WritableLocalTensor(data, "Materialize"), 1.0);
    case Initializer::Kind::kNormal:
      return FillNormal(data, options.seed, parameter.name(), 0.0,
                        initializer.stddev);
  }
}

}  // namespace

void LeaseParameters(absl::Span<Parameter* const> parameters) {
  RankContext& context = RankContext::Current();
  for (const Parameter* parameter : parameters) {
    if (!IsDeferred(*parameter)) continue;
    Storage& storage = *LocalTensor(parameter->data()).storage();
    Allocator& allocator =
        parameter->on_host() ? context.host_allocator() : context.allocator();
    storage.Attach(allocator.Allocate(storage.bytes(), MemoryClass::kParameter,
                                      context.current_stream()),
                   context.device());
  }
}

absl::Status Materialize(absl::Span<Parameter* const> parameters,
                         const MaterializeOptions& options) {
  std::vector<Parameter*> deferred;
  for (Parameter* parameter : parameters) {
    if (!IsDeferred(*parameter)) continue;
    CH_CHECK(!parameter->name().empty()) << "materialize: no name";
    const Tensor& data = parameter->data();
    if (data.is_distributed() && LayoutOf(data).is_partial()) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot fill parameter ", parameter->name(),
                       ", which holds partial sums: ", data.Describe()));
    }
    deferred.push_back(parameter);
  }
  LeaseParameters(deferred);
  const NoGrad no_grad;
  for (const Parameter* parameter : deferred) Fill(*parameter, options);
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
