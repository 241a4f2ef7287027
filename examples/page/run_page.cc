// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/run_page.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/examples/page/charts.h"
#include "crosshatch/examples/page/step_timeline.h"
#include "crosshatch/examples/page/svg.h"
#include "crosshatch/examples/report.h"
#include "crosshatch/examples/resolved_path.h"

namespace crosshatch::examples {
namespace {

namespace fs = std::filesystem;

// By these texts, a file is recognized as a page and its points are found.
constexpr char kMark[] =
    "<meta name=\"generator\" content=\"crosshatch train_lm\">";
constexpr char kPoints[] = "<script type=\"application/json\" id=\"points\">";
constexpr char kPointsEnd[] = "</script>";

// Colors are legible on light and dark backgrounds. --c0 to --c5 are also the
// memory classes, in order.
constexpr char kStyle[] = R"css(
:root{color-scheme:light dark;--bg:#f7f7f5;--card:#fff;--ink:#1f2328;
--soft:#667085;--line:#e4e6ea;--c0:#3b74c9;--c1:#d97a1f;--c2:#3a9a63;
--c3:#c6486b;--c4:#8360c3;--c5:#1f9ba5;--c6:#a07b2c;--c7:#6b7a90}
@media(prefers-color-scheme:dark){:root{--bg:#14171c;--card:#1c2027;
--ink:#e6e9ee;--soft:#98a2b3;--line:#2e343e;--c0:#6ba1f0;--c1:#f0a050;
--c2:#5fc48b;--c3:#ee7f9d;--c4:#ab8cf0;--c5:#4fc9d3;--c6:#d3ac55;--c7:#98a6bb}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:22px 20px 60px}
h1{font-size:20px;margin:0}h2{font-size:14px;margin:0 0 8px;font-weight:600}
.sub{color:var(--soft);margin:2px 0 16px}
.badge{font-size:12px;font-weight:600;border-radius:20px;padding:2px 10px;
margin-left:10px;vertical-align:2px;border:1px solid currentColor}
.runs{color:var(--c0)}.stopped{color:var(--c1)}.ended{color:var(--c2)}
.failed{color:var(--c3)}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin-bottom:14px}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:10px 16px;flex:1 1 130px}
.tile b{display:block;font-size:21px;font-weight:600;
font-variant-numeric:tabular-nums;white-space:nowrap}
.tile span{color:var(--soft);font-size:12px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:14px}
.card{padding:14px 16px;min-width:0}.card.all{grid-column:1/-1}
.scroll{overflow-x:auto}
svg{display:block;width:100%;height:auto}svg.wide{min-width:820px}
.grid{stroke:var(--line);stroke-width:1}.mark{stroke:var(--ink);stroke-width:1;
stroke-dasharray:3 3}
.tick{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.s{rx:2;ry:2}.forward{fill:var(--c0)}.backward{fill:var(--c4)}.op{fill:var(--c5);
opacity:.75}.collective,.moves{fill:var(--c1)}.wait{fill:var(--c3)}
.phase{fill:var(--c7)}.in{font-size:10px;fill:#fff;pointer-events:none}
@media(prefers-color-scheme:dark){.in{fill:#10131a}}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.data{width:100%;font-size:13px}
.data th{font-weight:500;color:var(--soft);text-align:left;font-size:12px}
.data td,.data th{padding:3px 10px 3px 0;border-bottom:1px solid var(--line);
vertical-align:middle;white-space:nowrap}
.n,.data th.n{text-align:right}
.barcell{width:34%;min-width:90px}.barcell i{display:block;height:9px;
border-radius:3px;background:var(--c0);min-width:1px}
.legend{font-size:12px;margin-top:6px}.legend td{padding:1px 18px 1px 0}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;
margin-right:7px;vertical-align:-1px}.sum td{border-top:1px solid var(--line);
font-weight:600}
.shards svg{width:auto;height:auto;display:inline-block;vertical-align:middle}
.data .rank{text-align:center;padding:3px 5px}
.rank small{display:block;font-weight:400;font-size:10px}
.whole{fill:none;stroke:var(--soft);stroke-width:1;opacity:.7}
.keys{color:var(--soft);font-size:12px;margin:8px 0 0}
.keys i{display:inline-block;width:11px;height:11px;border-radius:3px;
margin:0 5px 0 14px;vertical-align:-1px}.keys i:first-child{margin-left:0}
.note{color:var(--soft);font-size:12px;margin:8px 0 0}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(260px,1fr));gap:2px 24px;
margin:0;font-size:13px}dl div{display:flex;justify-content:space-between;gap:12px;
border-bottom:1px solid var(--line);padding:2px 0;min-width:0}dt{color:var(--soft)}
dd{margin:0;text-align:right;overflow-wrap:anywhere}
@media(max-width:520px){.cards{grid-template-columns:1fr}}
)css";

constexpr char kTimelineKeys[] =
    "<p class=\"keys\"><i style=\"background:var(--c0)\"></i>forward"
    "<i style=\"background:var(--c4)\"></i>backward"
    "<i style=\"background:var(--c5)\"></i>ops"
    "<i style=\"background:var(--c1)\"></i>collectives and copies"
    "<i style=\"background:var(--c3)\"></i>waits"
    "<i style=\"background:var(--c7)\"></i>other work</p>";

std::string Card(const std::string& title, const std::string& body,
                 bool all = false) {
  if (body.empty()) return "";
  return absl::StrCat("<section class=\"card", all ? " all" : "", "\"><h2>",
                      Escaped(title), "</h2><div class=\"scroll\">", body,
                      "</div></section>");
}

std::string Tile(const std::string& value, const std::string& name) {
  return absl::StrCat("<div class=\"tile\"><b>", Escaped(value), "</b><span>",
                      Escaped(name), "</span></div>");
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
  const size_t end = before.find(kPointsEnd, from);
  page.series_ =
      StepSeries::FromJson(before.substr(from, end - from), kept_steps);
  return page;
}

void RunPage::Begin(ShardingDrawing shardings,
                    std::vector<std::pair<std::string, std::string>> settings) {
  shardings_ = std::move(shardings);
  settings_ = std::move(settings);
}

void RunPage::Add(const StepMetrics& metrics) {
  series_.Add(metrics);
  last_ = metrics;
}

std::string RunPage::Tiles() const {
  if (!last_.has_value()) return "";
  std::string html = Tile(FormatCount(last_->step), "step");
  if (last_->loss.has_value()) {
    html += Tile(absl::StrFormat("%.4f", *last_->loss), "loss");
    html += Tile(absl::StrFormat("%.3f", last_->grad_norm.value_or(0)),
                 "gradient norm");
    html += Tile(FormatCount(static_cast<int64_t>(last_->tokens_per_s)),
                 "tokens per second");
    html += Tile(absl::StrFormat("%.1f ms", last_->step_ms), "step time");
  }
  html += Tile(FormatBytes(last_->memory.peak_total), "peak memory per rank");
  return absl::StrCat("<div class=\"tiles\">", html, "</div>");
}

std::string RunPage::Curves() const {
  Line loss = {"training", 0, {}};
  Line eval = {"evaluation", 1, {}};
  Line norm = {"gradient norm", 4, {}};
  Line rate = {"learning rate", 2, {}};
  Line speed = {"tokens per second", 5, {}};
  for (const SeriesPoint& p : series_.points()) {
    const auto step = static_cast<double>(p.step);
    if (p.loss.has_value()) loss.points.emplace_back(step, *p.loss);
    if (p.eval_loss.has_value()) eval.points.emplace_back(step, *p.eval_loss);
    if (p.grad_norm.has_value()) norm.points.emplace_back(step, *p.grad_norm);
    rate.points.emplace_back(step, p.lr);
    if (p.loss.has_value()) speed.points.emplace_back(step, p.tokens_per_s);
  }
  return absl::StrCat(
      Card("Loss", LineChart({loss, eval})),
      Card("Gradient norm, before clipping", LineChart({norm})),
      Card("Tokens per second", LineChart({speed}, {.from_zero = true})),
      Card("Learning rate", LineChart({rate}, {.from_zero = true})));
}

std::string RunPage::Moved() const {
  if (!last_.has_value()) return "";
  int64_t most = 1;
  for (const auto& [axis, by_kind] : last_->traffic) {
    for (const auto& [kind, count] : by_kind) {
      most = std::max(most, count.bytes);
    }
  }
  std::string rows;
  for (const auto& [axis, by_kind] : last_->traffic) {
    std::string shown = axis;
    for (const auto& [kind, count] : by_kind) {
      absl::StrAppend(
          &rows, "<tr><td>", Escaped(shown), "</td><td>", kind,
          "</td><td class=\"n\">", count.calls, "</td><td class=\"n\">",
          FormatBytes(count.bytes),
          "</td><td class=\"barcell\"><i "
          "style=\"width:",
          FormatCoordinate(100.0 * static_cast<double>(count.bytes) /
                           static_cast<double>(most)),
          "%\"></i></td></tr>");
      shown.clear();
    }
  }
  if (rows.empty()) {
    rows = "<tr><td colspan=\"5\">Nothing: the mesh has one rank.</td></tr>";
  }
  return absl::StrCat(
      "<table class=\"data\"><tr><th>axis</th><th>collective</th><th "
      "class=\"n\">calls</th><th class=\"n\">received</th><th></th></tr>",
      rows, "</table>");
}

std::string RunPage::ToHtml(State state) const {
  std::string settings;
  for (const auto& [name, value] : settings_) {
    absl::StrAppend(&settings, "<div><dt>", Escaped(name), "</dt><dd>",
                    Escaped(value), "</dd></div>");
  }
  const std::string traced =
      trace_.step == 0
          ? ""
          : absl::StrCat(" of step ", trace_.step, ", rank ", trace_.rank);
  std::string memory = MemoryChart(trace_);
  if (last_.has_value()) memory += MemoryLegend(last_->memory);
  // The times of a dry run are not of interest.
  const std::string timeline = trace_.dry ? "" : StepTimeline(trace_);
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
      kMark, "<meta name=\"viewport\" content=\"width=device-width\">",
      state == State::kRuns ? "<meta http-equiv=\"refresh\" content=\"20\">"
                            : "",
      "<title>", "train_lm on ", Escaped(shardings_.mesh), "</title><style>",
      kStyle, "</style></head>\n<body><main><h1>train_lm<span class=\"badge ",
      NameOf(state), "\">", NameOf(state), "</span></h1><p class=\"sub\">",
      Escaped(shardings_.mesh), "</p>", Tiles(), "<div class=\"cards\">",
      Curves(), Card(absl::StrCat("Memory by class", traced), memory),
      Card("Received per step, by axis and collective", Moved()),
      Card("Shardings of the parameters", examples::ToHtml(shardings_), true),
      Card(absl::StrCat("Timeline", traced),
           timeline.empty() ? "" : absl::StrCat(timeline, kTimelineKeys), true),
      Card(absl::StrCat("Time", traced), trace_.dry ? "" : TimeTable(trace_),
           true),
      Card("The run", absl::StrCat("<dl>", settings, "</dl>"), true),
      "</div></main>\n", kPoints, series_.ToJson(), kPointsEnd,
      "\n</body></html>\n");
}

absl::Status RunPage::Write(State state) const {
  const absl::Status status = checkpoint::WriteFile(
      path_, ToHtml(state), checkpoint::FileSystem::Real(), /*keeps=*/false);
  if (status.ok()) return status;
  return absl::Status(
      status.code(), absl::StrCat("--report: ", std::string(status.message())));
}

}  // namespace crosshatch::examples
