// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/row_exchange.h"

#include <cstdint>
#include <string>
#include <vector>

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

using ::testing::HasSubstr;

constexpr int64_t kWidth = 3;

// Returns the rows that rank `from` sends to rank `to` in round `round`:
// uneven, some none, in the last round none at all.
int64_t Given(int from, int to, int round) {
  return round == 2 ? 0 : (from * 2 + to + round) % 4;
}

// Returns row `i` of those that `from` sends to `to`.
float Value(int from, int to, int64_t i) {
  return static_cast<float>(100 * from + 10 * to + i);
}

struct Rows {
  std::vector<int64_t> give;
  std::vector<int64_t> take;
  std::vector<float> given;
  std::vector<float> taken;
};

Rows RowsOf(int rank, int ranks, int round) {
  Rows rows;
  for (int peer = 0; peer < ranks; ++peer) {
    rows.give.push_back(Given(rank, peer, round));
    rows.take.push_back(Given(peer, rank, round));
    for (int64_t i = 0; i < rows.give.back(); ++i) {
      rows.given.insert(rows.given.end(), kWidth, Value(rank, peer, i));
    }
    for (int64_t i = 0; i < rows.take.back(); ++i) {
      rows.taken.insert(rows.taken.end(), kWidth, Value(peer, rank, i));
    }
  }
  return rows;
}

int64_t Sum(const std::vector<int64_t>& counts) {
  int64_t sum = 0;
  for (const int64_t count : counts) sum += count;
  return sum;
}

// On meshes of one axis, along one of two, and over both at once.
TEST(RowExchangeTest, MovesRowsThereAndGradientsBack) {
  for (const std::vector<int>& shape :
       {std::vector<int>{1}, std::vector<int>{3}, std::vector<int>{2, 2}}) {
    OnMesh(shape, [](const DeviceMesh& all) -> absl::Status {
      std::vector<DeviceMesh> meshes = {all};
      if (all.ndim() == 2) {
        CH_ASSIGN_OR_RETURN(const DeviceMesh b, all.Slice("b"));
        meshes.push_back(b);
      }
      for (const DeviceMesh& mesh : meshes) {
        CH_ASSIGN_OR_RETURN(
            Communicator* const communicator,
            mesh.communicator(
                mesh.ndim() == 1 ? std::vector<int>{0} : std::vector<int>{0, 1},
                RankContext::Current().current_stream().name()));
        for (int round = 0; round < 3; ++round) {
          const Rows rows = RowsOf(communicator->rank(), mesh.size(), round);
          Tensor x = FromValues<float>({Sum(rows.give), kWidth}, rows.given);
          x.set_requires_grad(true);
          const auto& stats =
              communicator->stats()
                  .by_kind[static_cast<int>(CollectiveKind::kAllToAll)];
          const int64_t bytes = stats.bytes;
          const Tensor y =
              AllToAllRows(x, ExchangeOf(rows.give, rows.take), mesh);
          CH_EXPECT_EQ(y.ToVector<float>(), rows.taken);
          const int64_t own =
              rows.take[static_cast<size_t>(communicator->rank())];
          CH_EXPECT_EQ(stats.bytes - bytes,
                       (Sum(rows.take) - own) * kWidth *
                           static_cast<int64_t>(sizeof(float)));
          // The gradient of the sum of squares is twice what was sent.
          CH_RETURN_IF_ERROR(Backward(crosshatch::Sum(Square(y))));
          CH_EXPECT_EQ(x.grad().ToVector<float>(),
                       Mul(x.Detach(), 2).ToVector<float>());
        }
      }
      return absl::OkStatus();
    });
  }
}

// Both ranks interleave what they receive: rows of peer 0 at even positions.
TEST(RowExchangeTest, RunsNameTheFinalPlaces) {
  OnMesh({2}, [](const DeviceMesh& mesh) -> absl::Status {
    const auto rank = static_cast<float>(*mesh.index(0));
    Tensor x = FromValues<float>(
        {4}, std::vector<float>{10 * rank, 10 * rank + 1, 10 * rank + 2,
                                10 * rank + 3});
    x.set_requires_grad(true);
    // The last two rows to rank 0, the first two to rank 1.
    const RowExchange exchange = {.give = {{{2, 2}}, {{0, 1}, {1, 1}}},
                                  .take = {{{0, 1}, {2, 1}}, {{1, 1}, {3, 1}}},
                                  .rows_given = 4,
                                  .rows_taken = 4};
    const Tensor y = AllToAllRows(x, exchange, mesh);
    CH_EXPECT_EQ(y.ToVector<float>(), *mesh.index(0) == 0
                                          ? std::vector<float>({2, 12, 3, 13})
                                          : std::vector<float>({0, 10, 1, 11}));
    CH_ASSIGN_OR_RETURN(const TensorList first,
                        Gradients(crosshatch::Sum(Mul(y, Mul(y, y))), {&x, 1},
                                  {.create_graph = true}));
    CH_EXPECT_EQ(first[0].ToVector<float>(),
                 Mul(Square(x.Detach()), 3).ToVector<float>());
    CH_RETURN_IF_ERROR(Backward(crosshatch::Sum(first[0])));
    CH_EXPECT_EQ(x.grad().ToVector<float>(),
                 Mul(x.Detach(), 6).ToVector<float>());
    return absl::OkStatus();
  });
}

TEST(RowExchangeTest, GathersNumbersInTheOrderOfRanks) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) -> absl::Status {
    const int64_t rank = mesh.world().rank();
    CH_ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                        GatherNumbers({rank, rank * rank}, mesh));
    CH_EXPECT_EQ(all, std::vector<int64_t>({0, 0, 1, 1, 2, 4, 3, 9}));
    return absl::OkStatus();
  });
}

TEST(RowExchangeTest, DifferentCountsAreAnErrorOnEveryRank) {
  const absl::Status status =
      StatusOfRanks(2, [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(world, {{"ep", 2}}));
        // Rank 0 sends one row to rank 1, which expects two.
        const bool gives = world.rank() == 0;
        AllToAllRows(
            Ones({gives ? 1 : 0, 2}),
            gives ? ExchangeOf({0, 1}, {0, 0}) : ExchangeOf({0, 0}, {2, 0}),
            mesh);
        return world.context().Synchronize();
      });
  EXPECT_THAT(std::string(status.message()), HasSubstr("all_to_all_rows"));
}

TEST(RowExchangeDeathTest, ReportsMismatches) {
  const auto exchange = [](const Tensor& x, const RowExchange& rows) {
    OnMesh({1}, [&](const DeviceMesh& mesh) { AllToAllRows(x, rows, mesh); });
  };
  EXPECT_DEATH(exchange(Ones({2, 2}), ExchangeOf({1, 1}, {1, 1})),
               "2 peers to send to and 2 to receive from over mesh\\(a=1\\)");
  EXPECT_DEATH(exchange(Ones({2, 2}), ExchangeOf({3}, {3})),
               "all_to_all_rows of f32\\[2, 2\\]");
  RowExchange twice = ExchangeOf({2}, {2});
  twice.take[0] = {{0, 1}, {0, 1}};
  EXPECT_DEATH(exchange(Ones({2, 2}), twice),
               "the rows taken are not each of 2 once");
  EXPECT_DEATH(OnMesh({1},
                      [](const DeviceMesh& mesh) {
                        AllToAllRows(Replicated(Ones({2}), mesh),
                                     ExchangeOf({2}, {2}), mesh);
                      }),
               "rows are of plain tensors; ToLocal");
}

}  // namespace
}  // namespace crosshatch
