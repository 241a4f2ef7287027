// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/verify/verify_step.h"
#include "nlohmann/json.hpp"

namespace crosshatch::verify {
namespace {

using Json = nlohmann::ordered_json;
using Kind = LoggedEvent::Kind;

constexpr int kHostRow = 1000;

int RowOf(const LoggedEvent& event) {
  return event.stream < 0 ? kHostRow : event.stream;
}

Json Row(int process, int row, const char* what, const std::string& name) {
  return {{"ph", "M"},
          {"pid", process},
          {"tid", row},
          {"name", what},
          {"args", {{"name", name}}}};
}

void AddRank(const RankLog& log, const std::set<int64_t>& marked, Json& out) {
  out.push_back(
      Row(log.rank, 0, "process_name", absl::StrCat("rank ", log.rank)));
  for (size_t s = 0; s < log.streams.size(); ++s) {
    out.push_back(
        Row(log.rank, static_cast<int>(s), "thread_name", log.streams[s]));
  }
  out.push_back(Row(log.rank, kHostRow, "thread_name", "host"));
  for (size_t i = 0; i < log.events.size(); ++i) {
    const LoggedEvent& e = log.events[i];
    const auto index = static_cast<int64_t>(i);
    const bool is_marked = marked.count(index) > 0;
    if (!is_marked && (e.kind == Kind::kLease || e.kind == Kind::kUse ||
                       e.kind == Kind::kRelease)) {
      continue;
    }
    Json event = {{"ph", "X"},       {"pid", log.rank},
                  {"tid", RowOf(e)}, {"ts", index},
                  {"dur", 1},        {"name", log.Describe(index)}};
    if (is_marked) event["cname"] = "terrible";
    out.push_back(std::move(event));
  }
}

}  // namespace

std::string VerifyReport::ToTrace() const {
  std::map<int, std::set<int64_t>> marked;
  for (const Finding& finding : findings) {
    for (const EventOfRank& at : {finding.first, finding.second}) {
      if (at.rank < 0) continue;
      marked[at.rank];
      if (at.event >= 0) marked[at.rank].insert(at.event);
    }
  }
  if (findings.empty()) {
    for (const RankLog& log : job.logs) marked[log.rank];
  }
  Json events = Json::array();
  for (const auto& [rank, of_rank] : marked) {
    // Another rank of the class has the same events.
    RankLog log = job.LogOf(rank);
    log.rank = rank;
    AddRank(log, of_rank, events);
  }
  int arrow = 0;
  for (const Finding& finding : findings) {
    if (finding.first.event < 0 || finding.second.event < 0) continue;
    ++arrow;
    for (const bool is_start : {true, false}) {
      const EventOfRank& at = is_start ? finding.first : finding.second;
      const LoggedEvent& e =
          job.LogOf(at.rank).events[static_cast<size_t>(at.event)];
      Json end = {{"ph", is_start ? "s" : "f"},
                  {"pid", at.rank},
                  {"tid", RowOf(e)},
                  {"ts", at.event},
                  {"id", arrow},
                  {"cat", "finding"},
                  {"name", Name(finding.kind)}};
      if (!is_start) end["bp"] = "e";
      end["args"] = {{"missing", finding.missing}};
      events.push_back(std::move(end));
    }
  }
  return Json{{"traceEvents", events}}.dump();
}

}  // namespace crosshatch::verify
