// SPDX-License-Identifier: Apache-2.0
//
// Collectives between processes and between threads have the same bits.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

struct Case {
  CollectiveKind kind;
  DType dtype;
  ReduceOp op;
  double scale;
  int64_t count;
  bool strided;

  std::string Describe() const {
    return absl::StrCat(Name(kind), " ", Name(dtype), " ",
                        std::string(ToString(op)), " scale ", scale, " count ",
                        count, strided ? " strided" : "");
  }
};

/// Distinct numbers whose sums depend on the order. They repeat, because
/// drawing them is slow.
constexpr size_t kDifferent = 8191;

std::vector<std::byte> Numbers(DType dtype, size_t count, uint64_t seed) {
  std::vector<std::byte> bytes(count * static_cast<size_t>(SizeOf(dtype)));
  std::mt19937_64 random(seed);
  const auto fill = [&]<typename T>(T) {
    for (size_t i = 0; i < std::min(count, kDifferent); ++i) {
      const auto bits = random();
      T value;
      if constexpr (std::is_integral_v<T>) {
        value = static_cast<T>(bits);
      } else {
        value = static_cast<T>(static_cast<float>(
            (static_cast<double>(bits >> 12) / (uint64_t{1} << 51) - 1) *
            static_cast<double>(1 << (bits % 8))));
      }
      std::memcpy(&bytes[i * sizeof(T)], &value, sizeof(T));
    }
  };
  switch (dtype) {
    case DType::kFloat32:
      fill(float());
      break;
    case DType::kFloat64:
      fill(double());
      break;
    case DType::kBFloat16:
      fill(BFloat16());
      break;
    case DType::kFloat16:
      fill(Float16());
      break;
    case DType::kInt32:
      fill(int32_t());
      break;
    case DType::kInt64:
      fill(int64_t());
      break;
    default:
      fill(uint16_t());
      break;
  }
  const size_t period = kDifferent * static_cast<size_t>(SizeOf(dtype));
  for (size_t i = period; i < bytes.size(); i += period) {
    std::memcpy(&bytes[i], bytes.data(), std::min(period, bytes.size() - i));
  }
  return bytes;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (CollectiveKind kind :
       {CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce}) {
    for (DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16,
          DType::kInt32, DType::kInt64, DType::kUInt16}) {
      const bool floats = IsFloatingPoint(dtype);
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct,
                          ReduceOp::kMin, ReduceOp::kMax}) {
        if (op == ReduceOp::kAvg && !floats) continue;
        for (double scale : {1.0, 0.3}) {
          if (scale != 1.0 && !floats) continue;
          // As a payload, in one piece, and in many.
          for (int64_t count : {0, 1, 7, 1009, 100003}) {
            if (count > 10000 && op != ReduceOp::kSum) continue;
            cases.push_back({kind, dtype, op, scale, count, count == 1009});
          }
        }
      }
    }
  }
  // Large enough for many pieces, each packed and unpacked.
  for (CollectiveKind kind :
       {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllReduce, CollectiveKind::kAllToAll,
        CollectiveKind::kBroadcast}) {
    cases.push_back({kind, DType::kFloat32, ReduceOp::kSum, 1.0, 300007, true});
  }
  return cases;
}

/// Collects this rank's result of each case.
absl::Status RunCases(World& world,
                      std::vector<std::vector<std::byte>>& results) {
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  CH_ASSIGN_OR_RETURN(auto comm, world.Group("all", all, "comm"));
  Stream& stream = world.context().SideStream("comm");
  uint64_t seed = 0;
  for (const Case& c : Cases()) {
    const auto n = static_cast<int64_t>(world.size());
    const bool to_all = c.kind == CollectiveKind::kReduceScatter ||
                        c.kind == CollectiveKind::kAllToAll;
    const bool from_all = c.kind == CollectiveKind::kAllGather ||
                          c.kind == CollectiveKind::kAllToAll;
    const int64_t sent = to_all ? c.count * n : c.count;
    const int64_t received = from_all ? c.count * n : c.count;
    // Of a strided list, every third element is a gap.
    const int64_t spread = c.strided ? 3 : 2;
    std::vector<std::byte> numbers =
        Numbers(c.dtype, static_cast<size_t>(sent * spread / 2 + 3),
                ++seed * 100 + static_cast<uint64_t>(world.rank()));
    results.emplace_back(static_cast<size_t>(received * SizeOf(c.dtype)));
    const auto list = [&](int64_t begin, int64_t count) {
      std::byte* data = numbers.data() + begin * spread / 2 * SizeOf(c.dtype);
      if (!c.strided) return SegmentList{{.data = data, .run_elems = count}};
      return SegmentList{
          {.data = data, .run_elems = 2, .runs = count / 2, .stride_elems = 3},
          {.data = data + count / 2 * 3 * SizeOf(c.dtype),
           .run_elems = count % 2}};
    };
    Collective collective{.kind = c.kind,
                          .dtype = c.dtype,
                          .reduce_op = c.op,
                          .scale = c.scale,
                          .root = c.kind == CollectiveKind::kBroadcast ? 1 : 0,
                          .label = c.Describe()};
    if (to_all) {
      for (int64_t r = 0; r < n; ++r) {
        // An even offset, so that runs of two stay whole.
        collective.send.push_back(list(r * c.count / 2 * 2, c.count));
      }
    } else {
      collective.send = {list(0, c.count)};
    }
    for (int64_t r = 0; r < (from_all ? n : 1); ++r) {
      std::byte* data = results.back().data() + r * c.count * SizeOf(c.dtype);
      collective.recv.push_back({{.data = data, .run_elems = c.count}});
    }
    CH_RETURN_IF_ERROR(comm->Issue(std::move(collective), stream));
    CH_RETURN_IF_ERROR(world.context().Synchronize());
  }
  return absl::OkStatus();
}

TEST(MpiBitsTest, AreThoseOfThreads) {
  std::vector<std::vector<std::byte>> here;
  int rank = 0;
  int ranks = 1;
  const absl::Status status = RunMpi([&](World& world) {
    rank = world.rank();
    ranks = world.size();
    return RunCases(world, here);
  });
  ASSERT_TRUE(status.ok()) << status;
  std::vector<std::vector<std::byte>> there;
  const absl::Status local = RunLocal(ranks, [&](World& world) {
    std::vector<std::vector<std::byte>> results;
    const absl::Status done = RunCases(world, results);
    if (world.rank() == rank) there = std::move(results);
    return done;
  });
  ASSERT_TRUE(local.ok()) << local;
  const std::vector<Case> cases = Cases();
  ASSERT_EQ(here.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(here[i] == there[i]) << cases[i].Describe();
  }
}

}  // namespace
}  // namespace crosshatch
