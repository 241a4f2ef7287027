// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/run_page.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/examples/metrics.h"
#include "crosshatch/examples/page/page_html.h"
#include "crosshatch/examples/report.h"
#include "nlohmann/json.hpp"

namespace crosshatch::examples {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::ordered_json;

// By these texts, a file is recognized as a page and its points are found.
constexpr char kMark[] =
    "<meta name=\"generator\" content=\"crosshatch train_lm\">";
constexpr char kPoints[] = "<script type=\"application/json\" id=\"points\">";
constexpr char kScriptEnd[] = "</script>";
// Where page.html takes its data.
constexpr char kData[] = "<!-- data -->";

// Returns `rank`'s part of a parameter; null if it is not on its mesh.
Json BoxOn(const Tensor& data, int rank) {
  Box box = WholeBox(data.sizes());
  if (data.is_distributed()) {
    const Layout& layout = LayoutOf(data);
    const std::optional<MeshCoordinate> at = layout.mesh().CoordinateOf(rank);
    if (!at.has_value()) return nullptr;
    box = layout.LocalBox(data.sizes(), *at);
  }
  return {
      {"name", ToString(box)}, {"offsets", box.offsets}, {"sizes", box.sizes}};
}

absl::Status Refused(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("--report=", path, ": ", why));
}

const char* NameOf(RunPage::State state) {
  switch (state) {
    case RunPage::State::kRuns:
      return "runs";
    case RunPage::State::kStopped:
      return "stopped";
    case RunPage::State::kEnded:
      return "ended";
    case RunPage::State::kFailed:
      return "failed";
  }
  return "";
}

absl::StatusOr<std::string> ReadPage(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return std::string();
    return Refused(path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return Refused(path, "is not a file");
  CH_ASSIGN_OR_RETURN(std::string page, checkpoint::ReadFile(path));
  if (!page.empty() && page.find(kMark) == std::string::npos) {
    return Refused(path,
                   "exists and does not hold a report, so it is not "
                   "overwritten; name another file");
  }
  return page;
}

/// Creates two files next to `path` like versions of it, renames the first to
/// the second, and removes them.
absl::Status TryToReplace(const std::string& path) {
  checkpoint::FileSystem& files = checkpoint::FileSystem::Real();
  std::string made[2];
  const absl::Cleanup remove = [&] {
    for (const std::string& name : made) {
      if (!name.empty()) files.RemoveFile(name);
    }
  };
  for (std::string& name : made) {
    int fd = -1;
    std::string taken;
    const int error = checkpoint::TakeFreeName(
        path, ".saving",
        [&](const std::string& n) { return files.CreateFile(n, fd); }, taken);
    if (error != 0) return checkpoint::SystemError(error, "create", taken);
    files.Close(fd);
    name = taken;
  }
  if (const int error = files.Rename(made[0], made[1]); error != 0) {
    return checkpoint::SystemError(
        error, absl::StrCat("rename ", made[0], " to"), made[1]);
  }
  made[0].clear();
  return absl::OkStatus();
}

}  // namespace

absl::Status RunPage::Check(const std::string& path) {
  CH_RETURN_IF_ERROR(ReadPage(path).status());
  const fs::path parent = fs::path(path).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    return Refused(path, absl::StrCat("cannot write to ", directory, ": ",
                                      std::strerror(errno)));
  }
  const absl::Status tried = TryToReplace(ResolvedPath(path).string());
  if (!tried.ok()) return Refused(path, std::string(tried.message()));
  return absl::OkStatus();
}

absl::StatusOr<RunPage> RunPage::Open(const std::string& path,
                                      int64_t kept_steps) {
  // Keeps a link and replaces its target.
  RunPage page(ResolvedPath(path).string());
  CH_ASSIGN_OR_RETURN(const std::string before, ReadPage(path));
  if (kept_steps == 0) return page;
  const size_t begin = before.find(kPoints);
  if (begin == std::string::npos) return page;
  const size_t from = begin + std::strlen(kPoints);
  const size_t end = before.find(kScriptEnd, from);
  page.series_ =
      StepSeries::FromJson(before.substr(from, end - from), kept_steps);
  return page;
}

void RunPage::Begin(
    nn::Module& model, const MeshLayout& mesh,
    const std::vector<std::pair<std::string, std::string>>& settings) {
  constexpr int kMostRanks = 16;
  Json json = {{"mesh", mesh.ToString()},  {"ranks", mesh.size()},
               {"columns", Json::array()}, {"kinds", Json::array()},
               {"settings", settings},     {"memory_classes", Json::array()}};
  for (int i = 0; i < std::min(kMostRanks, mesh.size()); ++i) {
    const MeshCoordinate at = mesh.CoordinateAt(i);
    std::string coordinate;
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      absl::StrAppend(&coordinate, axis > 0 ? " " : "", mesh.axis_name(axis),
                      " ", at[static_cast<size_t>(axis)]);
    }
    json["columns"].push_back({{"rank", mesh.ranks()[static_cast<size_t>(i)]},
                               {"coordinate", coordinate}});
  }
  for (const ParameterKind& kind : ParameterKinds(model)) {
    Json boxes = Json::array();
    for (const Json& column : json["columns"]) {
      boxes.push_back(BoxOn(kind.first->data(), column["rank"].get<int>()));
    }
    json["kinds"].push_back({{"name", kind.name},
                             {"shape", ToString(kind.sizes)},
                             {"sizes", kind.sizes},
                             {"parameters", kind.count},
                             {"layout", kind.layout},
                             {"boxes", std::move(boxes)}});
  }
  for (int i = 0; i < kNumMemoryClasses; ++i) {
    json["memory_classes"].push_back(Name(static_cast<MemoryClass>(i)));
  }
  static_json_ = json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void RunPage::Add(const StepMetrics& metrics) {
  series_.Add(metrics);
  last_ = metrics;
}

std::string RunPage::DataJson(State state) const {
  Json json = Json::parse(static_json_);
  json["state"] = NameOf(state);
  // JSON has no number for what is not finite, so null does not mean a dry run.
  json["computed"] = last_.has_value() && last_->loss.has_value();
  json["last"] = last_.has_value() ? Json::parse(ToJson(*last_, trace_.rank))
                                   : Json(nullptr);
  Json spans = Json::array();
  for (const Span& span : trace_.spans) {
    if (span.end_us < 0) continue;
    spans.push_back({{"what", span.what},
                     {"subject", span.subject},
                     {"row", span.row},
                     {"begin", span.begin_us},
                     {"end", span.end_us}});
  }
  Json memory = Json::array();
  for (const MemorySample& sample : trace_.memory) {
    memory.push_back({{"us", sample.us}, {"bytes", sample.bytes}});
  }
  json["trace"] = {{"step", trace_.step},       {"rank", trace_.rank},
                   {"dry", trace_.dry},         {"us", trace_.us},
                   {"spans", std::move(spans)}, {"memory", std::move(memory)}};
  // "</script>" would end the element.
  return absl::StrReplaceAll(
      json.dump(-1, ' ', false, Json::error_handler_t::replace),
      {{"<", "\\u003c"}});
}

std::string RunPage::ToHtml(State state) const {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(kPageHtml, absl::MaxSplits(kData, 1));
  return absl::StrCat(halves.first, kPoints, series_.ToJson(), kScriptEnd,
                      "\n<script type=\"application/json\" id=\"run\">",
                      DataJson(state), kScriptEnd, halves.second);
}

absl::Status RunPage::Write(State state) const {
  const absl::Status status = checkpoint::WriteFile(
      path_, ToHtml(state), checkpoint::FileSystem::Real(), /*keeps=*/false);
  if (status.ok()) return status;
  return absl::Status(
      status.code(), absl::StrCat("--report: ", std::string(status.message())));
}

}  // namespace crosshatch::examples
