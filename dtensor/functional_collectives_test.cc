// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/functional_collectives.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Meshes of one axis and of three, among them axes of one rank.
const std::vector<std::vector<int>>& Meshes() {
  static const auto* const meshes =
      new std::vector<std::vector<int>>{{1}, {5}, {1, 2, 3}, {2, 2, 2}};
  return *meshes;
}

// Runs `body` on each slice of one axis of each mesh.
void OnEachAxis(
    const std::function<absl::Status(const DeviceMesh& axis)>& body) {
  for (const std::vector<int>& shape : Meshes()) {
    OnMesh(shape, [&](const DeviceMesh& mesh) -> absl::Status {
      for (const std::string& name : mesh.axis_names()) {
        CH_ASSIGN_OR_RETURN(const DeviceMesh axis, mesh.Slice(name));
        CH_RETURN_IF_ERROR(body(axis));
      }
      return absl::OkStatus();
    });
  }
}

// Returns the values of a tensor of `count` elements of world rank `rank`:
// small integers, so that sums of them are exact.
std::vector<float> Values(int rank, int64_t count, int which) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(
        static_cast<float>((13 * rank + 7 * i + 5 * which) % 31 + 1));
  }
  return values;
}

Tensor Leaf(const Shape& sizes, int rank, int which) {
  Tensor leaf =
      FromValues<float>(sizes, Values(rank, NumElements(sizes), which));
  leaf.set_requires_grad(true);
  return leaf;
}

Tensor Weights(const Shape& sizes, int rank, int which) {
  return FromValues<float>(sizes,
                           Values(rank, NumElements(sizes), 100 + which));
}

// Returns the index of the peer at `offset`, if there is one.
std::optional<int> Peer(const DeviceMesh& axis, int64_t offset, bool wrap) {
  int64_t peer = *axis.index(0) + offset;
  while (wrap && peer < 0) peer += axis.size();
  while (wrap && peer >= axis.size()) peer -= axis.size();
  if (peer < 0 || peer >= axis.size()) return std::nullopt;
  return static_cast<int>(peer);
}

const CommunicatorStats::Count& AllToAlls(const DeviceMesh& axis) {
  const absl::StatusOr<Communicator*> communicator =
      axis.communicator(0, RankContext::Current().current_stream().name());
  return (*communicator)
      ->stats()
      .by_kind[static_cast<int>(CollectiveKind::kAllToAll)];
}

// The sizes of tensor `which` at an index: uneven, some of them empty.
Shape SizesAt(int index, int which, bool uneven) {
  if (!uneven) return which == 0 ? Shape{3, 2} : Shape{5};
  return which == 0 ? Shape{(index + 2) % 3, 2} : Shape{index % 2 * 3 + 1};
}

absl::Status CheckShift(const DeviceMesh& axis, int64_t k, bool wrap,
                        bool uneven) {
  const absl::Span<const int> ranks = axis.layout().ranks();
  const int here = *axis.index(0);
  const std::optional<int> from = Peer(axis, -k, wrap);
  const std::optional<int> to = Peer(axis, k, wrap);
  ShiftOptions options{.wrap = wrap};
  std::vector<Tensor> xs;
  for (int i = 0; i < 2; ++i) {
    xs.push_back(Leaf(SizesAt(here, i, uneven), ranks[here], i));
    if (uneven) {
      options.receive_sizes.push_back(SizesAt(from.value_or(here), i, true));
    }
  }
  if (uneven) options.receive_sizes.push_back({1});
  const Tensor id = FromValues<int64_t>({1}, {ranks[here]});
  const CommunicatorStats::Count before = AllToAlls(axis);
  const TensorList ys = Shift({xs[0], xs[1], id}, axis, k, options);

  // Two dtypes, two messages.
  CH_EXPECT_EQ(AllToAlls(axis).calls - before.calls, 2);
  int64_t bytes = 0;
  if (from.has_value() && *from != here) {
    bytes = (ys[0].numel() + ys[1].numel()) * 4 + 8;
  }
  CH_EXPECT_EQ(AllToAlls(axis).bytes - before.bytes, bytes);
  CH_EXPECT_EQ(ys[2].ToVector<int64_t>()[0],
               from.has_value() ? ranks[*from] : 0);
  CH_EXPECT_FALSE(ys[2].requires_grad());
  Tensor loss = Zeros({});
  for (int i = 0; i < 2; ++i) {
    const Shape sizes = SizesAt(from.value_or(here), i, uneven);
    CH_EXPECT_EQ(ys[i].sizes(), sizes);
    CH_EXPECT_EQ(
        ys[i].ToVector<float>(),
        from.has_value()
            ? Values(ranks[*from], NumElements(sizes), i)
            : std::vector<float>(static_cast<size_t>(NumElements(sizes)), 0));
    loss = Add(loss, Sum(Mul(ys[i], Weights(sizes, ranks[here], i))));
    // The input is used twice.
    loss = Add(loss, Sum(Square(xs[i])));
  }
  CH_RETURN_IF_ERROR(Backward(loss));
  for (int i = 0; i < 2; ++i) {
    const Shape sizes = SizesAt(here, i, uneven);
    Tensor expected = Mul(xs[i].Detach(), 2);
    if (to.has_value()) {
      expected = Add(expected, Weights(sizes, ranks[*to], i));
    }
    CH_EXPECT_EQ(xs[i].grad().ToVector<float>(), expected.ToVector<float>());
  }
  return absl::OkStatus();
}

TEST(ShiftTest, MovesTensorsToANeighbourAndGradientsBack) {
  OnEachAxis([](const DeviceMesh& axis) -> absl::Status {
    for (const int64_t k : {0, 1, -1, 2, -8}) {
      for (const bool wrap : {true, false}) {
        for (const bool uneven : {false, true}) {
          CH_RETURN_IF_ERROR(CheckShift(axis, k, wrap, uneven));
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST(ShiftTest, ReadsAnyStridesAndHasGradientsOfGradients) {
  OnMesh({3}, [](const DeviceMesh& axis) -> absl::Status {
    const int from = *Peer(axis, -1, true);
    const Tensor x = Leaf({2, 3}, *axis.index(0), 0);
    const Tensor y = Shift(Transpose(x, 0, 1), axis, 1);
    CH_EXPECT_EQ(y.ToVector<float>(),
                 Transpose(Leaf({2, 3}, from, 0), 0, 1).ToVector<float>());
    const Tensor row = Leaf({1, 3}, *axis.index(0), 1);
    const Tensor rows = Shift(Expand(row, {2, 3}), axis, 1);
    CH_EXPECT_EQ(rows.ToVector<float>(),
                 Expand(Leaf({1, 3}, from, 1), {2, 3}).ToVector<float>());
    // Of the second output alone.
    const Tensor unused = Leaf({4}, *axis.index(0), 2);
    const TensorList both = Shift({unused, x}, axis, -1);
    CH_ASSIGN_OR_RETURN(const TensorList first,
                        Gradients(Sum(Mul(both[1], Mul(both[1], both[1]))),
                                  {&x, 1}, {.create_graph = true}));
    CH_EXPECT_EQ(first[0].ToVector<float>(),
                 Mul(Square(x.Detach()), 3).ToVector<float>());
    CH_RETURN_IF_ERROR(Backward(Sum(Square(both[1]))));
    CH_EXPECT_EQ(unused.grad().ToVector<float>(), std::vector<float>(4, 0));
    x.set_grad(Tensor());
    CH_RETURN_IF_ERROR(Backward(Sum(first[0])));
    CH_EXPECT_EQ(x.grad().ToVector<float>(),
                 Mul(x.Detach(), 6).ToVector<float>());
    return absl::OkStatus();
  });
}

// Keeps the log of collectives.
class CollectiveLog final : public EventSink {
 public:
  void Write(const LogEvent& event) override {
    if (event.kind != EventKind::kCollective) return;
    lines.push_back(absl::StrCat(*event.where, " ", event.what, " '",
                                 *event.subject, "' ", event.bytes));
  }
  std::vector<std::string> lines;
};

TEST(ShiftTest, ADryRunLogsTheSameBytes) {
  CollectiveLog log;
  const absl::Status status = RunFake(
      {.world_size = 8, .rank = 3, .sink = &log},
      [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(
            const DeviceMesh mesh,
            InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}, {"context", 2}}));
        CH_ASSIGN_OR_RETURN(const DeviceMesh axis, mesh.Slice("context"));
        Tensor x = Ones({3, 5});
        x.set_requires_grad(true);
        const Tensor y = Shift(x, axis, 1, {.receive_sizes = {{4, 5}}});
        EXPECT_EQ(AllToAlls(axis).bytes, 80);
        return Backward(Sum(y));
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(log.lines,
              ElementsAre("context all_to_all 'shift by 1 of 1 tensors' 80",
                          "context all_to_all 'shift by -1 of 1 tensors' 60"));
}

TEST(AllGatherTest, ConcatenatesAndReduceScattersGradients) {
  OnEachAxis([](const DeviceMesh& axis) -> absl::Status {
    const absl::Span<const int> ranks = axis.layout().ranks();
    const auto here = static_cast<size_t>(*axis.index(0));
    // Even, uneven, and all in the last rank's.
    for (int round = 0; round < 3; ++round) {
      std::vector<int64_t> sizes;
      for (int r = 0; r < axis.size(); ++r) {
        sizes.push_back(round == 0   ? 2
                        : round == 1 ? (r + 2) % 3
                                     : r == axis.size() - 1);
      }
      for (const int dim : {0, 1, -1}) {
        const auto of = [&](size_t r) {
          return dim == 0 ? Shape{sizes[r], 3} : Shape{3, sizes[r]};
        };
        TensorList parts;
        std::vector<Tensor> weights;
        for (size_t r = 0; r < sizes.size(); ++r) {
          parts.push_back(Leaf(of(r), ranks[r], 0).Detach());
        }
        const Tensor whole = Cat(parts, dim);
        const Tensor x = Leaf(of(here), ranks[here], 0);
        const Tensor y = round == 0 ? AllGather(x, axis, dim)
                                    : AllGather(x, axis, dim, sizes);
        CH_EXPECT_EQ(y.sizes(), whole.sizes());
        CH_EXPECT_EQ(y.ToVector<float>(), whole.ToVector<float>());
        Tensor total = Zeros(whole.sizes());
        for (const int rank : ranks) {
          total = Add(total, Weights(whole.sizes(), rank, 0));
        }
        // The input is used twice.
        CH_RETURN_IF_ERROR(Backward(
            Add(Sum(Mul(y, Weights(whole.sizes(), ranks[here], 0))), Sum(x))));
        int64_t begin = 0;
        for (size_t r = 0; r < here; ++r) begin += sizes[r];
        CH_EXPECT_EQ(x.grad().ToVector<float>(),
                     Add(Narrow(total, dim == 0 ? 0 : 1, begin, sizes[here]), 1)
                         .ToVector<float>());
      }
    }
    return absl::OkStatus();
  });
}

TEST(AllReduceTest, AddsValuesAndGradients) {
  OnEachAxis([](const DeviceMesh& axis) -> absl::Status {
    const absl::Span<const int> ranks = axis.layout().ranks();
    const int rank = ranks[static_cast<size_t>(*axis.index(0))];
    for (const Shape& sizes : {Shape{0, 2}, Shape{}, Shape{7, 3}}) {
      Tensor sum = Zeros(sizes);
      Tensor total = Zeros(sizes);
      for (const int peer : ranks) {
        sum = Add(sum, Leaf(sizes, peer, 0).Detach());
        total = Add(total, Weights(sizes, peer, 0));
      }
      const Tensor x = Leaf(sizes, rank, 0);
      const Tensor y = AllReduce(x, axis);
      CH_EXPECT_EQ(y.ToVector<float>(), sum.ToVector<float>());
      // The input is used twice.
      CH_RETURN_IF_ERROR(
          Backward(Add(Sum(Mul(y, Weights(sizes, rank, 0))), Sum(x))));
      CH_EXPECT_EQ(x.grad().ToVector<float>(), Add(total, 1).ToVector<float>());
    }
    return absl::OkStatus();
  });
}

// Runs `call` on two ranks, of which one is given true. Both must fail.
void ExpectMismatch(
    const std::function<void(const DeviceMesh& axis, bool odd)>& call,
    const std::string& even, const std::string& odd) {
  const auto names_both =
      AllOf(HasSubstr("group 'context' (ranks 0, 1)"), HasSubstr("rank 0"),
            HasSubstr("rank 1"), HasSubstr(even), HasSubstr(odd));
  const absl::Status status =
      StatusOfRanks(2, [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(world, {{"context", 2}}));
        call(mesh, world.rank() == 1);
        const absl::Status here = world.context().Synchronize();
        CH_EXPECT_THAT(std::string(here.message()), names_both);
        return here;
      });
  EXPECT_THAT(std::string(status.message()), names_both);
}

TEST(ShiftTest, RanksThatDifferAreAnErrorOfEveryRank) {
  ExpectMismatch([](const DeviceMesh& axis,
                    bool odd) { Shift(Ones({2}), axis, odd ? 2 : 1); },
                 "'shift by 1 of [2]'", "'shift by 2 of [2]'");
  ExpectMismatch(
      [](const DeviceMesh& axis, bool odd) {
        Shift(odd ? Ones({3, 2}) : Ones({2, 3}), axis, 1);
      },
      "[2, 3]", "[3, 2]");
  ExpectMismatch(
      [](const DeviceMesh& axis, bool odd) {
        Shift(Ones({2}, odd ? kInt32 : kFloat32), axis, 1);
      },
      "f32", "i32");
  ExpectMismatch(
      [](const DeviceMesh& axis, bool odd) {
        const Tensor x = Ones({2});
        odd ? Shift({x, x}, axis, 1)[0] : Shift(x, axis, 1);
      },
      "'shift by 1 of [2]'", "'shift by 1 of [2], [2]'");
  ExpectMismatch([](const DeviceMesh& axis,
                    bool odd) { Shift(Ones({2}), axis, 1, {.wrap = !odd}); },
                 "rank 1 sends 0 elements to rank 0, which expects 2",
                 "shift by 1");
  ExpectMismatch(
      [](const DeviceMesh& axis, bool odd) {
        Shift(Ones({2}), axis, 1, {.receive_sizes = {{odd ? 3 : 2}}});
      },
      "rank 0 sends 2 elements to rank 1, which expects 3",
      "shift by 1 of 1 tensors");
}

TEST(AllGatherTest, RanksThatDifferAreAnErrorOfEveryRank) {
  ExpectMismatch([](const DeviceMesh& axis,
                    bool odd) { AllGather(Ones({odd ? 3 : 2}), axis); },
                 "rank 0 sends 2 elements to rank 1, which expects 3",
                 "all_gather");
  ExpectMismatch([](const DeviceMesh& axis,
                    bool odd) { AllReduce(Ones({odd ? 3 : 2}), axis); },
                 "[2]", "[3]");
}

TEST(FunctionalCollectivesDeathTest, ReportsMismatches) {
  const auto on_mesh = [](const auto& call) {
    OnMesh({1, 1}, [&](const DeviceMesh& mesh) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const DeviceMesh axis, mesh.Slice("b"));
      call(mesh, axis);
      return absl::OkStatus();
    });
  };
  EXPECT_DEATH(on_mesh([](const DeviceMesh& mesh, const DeviceMesh&) {
                 Shift(Ones({2}), mesh, 1);
               }),
               "Shift over mesh\\(a=1, b=1\\), which has not one axis: Slice");
  EXPECT_DEATH(on_mesh([](const DeviceMesh&, const DeviceMesh& axis) {
                 AllReduce(Replicated(Ones({2}), axis), axis);
               }),
               "takes plain tensors; ToLocal");
  EXPECT_DEATH(on_mesh([](const DeviceMesh&, const DeviceMesh& axis) {
                 Shift(Ones({2}), axis, 1, {.receive_sizes = {{2}, {2}}});
               }),
               "Shift of 1 tensors with 2 receive_sizes");
  EXPECT_DEATH(on_mesh([](const DeviceMesh&, const DeviceMesh& axis) {
                 AllGather(Ones({2}), axis, 0, {3});
               }),
               "AllGather of f32\\[2\\].* along dim 0 over .* sizes \\[3\\]");
  EXPECT_DEATH(on_mesh([](const DeviceMesh&, const DeviceMesh& axis) {
                 AllGather(Ones({2}), axis, 1);
               }),
               "along dim 1");
}

}  // namespace
}  // namespace crosshatch
