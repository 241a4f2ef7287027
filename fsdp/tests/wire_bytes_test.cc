// SPDX-License-Identifier: Apache-2.0

/// \file
/// Compares the bytes that a step moves and copies with the minimum, derived
/// from the shapes alone. Each missing element is received once per gather, and
/// each summand of the rank's shard once. Nothing is packed or unpacked,
/// whatever the sizes, dims and dtypes.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/expect.h"
#include "crosshatch/testing/parts.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

// Sizes without common divisors, a parameter of three dims, one with fewer rows
// than ranks, and a head in bfloat16.
class Mixed final : public nn::Module {
 public:
  Mixed()
      : first(5, 7),
        second(5, 11),
        grid_(std::make_shared<nn::Parameter>(Shape{2, 3, 5}, kFloat32,
                                              nn::Initializer{})),
        head_(5, 3, {.bias = true}) {
    RegisterModule("first", first);
    RegisterModule("second", second);
    RegisterParameter("grid", grid_);
    RegisterModule("head", head_);
    int64_t salt = 0;
    for (const nn::NamedParameter& named : NamedParameters()) {
      const bool of_head = named.name.rfind("head", 0) == 0;
      nn::Parameter& p = *named.parameter;
      p.set_data(ToDType(SmallIntegers(p.data().sizes(), ++salt),
                         of_head ? kBFloat16 : kFloat32));
    }
  }
  const char* type_name() const override { return "Mixed"; }
  TestBlock first, second;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = second.Forward(first.Forward(inputs[0]));
    x = Add(x, Sum(grid_->Get(), {0, 1}));
    return {head_.Forward(ToDType(x, kBFloat16))};
  }

 private:
  std::shared_ptr<nn::Parameter> grid_;
  nn::Linear head_;
};

struct Case {
  Axes axes;
  int dim;
  int post_forward_mesh_size = 0;

  int SizeOf(const std::string& name) const {
    for (const MeshAxis& axis : axes) {
      if (axis.name == name) return static_cast<int>(axis.size);
    }
    return 1;
  }
  // Limits `dim` to the parameter's dims.
  int DimOf(int ndim) const { return std::min(dim, ndim - 1); }
};

// Bytes by "axis collective", and bytes copied within the rank.
using Bytes = std::map<std::string, int64_t>;

// Returns the least bytes that this rank of a mesh can receive in a step.
Bytes LeastBytes(Mixed& model, const Case& c, int rank) {
  const int ranks = c.SizeOf("fsdp");
  const int replicas = c.SizeOf("replicate");
  const int shard = rank % ranks;
  const int k = c.post_forward_mesh_size;
  Bytes bytes;
  // Groups: the blocks, and the rest by dtype.
  std::map<std::string, int64_t> shard_of_group;
  std::map<std::string, int64_t> element_of_group;
  for (const nn::NamedParameter& named : model.NamedParameters()) {
    const Tensor& data = named.parameter->data();
    const int dim = c.DimOf(data.ndim());
    const auto split = [&](int64_t parts, int64_t part) {
      const int64_t along =
          data.sizes()[static_cast<size_t>(dim < 0 ? dim + data.ndim() : dim)];
      return Part(along, parts, part) * (data.numel() / along);
    };
    const int64_t element = crosshatch::SizeOf(data.dtype());
    const int64_t mine = split(ranks, shard);
    const bool of_block =
        named.name.rfind("first", 0) == 0 || named.name.rfind("second", 0) == 0;
    const std::string group = of_block
                                  ? named.name.substr(0, named.name.find('.'))
                                  : std::string(Name(data.dtype()));
    // Blocks are gathered again in backward. The root stays gathered, unless it
    // is resharded to a smaller mesh.
    const int64_t gathers = of_block && k == 0 ? 2 : 1;
    bytes["fsdp all_gather"] += gathers * (data.numel() - mine) * element;
    bytes["fsdp reduce_scatter"] += (ranks - 1) * mine * element;
    shard_of_group[group] += mine;
    element_of_group[group] = element;
    if (k == 0) continue;
    // The shard on the post-forward mesh: the shards of ranks / k neighbours.
    int64_t kept = 0;
    for (int i = 0; i < ranks / k; ++i) {
      kept += split(ranks, shard % k * (ranks / k) + i);
    }
    bytes["copied"] += kept * element;
    bytes["fsdp_within all_gather"] += (data.numel() - kept) * element;
  }
  for (const auto& [group, mine] : shard_of_group) {
    if (replicas == 1) break;
    bytes["replicate all_reduce"] +=
        AllReduced(mine, replicas, rank / ranks) * element_of_group[group];
  }
  return bytes;
}

Bytes BytesSoFar(const World& world) {
  Bytes bytes;
  for (const auto& group : world.groups()) {
    for (int kind = 0; kind < kNumCollectiveKinds; ++kind) {
      const int64_t moved = group->stats().by_kind[kind].bytes;
      if (moved == 0) continue;
      bytes[absl::StrCat(group->name(), " ",
                         Name(static_cast<CollectiveKind>(kind)))] += moved;
    }
  }
  if (const int64_t copied = world.context().copied_bytes(); copied != 0) {
    bytes["copied"] = copied;
  }
  return bytes;
}

std::string Text(const Bytes& bytes) {
  return absl::StrJoin(bytes, "\n", absl::PairFormatter(": "));
}

TEST(WireBytesTest, MovesTheLeastAndCopiesNothing) {
  const Axes three = {{"fsdp", 3}};
  const Axes hybrid = {{"replicate", 2}, {"fsdp", 2}};
  std::vector<Case> cases = {{{{"fsdp", 1}}, 0}};
  for (const int dim : {0, 1, -1}) {
    cases.push_back({three, dim});
    cases.push_back({hybrid, dim});
    cases.push_back({{{"fsdp", 4}}, dim, 2});
  }
  cases.push_back({{{"fsdp", 6}}, 0, 2});
  cases.push_back({{{"fsdp", 6}}, -1, 3});
  for (const Case& c : cases) {
    OnRanks(c.axes, [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
      World& world = mesh.world();
      SCOPED_TRACE(absl::StrCat(mesh.ToString(), ", dim ", c.dim, ", k ",
                                c.post_forward_mesh_size, ", rank ",
                                world.rank()));
      Mixed model;
      Bytes least = LeastBytes(model, c, world.rank());
      FullyShardOptions options;
      options.post_forward_mesh_size = c.post_forward_mesh_size;
      options.shard_dim = [&c](const nn::Parameter& p) {
        return c.DimOf(p.data().ndim());
      };
      CH_RETURN_IF_ERROR(FullyShard(model.first, mesh, options));
      CH_RETURN_IF_ERROR(FullyShard(model.second, mesh, options));
      CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
      const Tensor x = SmallIntegers({4, 5}, world.rank());
      constexpr int kSteps = 2;
      for (int step = 0; step < kSteps; ++step) {
        CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(x))));
        for (nn::Parameter* p : model.Parameters()) p->set_grad(Tensor());
      }
      for (auto& [what, bytes] : least) bytes *= kSteps;
      for (auto it = least.begin(); it != least.end();) {
        it = it->second == 0 ? least.erase(it) : std::next(it);
      }
      CH_EXPECT_EQ(Text(BytesSoFar(world)), Text(least));
      // There are no pack or unpack buffers.
      CH_EXPECT_EQ(world.context().allocator().stats().peak[static_cast<size_t>(
                       MemoryClass::kCommunication)],
                   0);
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
