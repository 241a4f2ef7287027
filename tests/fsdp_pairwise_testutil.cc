// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tests/fsdp_pairwise_testutil.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tests/fsdp_script.h"

namespace crosshatch {
namespace {

struct TestedOption {
  std::string name;
  std::vector<std::string> values;
};

using Combination = std::vector<int>;

using fsdp::FullyShardOptions;
using Kind = ScriptCall::Kind;

constexpr int kSteps = 5;

enum Option {
  kMesh,
  kReshard,
  kForwardPrefetch,
  kBackwardPrefetch,
  kPrefetchBytes,
  kReduceBuffers,
  kParamDtype,
  kOverride,
  kReduceDtype,
  kOutputDtype,
  kCastInputs,
  kDivideFactor,
  kForceSum,
  kShards,
  kExtension,
  kOffset,
  kTied,
  kUnused,
  kAccumulation,
  kAfterBackward,
  kKeepUnsharded,
  kByHand,
  kCheckpoint,
  kOffload,
  kInnerForm,
  kPrefetchLists,
  kOptimizerEvent,
  kCustomComm,
  kReshardLate,
  kStreams,
};

const std::vector<TestedOption>& TestedOptions() {
  static const std::vector<TestedOption> options = {
      {"mesh",
       {"fsdp:2", "fsdp:3", "fsdp:4", "replicate:2,fsdp:2", "fsdp:2,tp:2",
        "replicate:2,fsdp:2,tp:2", "replicate:2,fsdp:4", "fsdp:4,tp:2"}},
      {"reshard", {"by default", "always", "never", "to two ranks"}},
      {"forward prefetch", {"1", "0", "2"}},
      {"backward prefetch", {"1", "0", "2"}},
      {"prefetch bytes", {"unset", "100"}},
      {"reduce buffers", {"1", "3"}},
      {"param dtype", {"unset", "f64", "bf16"}},
      {"override", {"none", "f32 offset"}},
      {"reduce dtype", {"unset", "f64", "f16"}},
      {"output dtype", {"unset", "f64"}},
      {"cast inputs", {"yes", "no"}},
      {"divide factor", {"unset", "1", "2"}},
      {"force sum", {"no", "yes"}},
      {"shards", {"dim 0", "dim -1", "ragged", "ragged, whole"}},
      {"extension", {"DTensor", "none"}},
      {"offset", {"trained", "frozen", "ignored"}},
      {"tied", {"no", "across groups"}},
      {"unused", {"none", "one", "one, reduced"}},
      {"accumulation",
       {"none", "sharded", "unsharded", "before replicas", "last backward",
        "by hand"}},
      {"after backward", {"reshard", "keep"}},
      {"keep unsharded", {"no", "yes"}},
      {"unshard", {"by hooks", "by hand"}},
      {"checkpoint", {"nothing", "the inner module", "the middle one"}},
      {"offload", {"no", "yes"}},
      {"inner module", {"sharded", "a list of two", "replicated"}},
      {"prefetch lists", {"none", "set"}},
      {"optimizer event", {"none", "set"}},
      {"communication", {"its own", "passed through"}},
      {"reshard after forward", {"as ever", "changed in each step"}},
      {"streams", {"calm", "adversarial"}},
  };
  return options;
}

std::vector<MeshAxis> AxesOf(int mesh) {
  static const std::vector<std::vector<MeshAxis>> meshes = {
      {{"fsdp", 2}},
      {{"fsdp", 3}},
      {{"fsdp", 4}},
      {{"replicate", 2}, {"fsdp", 2}},
      {{"fsdp", 2}, {"tp", 2}},
      {{"replicate", 2}, {"fsdp", 2}, {"tp", 2}},
      {{"replicate", 2}, {"fsdp", 4}},
      {{"fsdp", 4}, {"tp", 2}},
  };
  return meshes[static_cast<size_t>(mesh)];
}

int SizeOfAxis(const std::vector<MeshAxis>& axes, const std::string& name) {
  for (const MeshAxis& axis : axes) {
    if (axis.name == name) return static_cast<int>(axis.size);
  }
  return 1;
}

// Returns whether two values are compatible. Parameters split by tp need the
// extension and cannot be replicated. A smaller mesh must be smaller than the
// axis.
bool MakeSense(int a, int va, int b, int vb) {
  if (a != kMesh) return true;
  const std::vector<MeshAxis> axes = AxesOf(va);
  if (b == kExtension) return vb == 0 || SizeOfAxis(axes, "tp") == 1;
  if (b == kReshard) return vb != 3 || SizeOfAxis(axes, "fsdp") > 3;
  if (b == kInnerForm) return vb != 2 || SizeOfAxis(axes, "tp") == 1;
  return true;
}

constexpr int kOpen = -1;

// Returns text such as "mesh fsdp:2, prefetch 1, ..."
std::string Describe(const Combination& combination) {
  std::string text;
  for (size_t f = 0; f < combination.size(); ++f) {
    if (combination[f] == kOpen) continue;
    const TestedOption& option = TestedOptions()[f];
    absl::StrAppend(&text, text.empty() ? "" : ", ", option.name, " ",
                    option.values[static_cast<size_t>(combination[f])]);
  }
  return text;
}

using Pair = OptionPair;

Pair Ordered(int a, int va, int b, int vb) {
  return a < b ? Pair{a, va, b, vb} : Pair{b, vb, a, va};
}

int NumOptions() { return static_cast<int>(TestedOptions().size()); }
int NumValues(int option) {
  return static_cast<int>(
      TestedOptions()[static_cast<size_t>(option)].values.size());
}

std::set<Pair> AllCompatiblePairs() {
  std::set<Pair> pairs;
  for (int a = 0; a < NumOptions(); ++a) {
    for (int b = a + 1; b < NumOptions(); ++b) {
      for (int va = 0; va < NumValues(a); ++va) {
        for (int vb = 0; vb < NumValues(b); ++vb) {
          if (MakeSense(a, va, b, vb)) pairs.insert({a, va, b, vb});
        }
      }
    }
  }
  return pairs;
}

std::set<Pair> PairsOf(const Combination& combination) {
  std::set<Pair> pairs;
  for (int a = 0; a < NumOptions(); ++a) {
    for (int b = a + 1; b < NumOptions(); ++b) {
      pairs.insert({a, combination[static_cast<size_t>(a)], b,
                    combination[static_cast<size_t>(b)]});
    }
  }
  return pairs;
}

// Returns combinations that cover all compatible pairs. A greedy search begins
// each with the first missing pair, then gives each option in turn the value
// that adds most pairs. For every compatible pair that search must find
// compatible values of the other options.
std::vector<Combination> CoverAllPairs() {
  std::set<Pair> missing = AllCompatiblePairs();
  std::vector<Combination> combinations;
  while (!missing.empty()) {
    Combination chosen(static_cast<size_t>(NumOptions()), kOpen);
    const auto [a, va, b, vb] = *missing.begin();
    chosen[static_cast<size_t>(a)] = va;
    chosen[static_cast<size_t>(b)] = vb;
    for (int f = 0; f < NumOptions(); ++f) {
      int& value = chosen[static_cast<size_t>(f)];
      if (value != kOpen) continue;
      int most = -1;
      int best = kOpen;
      for (int k = 0; k < NumValues(f); ++k) {
        // Start with another value each time, so that ties alternate.
        const int v =
            (k + static_cast<int>(combinations.size())) % NumValues(f);
        int adds = 0;
        bool allowed = true;
        for (int g = 0; g < NumOptions() && allowed; ++g) {
          const int vg = chosen[static_cast<size_t>(g)];
          if (vg == kOpen) continue;
          const auto [x, vx, y, vy] = Ordered(f, v, g, vg);
          allowed = MakeSense(x, vx, y, vy);
          adds += static_cast<int>(missing.count({x, vx, y, vy}));
        }
        if (allowed && adds > most) {
          most = adds;
          best = v;
        }
      }
      CH_CHECK(best != kOpen)
          << "no value of " << TestedOptions()[static_cast<size_t>(f)].name
          << " may meet " << Describe(chosen);
      value = best;
    }
    for (const Pair& pair : PairsOf(chosen)) missing.erase(pair);
    combinations.push_back(std::move(chosen));
  }
  return combinations;
}

// The parts of the model by index: head(middle(x)) with middle(x) =
// down(inner(x)) + offset and inner(x) = relu(up(first(x))).
enum Part {
  kRoot,
  kMiddle,
  kInner,
  kFirst,
  kUp,
  kDown,
  kUnusedPart,
  kOffsetPart,
  kHead
};

class Row {
 public:
  explicit Row(Combination values) : values_(std::move(values)) {
    script_.axes = AxesOf(at(kMesh));
    script_.model = Model();
    script_.loss_factor =
        at(kDivideFactor) == 0 ? script_.data_ranks() : at(kDivideFactor);
    script_.rounding =
        static_cast<float>(Microbatches()) * std::ldexp(1.0f, -23);
    Shards();
    SetUp();
    for (int step = 0; step < kSteps; ++step) Step(step);
  }

  FsdpScript& script() { return script_; }
  int at(Option option) const { return values_[static_cast<size_t>(option)]; }

 private:
  int Microbatches() const { return at(kAccumulation) == 0 ? 1 : 2; }
  bool replicated() const { return at(kInnerForm) == 2; }

  PartSpec Model() const {
    using Form = PartSpec::Form;
    using Split = PartSpec::Split;
    const PartSpec inner = {
        .form = Form::kChain,
        .relu = true,
        .checkpointed = at(kCheckpoint) == 1,
        .parts = {{}, {.bias = true, .split = Split::kColumns}}};
    const PartSpec middle = {
        .form = Form::kChain,
        .checkpointed = at(kCheckpoint) == 2,
        .parts = {inner,
                  {.bias = true, .split = Split::kRows},
                  {.frozen = at(kUnused) == 0},
                  {.form = Form::kShift, .frozen = at(kOffset) > 0}}};
    const PartSpec head =
        at(kTied) == 1 ? PartSpec{.tied_to = kFirst} : PartSpec{.bias = true};
    return {.form = Form::kChain, .parts = {middle, head}};
  }

  FullyShardOptions Options() const {
    FullyShardOptions options;
    if (at(kParamDtype) > 0) {
      options.mixed_precision.param_dtype =
          at(kParamDtype) == 1 ? kFloat64 : kBFloat16;
    }
    if (at(kOverride) == 1) {
      options.mixed_precision.param_dtype_override =
          [](const nn::Parameter& p) -> std::optional<DType> {
        if (!p.name().ends_with("shift")) return std::nullopt;
        return kFloat32;
      };
    }
    if (at(kReduceDtype) > 0) {
      options.mixed_precision.reduce_dtype =
          at(kReduceDtype) == 1 ? kFloat64 : kFloat16;
    }
    options.mixed_precision.cast_forward_inputs = at(kCastInputs) == 0;
    if (at(kReshard) == 1) options.reshard_after_forward = true;
    if (at(kReshard) == 2) options.reshard_after_forward = false;
    if (at(kReshard) == 3) options.post_forward_mesh_size = 2;
    constexpr int kDepths[] = {1, 0, 2};
    options.prefetch.forward = kDepths[at(kForwardPrefetch)];
    options.prefetch.backward = kDepths[at(kBackwardPrefetch)];
    if (at(kPrefetchBytes) == 1) options.prefetch.bytes = 100;
    options.reduction.buffers = at(kReduceBuffers) == 0 ? 1 : 3;
    if (at(kDivideFactor) > 0) {
      options.reduction.divide_factor = script_.loss_factor;
    }
    options.reduction.force_sum = at(kForceSum) == 1;
    options.cpu_offload = at(kOffload) == 1;
    if (at(kShards) == 1) {
      options.shard_dim = [](const nn::Parameter&) { return -1; };
    }
    if (at(kShards) == 2) options.ragged_shard = fsdp::RaggedShard();
    if (at(kShards) == 3) {
      options.ragged_shard = {.rows_per_block = [](const nn::Parameter&) {
        return std::numeric_limits<int64_t>::max();
      }};
    }
    if (at(kExtension) == 0) options.extension = DTensorExtensions::Create();
    return options;
  }

  void Shards() {
    const bool ignores = at(kOffset) == 2;
    ShardSpec inner = {.parts = {kInner},
                       .options = Options(),
                       .ignores_frozen = ignores,
                       .replicated = replicated()};
    if (at(kInnerForm) == 1) inner.parts = {kFirst, kUp};
    if (replicated()) {
      inner.options.reshard_after_forward = std::nullopt;
      inner.options.post_forward_mesh_size = 0;
      inner.options.shard_dim = nullptr;
      inner.options.ragged_shard = std::nullopt;
      inner.options.extension = nullptr;
    }
    ShardSpec middle = {
        .parts = {kMiddle}, .options = Options(), .ignores_frozen = ignores};
    ShardSpec root = middle;
    root.parts = {kRoot};
    // Only for the root: inner modules continue in the compute dtype.
    if (at(kOutputDtype) == 1) {
      root.options.mixed_precision.output_dtype = kFloat64;
    }
    script_.shards = {inner, middle, root};
  }

  void Call(Kind kind, bool on, int part = kRoot, int value = 0) {
    script_.calls.push_back({.kind = kind,
                             .part = part,
                             .value = value,
                             .on = on,
                             .recurse = true});
  }
  // Configures all modules. A replicated part is its own tree.
  void Set(Kind kind, bool on) {
    Call(kind, on);
    if (replicated()) Call(kind, on, kInner);
  }

  // Adds the settings after sharding.
  void SetUp() {
    if (at(kPrefetchLists) == 1) {
      constexpr int kInnerBit = 1;
      constexpr int kMiddleBit = 2;
      Call(Kind::kPrefetch, /*on=*/true, kRoot, kMiddleBit);
      Call(Kind::kPrefetch, /*on=*/false, kRoot, 0);
      Call(Kind::kPrefetch, /*on=*/true, kMiddle, 0);
      Call(Kind::kPrefetch, /*on=*/false, kMiddle,
           replicated() ? 0 : kInnerBit);
    }
    if (at(kCustomComm) == 1) Set(Kind::kCustomComm, true);
    if (at(kKeepUnsharded) == 1) Set(Kind::kKeepUnsharded, true);
    if (at(kUnused) == 2) Set(Kind::kReduceUnused, true);
    if (at(kAccumulation) == 5) Call(Kind::kManual, true);
    Call(Kind::kSkip, /*on=*/true, kUnusedPart, /*value=*/-1);
  }

  void Step(int step) {
    if (at(kReshardLate) == 1) Set(Kind::kReshardAfterForward, step % 2 == 0);
    const int microbatches = Microbatches();
    for (int m = 0; m < microbatches; ++m) {
      const bool last = m + 1 == microbatches;
      Set(Kind::kSync, last || at(kAccumulation) != 2);
      Set(Kind::kAllReduce, last || at(kAccumulation) != 3);
      Call(Kind::kLastBackward, last || at(kAccumulation) != 4);
      Set(Kind::kReshardAfterBackward, last || at(kAfterBackward) == 0);
      if (at(kByHand) == 1) Call(Kind::kUnshard, /*on=*/false);
      Call(Kind::kForward, /*on=*/false, kRoot, 3 * step + m);
      Call(Kind::kBackward, /*on=*/false);
    }
    if (at(kAccumulation) == 5) Call(Kind::kFinalize, /*on=*/false);
    Call(Kind::kStep, at(kOptimizerEvent) == 1);
  }

  const Combination values_;
  FsdpScript script_;
};

}  // namespace

std::set<OptionPair> CompatiblePairs() { return AllCompatiblePairs(); }

std::set<OptionPair> CoveredPairs() {
  std::set<Pair> covered;
  for (const Combination& combination : CoverAllPairs()) {
    covered.merge(PairsOf(combination));
  }
  return covered;
}

std::vector<PairwiseCase> PairwiseCases() {
  std::vector<PairwiseCase> cases;
  for (const Combination& combination : CoverAllPairs()) {
    Row row(combination);
    PairwiseCase& one = cases.emplace_back();
    one.name = Describe(combination);
    one.script = std::move(row.script());
    if (row.at(kStreams) == 1) one.script.adversarial_seed = cases.size();
  }
  return cases;
}

}  // namespace crosshatch
