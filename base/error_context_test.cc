// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/error_context.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "crosshatch/base/check.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

class Link final : public ErrorContext {
 public:
  Link(Kind kind, std::string text, const char* op_name = nullptr)
      : ErrorContext(kind), text_(std::move(text)), op_name_(op_name) {}
  std::string Describe() const override { return text_; }
  std::shared_ptr<const std::string> module() const override {
    if (kind() != Kind::kModule) return nullptr;
    return std::make_shared<const std::string>(text_);
  }
  const char* op_name() const override { return op_name_; }

 private:
  const std::string text_;
  const char* const op_name_;
};

TEST(ErrorContextTest, ReturnsTheInnermostOfEachKind) {
  EXPECT_EQ(ErrorContext::DescribeCurrent(), "");
  EXPECT_EQ(RunningModule(), nullptr);
  const Link rank(ErrorContext::Kind::kRank, "rank 1");
  const Link outer(ErrorContext::Kind::kModule, "layers.0 (Block)");
  {
    const Link inner(ErrorContext::Kind::kModule, "layers.0.up (Linear)");
    const Link op(ErrorContext::Kind::kOp, "op matmul");
    EXPECT_EQ(ErrorContext::DescribeCurrent(),
              "rank 1, module layers.0.up (Linear), op matmul");
    std::string elsewhere = "not queried";
    std::thread([&] { elsewhere = ErrorContext::DescribeCurrent(); }).join();
    EXPECT_EQ(elsewhere, "");
  }
  EXPECT_EQ(ErrorContext::DescribeCurrent(), "rank 1, module layers.0 (Block)");
}

// Work on another thread has the error context of its issue, and no other.
TEST(ErrorContextTest, GoesWithWorkToOtherThreads) {
  IssuedErrorContext issued, named;
  {
    const Link rank(ErrorContext::Kind::kRank, "rank 1");
    const Link module(ErrorContext::Kind::kModule, "up (Linear)");
    const Link gradient(ErrorContext::Kind::kGradient, "gradient of matmul");
    const Link op(ErrorContext::Kind::kOp, "op mul of f32[2]", "mul");
    issued = IssuedErrorContext::Capture(/*in_words=*/true);
    named = IssuedErrorContext::Capture(/*in_words=*/false);
    EXPECT_EQ(IssuedErrorContext::Capture(true).Describe(), issued.Describe());
  }
  std::string full, short_of_it, adopted, after;
  const auto work = [&] {
    const Link rank(ErrorContext::Kind::kRank, "rank 2");
    {
      const IssuedErrorContextScope scope(issued);
      full = ErrorContext::DescribeCurrent();
    }
    {
      const IssuedErrorContextScope scope(named);
      short_of_it = ErrorContext::DescribeCurrent();
    }
    const Link op(ErrorContext::Kind::kOp, "op of another");
    {
      const AdoptedErrorContext place(&rank);
      adopted = ErrorContext::DescribeCurrent();
    }
    after = ErrorContext::DescribeCurrent();
  };
  std::thread(work).join();
  EXPECT_EQ(full,
            "rank 2, module up (Linear), gradient of matmul, op mul of f32[2]");
  // The gradient's link has no op name.
  EXPECT_EQ(short_of_it, "rank 2, module up (Linear), op mul");
  EXPECT_EQ(adopted, "rank 2");
  EXPECT_EQ(after, "rank 2, op of another");
  EXPECT_EQ(IssuedErrorContext::Capture(true).Describe(), "");
  EXPECT_EQ(IssuedErrorContext::Capture(false).Describe(), "");
}

TEST(ErrorContextDeathTest, EndsTheMessageOfAFailedCheck) {
  const Link rank(ErrorContext::Kind::kRank, "rank 1");
  const Link op(ErrorContext::Kind::kOp, "op matmul");
  EXPECT_DEATH(CH_CHECK(1 > 2) << "one is small",
               "1 > 2 one is small\n  at rank 1, op matmul\n");
}

// A context whose description fails, too.
class Broken final : public ErrorContext {
 public:
  Broken() : ErrorContext(Kind::kOp) {}
  std::string Describe() const override {
    CH_CHECK(false) << "no words";
    return "";
  }
};

TEST(ErrorContextDeathTest, FailsOnceIfItCannotBeDescribed) {
  const Broken broken;
  EXPECT_DEATH(CH_CHECK(1 > 2) << "one is small", "1 > 2 one is small\n");
}

TEST(ErrorContextDeathTest, OfSeveralThreadsOneSpeaks) {
  // Ranks of one program usually fail at the same check.
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
