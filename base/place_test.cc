// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/place.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "crosshatch/base/check.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

class Link final : public Place {
 public:
  Link(Kind kind, std::string text) : Place(kind), text_(std::move(text)) {}
  std::string Describe() const override { return text_; }
  std::shared_ptr<const std::string> module() const override {
    if (kind() != Kind::kModule) return nullptr;
    return std::make_shared<const std::string>(text_);
  }

 private:
  const std::string text_;
};

TEST(PlaceTest, SaysTheInnermostOfEachKind) {
  EXPECT_EQ(Place::Here(), "");
  EXPECT_EQ(RunningModule(), nullptr);
  const Link rank(Place::Kind::kRank, "rank 1");
  const Link outer(Place::Kind::kModule, "layers.0 (Block)");
  {
    const Link inner(Place::Kind::kModule, "layers.0.up (Linear)");
    const Link op(Place::Kind::kOp, "op matmul");
    EXPECT_EQ(Place::Here(), "rank 1, module layers.0.up (Linear), op matmul");
    std::string elsewhere = "not asked";
    std::thread([&] { elsewhere = Place::Here(); }).join();
    EXPECT_EQ(elsewhere, "");
  }
  EXPECT_EQ(Place::Here(), "rank 1, module layers.0 (Block)");
}

TEST(PlaceDeathTest, EndsTheMessageOfAFailedCheck) {
  const Link rank(Place::Kind::kRank, "rank 1");
  const Link op(Place::Kind::kOp, "op matmul");
  EXPECT_DEATH(CH_CHECK(1 > 2) << "one is small",
               "1 > 2 one is small\n  at rank 1, op matmul\n");
}

// What describes a place may itself be what is broken.
class Broken final : public Place {
 public:
  Broken() : Place(Kind::kOp) {}
  std::string Describe() const override {
    CH_CHECK(false) << "no words";
    return "";
  }
};

TEST(PlaceDeathTest, FailsOnceIfItCannotBeDescribed) {
  const Broken broken;
  EXPECT_DEATH(CH_CHECK(1 > 2) << "one is small", "1 > 2 one is small\n");
}

TEST(PlaceDeathTest, OfSeveralThreadsOneSpeaks) {
  // All fail alike, as ranks do that run one program.
  const auto fail_everywhere = [] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([] { CH_CHECK(1 > 2) << "one is small"; });
    }
    for (std::thread& thread : threads) thread.join();
  };
  EXPECT_DEATH(fail_everywhere(), "^[^\n]*one is small\n$");
}

}  // namespace
}  // namespace crosshatch
