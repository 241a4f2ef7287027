// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/random.h"

#include <algorithm>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

// Mixes bits by the finalizer of SplitMix64: every bit of the result depends on
// every bit of x.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void Fill(const Tensor& t, RandomKind kind, uint64_t key, uint64_t stream,
          double a, double b) {
  CH_CHECK(IsFloatingPoint(t.dtype())) << "random values for " << t.Describe();
  CH_CHECK(!Repeats(t.sizes(), t.strides()))
      << "random values for an expanded tensor, " << t.Describe()
      << ": several of its elements are one";
  Tensor local = t;
  Box box = WholeBox(t.sizes());
  if (t.is_distributed()) {
    const DTensorHandler& handler = DTensorHandler::Of(t);
    CH_CHECK(!handler.layout().is_partial())
        << "random values for " << t.Describe()
        << ": its reductions are pending";
    local = handler.WritableLocal("random values");
    box = handler.layout().LocalBox(t.sizes(), handler.interned().here);
  }
  NoGrad no_grad;
  const bool direct = local.is_contiguous();
  const Tensor out = direct ? local : Empty(local.sizes(), local.dtype());
  RandomArgs args;
  args.kind = kind;
  args.out = out.raw_data();
  args.dtype = out.dtype();
  args.key = key;
  args.stream = stream;
  args.a = a;
  args.b = b;
  CH_CHECK_LE(box.ndim(), kMaxKernelDims);
  args.box.ndim = box.ndim();
  std::copy(box.sizes.begin(), box.sizes.end(), args.box.sizes);
  std::copy(box.offsets.begin(), box.offsets.end(), args.offsets);
  std::copy(t.sizes().begin(), t.sizes().end(), args.global_sizes);
  RankContext::Current().BreakCapture("a fill with random values");
  internal::Launch(&KernelTable::random, args);
  if (direct) {
    BeginWrite("random values", out);
  } else {
    CopyInPlace(local, out);
  }
}

}  // namespace

uint64_t RandomKeyOf(uint64_t seed, absl::string_view name) {
  uint64_t key = Mix(seed);
  for (const char c : name) key = Mix(key ^ static_cast<unsigned char>(c));
  return key;
}

void FillNormal(const Tensor& t, uint64_t seed, absl::string_view name,
                double mean, double stddev, uint64_t step) {
  Fill(t, RandomKind::kNormal, RandomKeyOf(seed, name), step, mean, stddev);
}

void FillUniform(const Tensor& t, uint64_t seed, absl::string_view name,
                 double low, double high, uint64_t step) {
  Fill(t, RandomKind::kUniform, RandomKeyOf(seed, name), step, low, high);
}

}  // namespace crosshatch
