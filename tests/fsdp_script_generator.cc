// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tests/fsdp_script.h"

namespace crosshatch {
namespace {

using Kind = ScriptCall::Kind;
using Form = PartSpec::Form;

// By kind, in order; `weight` of a random call.
constexpr struct {
  const char* name;
  int weight = 0;
} kCalls[] = {{"forward", 16},
              {"forward_no_grad", 3},
              {"backward", 16},
              {"drop_losses", 1},
              {"step", 8},
              {"zero_grad", 2},
              {"compare", 4},
              {"summon", 3},
              {"unshard", 3},
              {"reshard", 3},
              {"sync", 4},
              {"all_reduce", 3},
              {"reshard_after_forward", 2},
              {"reshard_after_backward", 2},
              {"keep_unsharded", 2},
              {"force_sum", 1},
              {"custom_comm", 1},
              {"reduce_unused", 4},
              {"last_backward", 2},
              {"manual", 2},
              {"finalize", 3},
              {"divide", 2},
              {"freeze", 2},
              {"skip", 4},
              {"prefetch", 2},
              {"reset", 1},
              {"unshard_in_backward", 3},
              {"accumulate", 2},
              {"forward_part"},
              {"negate"},
              {"expect_no_memory"}};
static_assert(std::size(kCalls) == ScriptCall::kNumKinds);

// The maximum of consecutive Linears, which keeps results below 2^24, where
// float32 has every integer.
constexpr int kMaxLinears = 5;
constexpr int kMaxDepth = 3;

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  FsdpScript Script(int num_calls) {
    static const std::vector<std::vector<MeshAxis>> meshes = {
        {{"fsdp", 1}},
        {{"fsdp", 2}},
        {{"fsdp", 3}},
        {{"fsdp", 4}},
        {{"replicate", 2}, {"fsdp", 2}},
        {{"replicate", 3}, {"fsdp", 1}},
        {{"replicate", 1}, {"fsdp", 2}},
        {{"fsdp", 2}, {"tp", 2}},
        {{"fsdp", 3}, {"tp", 2}},
        {{"replicate", 2}, {"fsdp", 1}, {"tp", 2}},
    };
    FsdpScript script;
    script.axes = meshes[Below(static_cast<int>(meshes.size()))];
    spread_ = script.tp_ranks() > 1;
    script.model = Model();
    Shards(script);
    for (int i = 0; i < num_calls; ++i) script.calls.push_back(Call());
    script.adversarial_seed = Chance(3) ? 1 + random_() % 1000 : 0;
    return script;
  }

 private:
  size_t Below(int n) {
    return static_cast<size_t>(random_() % static_cast<uint64_t>(n));
  }
  int Number(int n) { return static_cast<int>(Below(n)); }
  bool Chance(int n) { return Below(n) == 0; }

  PartSpec Shift() {
    PartSpec part;
    ++num_parts_;
    part.form = Form::kShift;
    part.relu = Chance(3);
    part.frozen = Chance(5);
    part.checkpointed = Chance(8);
    return part;
  }

  PartSpec Linear() {
    PartSpec part;
    const int number = num_parts_++;
    part.bias = Chance(2);
    part.relu = Chance(3);
    part.frozen = Chance(5);
    part.checkpointed = Chance(8);
    if (spread_ && !Chance(3)) {
      // A split weight is not tied, because all of its uses would have to
      // agree.
      part.split =
          Chance(2) ? PartSpec::Split::kColumns : PartSpec::Split::kRows;
    } else if (!linears_.empty() && Chance(4)) {
      part.tied_to = linears_[Below(static_cast<int>(linears_.size()))];
      part.frozen = false;
    } else {
      linears_.push_back(number);
    }
    ++num_linears_;
    return part;
  }

  PartSpec Chain(int depth) {
    PartSpec part;
    ++num_parts_;
    part.form = Chance(3) ? Form::kResidual : Form::kChain;
    part.checkpointed = depth > 0 && Chance(5);
    const int count = 1 + Number(3);
    for (int i = 0; i < count && num_linears_ < kMaxLinears; ++i) {
      if (Chance(5)) {
        part.parts.push_back(Shift());
        continue;
      }
      const bool leaf = depth + 1 == kMaxDepth || Chance(2);
      part.parts.push_back(leaf ? Linear() : Chain(depth + 1));
    }
    return part;
  }

  PartSpec Model() {
    PartSpec root = Chain(0);
    root.form = Form::kChain;
    PartSpec head;
    ++num_parts_;
    head.bias = true;
    root.parts.push_back(head);
    return root;
  }

  // Shards parts below `part`, whose number is `number`, then `part`.
  // \returns the number after the last part below it.
  int ShardBelow(const PartSpec& part, int number, FsdpScript& script) {
    int next = number + 1;
    std::vector<int> apart;  // Siblings that may form a list.
    const auto take_list = [&] {
      if (apart.size() > 1 && Chance(2)) {
        script.shards.push_back(Shard(apart, script));
      } else {
        for (const int one : apart) {
          if (Chance(2)) script.shards.push_back(Shard({one}, script));
        }
      }
      apart.clear();
    };
    for (const PartSpec& child : part.parts) {
      const int at = next;
      next = ShardBelow(child, at, script);
      if (child.parts.empty() && child.form != Form::kChain &&
          child.form != Form::kResidual) {
        apart.push_back(at);
        continue;
      }
      take_list();
      if (!Chance(3)) script.shards.push_back(Shard({at}, script));
    }
    take_list();
    return next;
  }

  void Shards(FsdpScript& script) {
    ShardBelow(script.model, 0, script);
    script.shards.push_back(Shard({0}, script));
  }

  ShardSpec Shard(std::vector<int> parts, const FsdpScript& script) {
    ShardSpec spec{.parts = std::move(parts)};
    fsdp::FullyShardOptions& options = spec.options;
    const auto note = [&spec](const auto&... what) {
      absl::StrAppend(&spec.text, " ", what...);
    };
    options.reduction.divide_factor = 1;
    if (Chance(3)) {
      options.reduction.divide_factor = 1 << Number(3);
      note("divide_factor=", *options.reduction.divide_factor);
    }
    const auto dtype = [&](std::optional<DType>& member, const char* name) {
      if (!Chance(4)) return;
      member = kFloat64;
      note(name, "=f64");
    };
    dtype(options.mixed_precision.param_dtype, "param_dtype");
    dtype(options.mixed_precision.reduce_dtype, "reduce_dtype");
    dtype(options.mixed_precision.output_dtype, "output_dtype");
    if (Chance(5)) {
      options.mixed_precision.param_dtype_override =
          [](const nn::Parameter& p) -> std::optional<DType> {
        if (p.data().ndim() == 1) return kFloat64;
        return std::nullopt;
      };
      note("biases=f64");
    }
    if (Chance(6)) {
      options.mixed_precision.cast_forward_inputs = false;
      note("cast_forward_inputs=false");
    }
    int64_t shards = 1;
    for (const MeshAxis& axis : script.axes) {
      if (axis.name == "fsdp") shards = axis.size;
    }
    spec.replicated = !spread_ && spec.parts.size() == 1 && Chance(8);
    const int reshard = Number(5);
    if (spec.replicated) {
      note("replicated");
    } else if (reshard < 2) {
      options.reshard_after_forward = reshard == 0;
      note("reshard_after_forward=", reshard == 0);
    } else if (reshard == 2) {
      const int sizes[] = {1, 2, static_cast<int>(shards)};
      const int size = sizes[Below(3)];
      if (shards % size == 0) {
        options.post_forward_mesh_size = size;
        note("post_forward_mesh_size=", size);
      }
    }
    if (Chance(3)) {
      options.prefetch.forward = Number(4);
      options.prefetch.backward = Number(4);
      note("prefetch=", options.prefetch.forward, ",",
           options.prefetch.backward);
    }
    if (Chance(6)) {
      options.prefetch.bytes = 40 * Number(4);
      note("prefetch_bytes=", *options.prefetch.bytes);
    }
    if (Chance(4)) {
      options.reduction.buffers = 1 + Number(3);
      note("reduce_buffers=", options.reduction.buffers);
    }
    if (Chance(5)) {
      options.reduction.force_sum = true;
      note("force_sum");
    }
    if (Chance(5)) {
      options.cpu_offload = true;
      note("cpu_offload");
    }
    if (!spec.replicated && Chance(4)) {
      options.shard_dim = [](const nn::Parameter&) { return -1; };
      note("shard_dim=-1");
    } else if (!spec.replicated && Chance(3)) {
      const int rows = 1 + Number(4);
      options.ragged_shard = {
          .rows_per_block = [rows](const nn::Parameter&) { return rows; }};
      note("ragged_shard=", rows);
    }
    if (!spec.replicated && options.post_forward_mesh_size == 0 && Chance(5)) {
      spec.vectors_elsewhere = true;
      note("vectors_elsewhere");
    }
    if (Chance(6)) {
      options.sync_from_first_rank = true;
      note("sync_from_first_rank");
    }
    if (Chance(4)) {
      spec.ignores_frozen = true;
      note("ignores_frozen");
    }
    return spec;
  }

  ScriptCall Call() {
    int sum = 0;
    for (const auto& call : kCalls) sum += call.weight;
    int at = Number(sum);
    int kind = 0;
    while (at >= kCalls[kind].weight) at -= kCalls[kind++].weight;
    return {.kind = static_cast<Kind>(kind),
            .part = Number(num_parts_),
            .value = Number(1000),
            .on = Chance(2),
            .recurse = Chance(2)};
  }

  std::mt19937_64 random_;
  int num_parts_ = 0;
  int num_linears_ = 0;
  std::vector<int> linears_;
  bool spread_ = false;
};

std::string Describe(const PartSpec& part, int& number, int indent) {
  const char* const forms[] = {"linear", "shift", "chain", "residual"};
  const char* const splits[] = {"", " by columns", " by rows"};
  std::string text = absl::StrCat(std::string(indent, ' '), number++, ": ",
                                  forms[static_cast<int>(part.form)]);
  if (part.bias) absl::StrAppend(&text, " bias");
  if (part.relu) absl::StrAppend(&text, " relu");
  if (part.frozen) absl::StrAppend(&text, " frozen");
  if (part.tied_to >= 0) absl::StrAppend(&text, " tied to ", part.tied_to);
  absl::StrAppend(&text, splits[static_cast<int>(part.split)]);
  if (part.checkpointed) absl::StrAppend(&text, " checkpointed");
  text.push_back('\n');
  for (const PartSpec& child : part.parts) {
    absl::StrAppend(&text, Describe(child, number, indent + 2));
  }
  return text;
}

}  // namespace

int FsdpScript::ranks() const {
  int64_t ranks = 1;
  for (const MeshAxis& axis : axes) ranks *= axis.size;
  return static_cast<int>(ranks);
}

int FsdpScript::tp_ranks() const {
  const MeshAxis& last = axes.back();
  return last.name == "tp" ? static_cast<int>(last.size) : 1;
}

FsdpScript RandomFsdpScript(uint64_t seed, int num_calls) {
  return Generator(seed).Script(num_calls);
}

std::string ToString(const FsdpScript& script) {
  std::string text = "mesh";
  for (const MeshAxis& axis : script.axes) {
    absl::StrAppend(&text, " ", axis.name, ":", axis.size);
  }
  absl::StrAppend(&text, ", adversarial seed ", script.adversarial_seed, "\n");
  int number = 0;
  absl::StrAppend(&text, Describe(script.model, number, 2));
  for (const ShardSpec& shard : script.shards) {
    absl::StrAppend(&text, "  shard {", absl::StrJoin(shard.parts, ", "), "}",
                    shard.text, "\n");
  }
  for (const ScriptCall& call : script.calls) {
    absl::StrAppend(&text, "  ", kCalls[static_cast<int>(call.kind)].name,
                    " part ", call.part, " value ", call.value,
                    call.on ? " on" : " off",
                    call.recurse ? " recurse\n" : "\n");
  }
  return text;
}

}  // namespace crosshatch
