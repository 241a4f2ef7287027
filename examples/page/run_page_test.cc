// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/run_page.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "crosshatch/nn/models/llama.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

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
  page.Begin(model, *MeshLayout::Create({{"fsdp", 2}, {"tp", 2}}),
             {{"width", "8 </script> 9"}});
  for (int64_t step = from + 1; step <= to; ++step) {
    StepMetrics metrics = {.step = step, .loss = 5.0, .grad_norm = 1.0};
    metrics.traffic["fsdp"]["all_gather"] = {2, 4096};
    page.Add(metrics);
  }
  TracedStep trace = {.step = to, .us = 10};
  trace.spans = {{"forward", "a", "compute", 0, 10},
                 {"backward", "a", "compute", 10, -1}};
  trace.memory = {{.us = 0, .bytes = {8, 0, 0, 0, 0, 0}},
                  {.us = 10, .bytes = {8, 8, 0, 0, 0, 0}}};
  page.Set(trace);
  return page;
}

/// Returns the JSON object of the script element `id`.
nlohmann::json DataOf(const std::string& html, const std::string& id) {
  const std::string begin =
      "<script type=\"application/json\" id=\"" + id + "\">";
  const size_t from = html.find(begin) + begin.size();
  return nlohmann::json::parse(
      html.substr(from, html.find("</script>", from) - from));
}

TEST(RunPageTest, IsOneFileThatNeedsNothingElse) {
  const std::string path = FreshPath("page.html");
  ASSERT_TRUE(RunPage::Check(path).ok());
  const absl::Status written = PageOf(path, 0, 3).Write(RunPage::State::kEnded);
  ASSERT_TRUE(written.ok()) << written;
  const std::string html = Read(path);
  for (const char* other : {"http:", "https:", "src=", "href=", "url(",
                            "@import", "<link", "<!-- data"}) {
    EXPECT_THAT(html, Not(HasSubstr(other)));
  }
  EXPECT_TRUE(html.ends_with("</html>\n"));
  EXPECT_FALSE(fs::exists(path + ".saving"));
  const nlohmann::json run = DataOf(html, "run");
  EXPECT_EQ(run["mesh"], "mesh(fsdp=2, tp=2)");
  EXPECT_EQ(run["settings"][0][1], "8 </script> 9");
  EXPECT_EQ(run["ranks"], 4);
  EXPECT_EQ(run["columns"][2]["coordinate"], "fsdp 1 tp 0");
  EXPECT_THAT(run["kinds"][1]["name"].get<std::string>(),
              HasSubstr("layers.*."));
  EXPECT_EQ(run["kinds"][1]["boxes"].size(), 4u);
  EXPECT_EQ(run["last"]["moved"]["fsdp"]["all_gather"]["bytes"], 4096);
  EXPECT_EQ(run["trace"]["spans"][0]["subject"], "a");
  EXPECT_EQ(run["trace"]["spans"].size(), 1u) << "one is still open";
  EXPECT_EQ(run["trace"]["memory"][1]["bytes"][1], 8);
  EXPECT_EQ(DataOf(html, "points")["points"].size(), 3u);
}

TEST(RunPageTest, StatesHowTheRunEnded) {
  const RunPage page = PageOf(FreshPath("states.html"), 0, 2);
  const std::pair<RunPage::State, const char*> states[] = {
      {RunPage::State::kRuns, "runs"},
      {RunPage::State::kStopped, "stopped"},
      {RunPage::State::kEnded, "ended"},
      {RunPage::State::kFailed, "failed"}};
  for (const auto& [state, name] : states) {
    EXPECT_EQ(DataOf(page.ToHtml(state), "run")["state"], name);
  }
}

TEST(RunPageTest, ContinuesTheEarlierPage) {
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

TEST(RunPageTest, KeepsFilesOfOthers) {
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
