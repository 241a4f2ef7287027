// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/run_page.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/nn/models/llama.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::examples {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string FreshPath(const std::string& name) {
  const std::string path = ::testing::TempDir() + name;
  fs::remove_all(path);
  return path;
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns a page of these steps with content in each part.
RunPage PageOf(const std::string& path, int64_t from, int64_t to) {
  RunPage page = *RunPage::Open(path, from);
  nn::Llama model({.dim = 8, .layers = 2, .heads = 2, .ffn = 8, .vocab = 5});
  page.Begin(
      DrawShardings(model, *MeshLayout::Create({{"fsdp", 2}, {"tp", 2}})),
      {{"width", "8 < 9"}});
  for (int64_t step = from + 1; step <= to; ++step) {
    StepMetrics metrics = {.step = step, .loss = 5.0, .grad_norm = 1.0};
    metrics.traffic["fsdp"]["all_gather"] = {2, 4096};
    page.Add(metrics);
  }
  TracedStep trace = {.step = to, .us = 10};
  trace.spans = {{"forward", "a", "compute", 0, 10}};
  trace.memory = {{.us = 0, .bytes = {8, 0, 0, 0, 0, 0}},
                  {.us = 10, .bytes = {8, 8, 0, 0, 0, 0}}};
  page.Set(trace);
  return page;
}

/// Checks that every tag is closed in order.
void ExpectWellFormed(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos;
       at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const bool closes = html[at + 1] == '/';
    const size_t from = at + (closes ? 2 : 1);
    const std::string name =
        html.substr(from, html.find_first_of(" >/", from) - from);
    if (name == "meta" || name == "!doctype" || html[end - 1] == '/') continue;
    if (!closes) {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << name;
    ASSERT_EQ(open.back(), name) << html.substr(at, 60);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

TEST(RunPageTest, IsOneFileThatNeedsNothingElse) {
  const std::string path = FreshPath("page.html");
  ASSERT_TRUE(RunPage::Check(path).ok());
  const absl::Status written = PageOf(path, 0, 3).Write(RunPage::State::kEnded);
  ASSERT_TRUE(written.ok()) << written;
  const std::string html = Read(path);
  ExpectWellFormed(html);
  for (const char* other : {"http:", "https:", "src=", "href=", "url(",
                            "@import", "<link", "<script>"}) {
    EXPECT_THAT(html, Not(HasSubstr(other)));
  }
  EXPECT_THAT(html,
              AllOf(HasSubstr("mesh(fsdp=2, tp=2)"), HasSubstr("8 &lt; 9"),
                    HasSubstr("fsdp 1 tp 0"), HasSubstr("layers.*."),
                    HasSubstr("all_gather"), HasSubstr("4.0 KiB"),
                    HasSubstr(">ended<"), HasSubstr("<polyline")));
  EXPECT_FALSE(fs::exists(path + ".saving"));
}

TEST(RunPageTest, LoadsItselfAgainWhileTheRunGoesOn) {
  const RunPage page = PageOf(FreshPath("goes_on.html"), 0, 2);
  const char* refresh = "http-equiv=\"refresh\"";
  EXPECT_THAT(page.ToHtml(RunPage::State::kRuns), HasSubstr(refresh));
  for (const auto state : {RunPage::State::kStopped, RunPage::State::kEnded,
                           RunPage::State::kFailed}) {
    EXPECT_THAT(page.ToHtml(state), Not(HasSubstr(refresh)));
  }
}

TEST(RunPageTest, GoesOnFromThePageOfTheRunBefore) {
  const std::string path = FreshPath("resumed.html");
  ASSERT_TRUE(PageOf(path, 0, 6).Write(RunPage::State::kStopped).ok());
  EXPECT_THAT(PageOf(path, 4, 8).ToHtml(RunPage::State::kEnded),
              AllOf(HasSubstr("[1,1,5.0,1.0"), HasSubstr("[4,1,5.0,1.0"),
                    HasSubstr("[5,1,5.0,1.0"), HasSubstr("[8,1,5.0,1.0"),
                    Not(HasSubstr("[9,1,"))));
  EXPECT_THAT(PageOf(path, 0, 1).ToHtml(RunPage::State::kEnded),
              Not(HasSubstr("[2,1,")))
      << "a run that begins keeps nothing";
}

TEST(RunPageTest, LeavesWhatIsNoReport) {
  const std::string path = FreshPath("mine.html");
  std::ofstream(path) << "<html>mine</html>";
  const absl::Status status = RunPage::Check(path);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("mine.html"), HasSubstr("is not overwritten")));
  EXPECT_FALSE(RunPage::Open(path, 0).ok());
  EXPECT_EQ(Read(path), "<html>mine</html>");
  EXPECT_FALSE(RunPage::Check(::testing::TempDir()).ok());
  EXPECT_THAT(
      std::string(
          RunPage::Check(::testing::TempDir() + "none/page.html").message()),
      HasSubstr("cannot write to"));
}

TEST(RunPageTest, ALinkStaysOne) {
  const std::string target = FreshPath("target.html");
  const std::string link = FreshPath("link.html");
  fs::create_symlink(target, link);
  ASSERT_TRUE(PageOf(link, 0, 1).Write(RunPage::State::kEnded).ok());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::exists(target));
}

}  // namespace
}  // namespace crosshatch::examples
