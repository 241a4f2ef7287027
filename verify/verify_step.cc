// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/verify/verify_step.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/verify/rank_classes.h"
#include "crosshatch/verify/recorder.h"

namespace crosshatch::verify {
namespace {

constexpr size_t kMostPrinted = 10;

std::map<std::pair<std::string, CollectiveKind>, int64_t> BytesOf(
    const RankLog& log) {
  std::map<std::pair<std::string, CollectiveKind>, int64_t> bytes;
  for (const LoggedCollective& c : log.collectives) {
    bytes[{log.groups[static_cast<size_t>(c.group)].name, c.kind}] += c.bytes;
  }
  return bytes;
}

void CheckBytes(const RankLog& log, const VerifyOptions& options,
                std::vector<Finding>& findings) {
  std::map<std::string, int64_t> received;
  std::map<std::string, int64_t> last;
  for (const LoggedGroup& group : log.groups) received[group.name];
  for (size_t i = 0; i < log.events.size(); ++i) {
    const LoggedEvent& e = log.events[i];
    if (e.kind != LoggedEvent::Kind::kCollective) continue;
    const LoggedCollective& c = log.collectives[static_cast<size_t>(e.id)];
    const std::string& name = log.groups[static_cast<size_t>(c.group)].name;
    received[name] += c.bytes;
    last[name] = static_cast<int64_t>(i);
  }
  for (const auto& [name, bytes] : received) {
    const std::optional<int64_t> expected =
        options.expected_bytes(log.rank, name);
    if (!expected.has_value() || *expected == bytes) continue;
    findings.push_back(
        {.kind = Finding::Kind::kBytes,
         .first = {log.rank, last.count(name) > 0 ? last[name] : -1},
         .message = absl::StrCat("rank ", log.rank, " receives ", bytes,
                                 " bytes over ", name, ", and the formula is ",
                                 *expected)});
  }
}

}  // namespace

VerifyReport CheckJob(JobLog job, const GradientRule& rule,
                      const VerifyOptions& options) {
  VerifyReport report = {.job = std::move(job)};
  std::vector<Finding>& findings = report.findings;
  const auto add = [&](std::vector<Finding> more) {
    for (Finding& finding : more) findings.push_back(std::move(finding));
  };
  add(CheckMatching(report.job));
  // Ranks that issue different collectives also block; the cause suffices.
  if (findings.empty()) add(CheckProgress(report.job));
  for (const RankLog& log : report.job.logs) {
    OrderResult order = CheckOrder(log);
    add(std::move(order.findings));
    report.pairs += order.pairs;
    for (const int64_t wait : order.superfluous_waits) {
      report.superfluous_waits.push_back({log.rank, wait});
    }
    add(CheckGradients(report.job, log, rule));
    if (options.expected_bytes) CheckBytes(log, options, findings);
    report.collectives += static_cast<int64_t>(log.collectives.size());
    report.accesses += static_cast<int64_t>(log.accesses.size());
    report.unknown_kernels += log.unknown_kernels;
  }
  return report;
}

absl::StatusOr<VerifyReport> VerifyStep(
    absl::FunctionRef<absl::Status(World&)> program,
    const std::vector<MeshAxis>& mesh, const VerifyOptions& options) {
  CH_ASSIGN_OR_RETURN(const MeshLayout layout, MeshLayout::Create(mesh));
  GradientRule rule;
  if (options.batch_axes.has_value()) {
    for (const std::string& name : *options.batch_axes) {
      CH_ASSIGN_OR_RETURN(const int axis, layout.AxisIndex(name));
      rule.batch_axes.push_back(axis);
    }
  } else {
    for (int a = 0; a < layout.ndim(); ++a) {
      if (layout.axis_name(a) != "tp") rule.batch_axes.push_back(a);
    }
  }
  for (const int a : rule.batch_axes) rule.divisor *= layout.size(a);
  if (options.divisor.has_value()) rule.divisor = *options.divisor;
  int ranks_run = 0;
  CH_ASSIGN_OR_RETURN(JobLog job,
                      RecordClasses(
                          layout, options.max_ranks, rule.batch_axes,
                          [&](int rank) {
                            return RecordRank(program, rank, layout.size(),
                                              options.backend);
                          },
                          ranks_run));
  VerifyReport report = CheckJob(std::move(job), rule, options);
  report.ranks_run = ranks_run;
  return report;
}

std::string VerifyReport::ToString() const {
  std::string text =
      absl::StrCat(ok() ? "verified: " : "not correct: ", job.mesh.size(),
                   " ranks of ", job.mesh.ToString(), ", ", job.logs.size(),
                   " classes, ", ranks_run, " ranks run\n");
  for (size_t i = 0; i < findings.size() && i < kMostPrinted; ++i) {
    const Finding& finding = findings[i];
    absl::StrAppend(&text, i + 1, ". ", Name(finding.kind), ": ",
                    finding.message, "\n");
    if (!finding.missing.empty()) {
      absl::StrAppend(&text, "   missing: ", finding.missing, "\n");
    }
  }
  if (findings.size() > kMostPrinted) {
    absl::StrAppend(&text, findings.size() - kMostPrinted, " more\n");
  }
  if (ok()) {
    absl::StrAppend(
        &text, "collectives match on all ranks: ", collectives,
        "\nno circular wait, with compute as a queue and inline"
        "\naccesses to memory: ",
        accesses, "; pairs on two streams, all ordered by events: ", pairs,
        "\nevery buffer is released, and none is used outside of its lease"
        "\nevery gradient that elementwise work carries into a parameter is "
        "reduced once over its ranks, and divided once\n");
  }
  if (unknown_kernels > 0) {
    absl::StrAppend(&text, "not checked: what ", unknown_kernels,
                    " kernels of the program's own ops access\n");
  }
  absl::StrAppend(&text, "superfluous waits: ", superfluous_waits.size());
  if (!superfluous_waits.empty()) {
    const EventOfRank& wait = superfluous_waits[0];
    absl::StrAppend(&text, ", the first on rank ", wait.rank, ": ",
                    job.LogOf(wait.rank).Describe(wait.event));
  }
  text += "\n";
  for (const RankLog& log : job.logs) {
    std::vector<std::string> parts;
    for (const auto& [key, bytes] : BytesOf(log)) {
      if (bytes == 0) continue;
      parts.push_back(absl::StrCat(key.first, " ", crosshatch::Name(key.second),
                                   " ", bytes));
    }
    absl::StrAppend(&text, "bytes received by rank ", log.rank, ": ",
                    parts.empty() ? "none" : absl::StrJoin(parts, ", "), "\n");
    if (&log - job.logs.data() == 7) break;
  }
  return text;
}

}  // namespace crosshatch::verify
