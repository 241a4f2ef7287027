// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/extensions/dtensor_extensions.h"

#include <string>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

const DTensorExtensions& Extensions() {
  static const std::shared_ptr<const DTensorExtensions> extensions =
      DTensorExtensions::Create();
  return *extensions;
}

// Returns `sharded` gathered over the FSDP axes.
Tensor Gathered(const Tensor& sharded, const DeviceMesh& fsdp) {
  Layout layout = LayoutOf(sharded);
  for (const std::string& name : fsdp.axis_names()) {
    layout = layout.WithReplicate(*layout.mesh().AxisIndex(name));
  }
  return Redistribute(sharded, layout);
}

TEST(DTensorExtensionsTest, ChunksBeneathTensorParallelism) {
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    const Tensor plain = SmallIntegers({7, 3}, 1);
    const auto chunk = [&](const Tensor& parameter, int dim) {
      return Extensions().Chunk(parameter, fsdp, dim)->layout.ToString();
    };
    const Layout whole = Layout::Replicated(tp.layout(), 2);
    const Tensor rows = DistributeTensor(plain, tp, whole.WithShard(0, 0));
    const Tensor columns = DistributeTensor(plain, tp, whole.WithShard(0, 1));
    const Tensor heads =
        DistributeTensor(plain, tp, whole.WithDim(0, {{0}, 4}));
    CH_EXPECT_EQ(chunk(plain, 0), "[S(0),R]");
    CH_EXPECT_EQ(chunk(plain, 1), "[S(1),R]");
    CH_EXPECT_EQ(chunk(rows, 0), "[_S(0,2),S(0)]");
    CH_EXPECT_EQ(chunk(rows, 1), "[S(1),S(0)]");
    CH_EXPECT_EQ(chunk(columns, 0), "[S(0),S(1)]");
    CH_EXPECT_EQ(chunk(heads, 0), "[_S(0,2),S(0)/4]");
    return absl::OkStatus();
  });
}

TEST(DTensorExtensionsTest, ReplicatesOverTheAxisOfHsdp) {
  OnMesh({{"replicate", 2}, {"fsdp", 1}, {"tp", 2}},
         [](const DeviceMesh& mesh) -> absl::Status {
           CH_ASSIGN_OR_RETURN(const DeviceMesh hsdp,
                               mesh.Slice({"replicate", "fsdp"}));
           CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
           const Tensor plain = SmallIntegers({5}, 1);
           const Tensor split = DistributeTensor(
               plain, tp, Layout::Replicated(tp.layout(), 1).WithShard(0, 0));
           CH_EXPECT_EQ(Extensions().Chunk(plain, hsdp, 0)->layout.ToString(),
                        "[R,S(0),R]");
           CH_EXPECT_EQ(Extensions().Chunk(split, hsdp, 0)->layout.ToString(),
                        "[R,_S(0,2),S(0)]");
           return absl::OkStatus();
         });
}

TEST(DTensorExtensionsTest, ChunksOverJoinedAxes) {
  OnMesh(
      {{"dp", 2}, {"cp", 3}, {"tp", 2}},
      [](const DeviceMesh& mesh) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh data, mesh.Slice({"dp", "cp"}));
        CH_ASSIGN_OR_RETURN(const DeviceMesh joined,
                            data.Flatten({"dp", "cp"}, "fsdp"));
        CH_ASSIGN_OR_RETURN(const DeviceMesh turned,
                            data.Flatten({"cp", "dp"}, "fsdp"));
        CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
        const Tensor plain = SmallIntegers({13, 3}, 1);
        const Tensor rows = DistributeTensor(
            plain, tp, Layout::Replicated(tp.layout(), 2).WithShard(0, 0));
        for (const DeviceMesh& fsdp : {joined, turned}) {
          for (const Tensor& parameter : {plain, rows}) {
            CH_ASSIGN_OR_RETURN(const fsdp::ShardedForm form,
                                Extensions().Chunk(parameter, fsdp, 0));
            CH_EXPECT_EQ(form.mesh.size(0), 6);
            CH_EXPECT_EQ(form.mesh.root(), mesh);
            CH_EXPECT_EQ(form.layout.ToString(), parameter.is_distributed()
                                                     ? "[_S(0,2),S(0)]"
                                                     : "[S(0),R]");
            // A rank's index on the FSDP mesh is that of its chunk.
            CH_EXPECT_EQ((*form.mesh.coordinate())[0], *fsdp.index(0));
            const Tensor sharded =
                DistributeTensor(plain, form.mesh, form.layout);
            const Tensor back = Gathered(sharded, fsdp);
            CH_EXPECT_EQ(FullTensor(back).ToVector<float>(),
                         plain.ToVector<float>());
            CH_EXPECT_EQ(LocalTensor(back).sizes(),
                         LocalTensor(parameter).sizes());
          }
        }
        // An axis of one rank that the root lacks.
        CH_ASSIGN_OR_RETURN(
            const DeviceMesh one,
            joined.Unflatten("fsdp", {{"fsdp", 6}, {"whole", 1}}));
        CH_ASSIGN_OR_RETURN(const fsdp::ShardedForm form,
                            Extensions().Chunk(rows, one, 0));
        CH_EXPECT_EQ(
            LocalTensor(DistributeTensor(plain, form.mesh, form.layout))
                .sizes(),
            LocalTensor(rows).sizes());
        // A part of an axis, and an axis that is in use.
        CH_ASSIGN_OR_RETURN(const DeviceMesh parts,
                            joined.Unflatten("fsdp", {{"a", 3}, {"b", 2}}));
        CH_EXPECT_THAT(
            std::string(Extensions().Chunk(plain, parts, 0).status().message()),
            HasSubstr("the axis \"a\" of mesh(a=3, b=2"));
        const Tensor taken = DistributeTensor(
            plain, data, Layout::Replicated(data.layout(), 2).WithShard(0, 0));
        CH_EXPECT_THAT(
            std::string(
                Extensions().Chunk(taken, joined, 0).status().message()),
            HasSubstr("the axis \"dp\" of mesh(dp=2, cp=3"));
        return absl::OkStatus();
      });
}

TEST(DTensorExtensionsTest, UnshardReturnsTheOriginalParameter) {
  // 7 rows over 2 x 3 ranks: some shards are uneven or empty.
  OnMesh({{"fsdp", 2}, {"tp", 3}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    const Tensor full = SmallIntegers({7, 2}, 3);
    const Tensor split = DistributeTensor(
        full, tp, Layout::Replicated(tp.layout(), 2).WithShard(0, 0));
    CH_ASSIGN_OR_RETURN(const fsdp::ShardedForm form,
                        Extensions().Chunk(split, fsdp, 0));
    const Tensor sharded = DistributeTensor(full, form.mesh, form.layout);
    const Tensor gathered = Gathered(sharded, fsdp);
    CH_EXPECT_EQ(LayoutOf(gathered).ToString(), "[R,S(0)]");
    CH_EXPECT_EQ(LocalTensor(gathered).ToVector<float>(),
                 LocalTensor(split).ToVector<float>());
    const Tensor wrapped =
        Extensions().FormOf(split)->Wrap(Extensions().LocalOf(gathered));
    CH_EXPECT_EQ(FullTensor(wrapped).ToVector<float>(), full.ToVector<float>());
    return absl::OkStatus();
  });
}

// A loader reads and fills boxes of a sharded parameter. They cover the whole,
// each element once except for replicas.
TEST(DTensorExtensionsTest, BoxesMatchTheShards) {
  OnMesh({{"fsdp", 2}, {"tp", 3}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    const Tensor full = SmallIntegers({7, 2}, 5);
    const Tensor split = DistributeTensor(
        Zeros({7, 2}), tp, Layout::Replicated(tp.layout(), 2).WithShard(0, 0));
    CH_ASSIGN_OR_RETURN(const fsdp::ShardedForm form,
                        Extensions().Chunk(split, fsdp, 0));
    const Tensor sharded =
        DistributeTensor(Zeros({7, 2}), form.mesh, form.layout);
    const Box box = LocalBoxOf(sharded);
    Tensor read = full;
    for (int d = 0; d < 2; ++d) {
      const auto at = static_cast<size_t>(d);
      read = Narrow(read, d, box.offsets[at], box.sizes[at]);
    }
    CopyInPlace(WritableLocalTensor(sharded, "a loader"), read);
    CH_EXPECT_EQ(FullTensor(sharded).ToVector<float>(), full.ToVector<float>());
    return absl::OkStatus();
  });
}

// A split tensor-parallel axis, as for replicated key and value heads.
TEST(DTensorExtensionsTest, ChunksBeneathPartsOfAnAxis) {
  OnMesh({{"fsdp", 2}, {"tp", 4}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh parted,
                        tp.Unflatten("tp", {{"tp_unit", 2}, {"tp_copy", 2}}));
    const Tensor full = SmallIntegers({7, 3}, 2);
    const Tensor split = DistributeTensor(
        full, parted,
        Layout::Replicated(parted.layout(), 2).WithDim(0, {{0}, 4}));
    CH_ASSIGN_OR_RETURN(const fsdp::ShardedForm form,
                        Extensions().Chunk(split, fsdp, 0));
    CH_EXPECT_EQ(form.mesh.root(), mesh);
    CH_EXPECT_EQ(form.mesh.ToString(), "mesh(fsdp=2, tp_unit=2, tp_copy=2)");
    CH_EXPECT_EQ(form.layout.ToString(), "[_S(0,2),S(0)/4,R]");
    const Tensor sharded = DistributeTensor(full, form.mesh, form.layout);
    CH_EXPECT_EQ(LocalTensor(Gathered(sharded, fsdp)).ToVector<float>(),
                 LocalTensor(split).ToVector<float>());
    // FSDP on split axes.
    CH_ASSIGN_OR_RETURN(const DeviceMesh hsdp,
                        tp.Unflatten("tp", {{"replicate", 2}, {"shard", 2}}));
    CH_ASSIGN_OR_RETURN(const fsdp::ShardedForm plain,
                        Extensions().Chunk(full, hsdp, 0));
    CH_EXPECT_EQ(plain.layout.ToString(), "[R,R,S(0)]");
    return absl::OkStatus();
  });
}

TEST(DTensorExtensionsTest, RefusesParametersOfOtherMeshes) {
  OnMesh({{"fsdp", 2}, {"tp", 1}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    const Tensor full = SmallIntegers({4}, 1);
    const auto message = [&](const Tensor& parameter) {
      return std::string(
          Extensions().Chunk(parameter, fsdp, 0).status().message());
    };
    const Tensor on_fsdp = DistributeTensor(
        full, fsdp, Layout::Replicated(fsdp.layout(), 1).WithShard(0, 0));
    CH_EXPECT_THAT(message(on_fsdp),
                   HasSubstr("distributed over the axis \"fsdp\" already; pass "
                             "mesh.Slice(\"tp\") to FullyShard"));
    const auto with_tp = [&](const DeviceMesh& fsdp_mesh,
                             const Tensor& parameter) {
      return std::string(
          Extensions().Chunk(parameter, fsdp_mesh, 0).status().message());
    };
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    const Tensor on_tp = DistributeTensor(
        full, tp, Layout::Replicated(tp.layout(), 1).WithShard(0, 0));
    for (const DeviceMesh& wrong : {mesh, tp}) {
      CH_EXPECT_THAT(with_tp(wrong, on_tp),
                     HasSubstr("distributed over the axis \"tp\" already; pass "
                               "mesh.Slice(\"fsdp\") to FullyShard"));
    }
    CH_ASSIGN_OR_RETURN(const DeviceMesh other,
                        InitDeviceMesh(mesh.world(), {{"other", 2}}));
    const Tensor elsewhere =
        DistributeTensor(full, other, Layout::Replicated(other.layout(), 1));
    CH_EXPECT_THAT(message(elsewhere), HasSubstr("slice both from one mesh"));
    return absl::OkStatus();
  });
}

// Returns the layouts of data() after FullyShard of a model with one
// tensor-parallel parameter.
std::vector<std::string> Sharded(const DeviceMesh& mesh,
                                 fsdp::FullyShardOptions options) {
  std::vector<std::string> lines;
  const DeviceMesh fsdp = *mesh.Slice("fsdp");
  const DeviceMesh tp = *mesh.Slice("tp");
  fsdp::TestModel model(2, 4, 4, 4);
  nn::Parameter& first = *model.blocks()[0]->Parameters().front();
  first.set_data(DistributeTensor(
      first.data(), tp, Layout::Replicated(tp.layout(), 2).WithShard(0, 0)));
  for (auto& block : model.blocks()) {
    CH_CHECK_OK(fsdp::FullyShard(*block, fsdp, options));
  }
  CH_CHECK_OK(fsdp::FullyShard(model, fsdp, options));
  for (nn::Parameter* p : model.Parameters()) {
    lines.push_back(p->name() + " " + p->data().Describe());
  }
  return lines;
}

TEST(DTensorExtensionsTest, IsTheDefaultOfCallsWithADistributedParameter) {
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const std::vector<std::string> by_default = Sharded(mesh, {});
    const std::vector<std::string> all =
        Sharded(mesh, {.extension = DTensorExtensions::Create()});
    CH_EXPECT_EQ(by_default.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      // The first block's call has a DTensor, so its plain bias uses it too.
      if (all[i].find("blocks.0") == 0) {
        CH_EXPECT_EQ(by_default[i], all[i]);
      } else {
        CH_EXPECT_NE(by_default[i], all[i]);
      }
    }
    return absl::OkStatus();
  });
}

// A program's own extension, which shards another dim than requested.
class ByColumns final : public DTensorExtensions {
 public:
  absl::StatusOr<fsdp::ShardedForm> Chunk(const Tensor& parameter,
                                          const DeviceMesh& fsdp_mesh,
                                          int) const override {
    return DTensorExtensions::Chunk(parameter, fsdp_mesh, parameter.ndim() - 1);
  }
};

TEST(DTensorExtensionsTest, MayBeDerivedFrom) {
  OnMesh({{"fsdp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const Tensor full = Empty({4, 6}, kFloat32);
    CH_ASSIGN_OR_RETURN(const fsdp::ShardedForm form,
                        ByColumns().Chunk(full, mesh, /*dim=*/0));
    CH_EXPECT_EQ(
        form.layout.ToString(),
        Layout::Replicated(mesh.layout(), 2).WithShard(0, 1).ToString());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch
