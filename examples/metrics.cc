// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::examples {
namespace {

absl::Status Refused(const std::string& path) {
  const int error = errno;
  return absl::InvalidArgumentError(absl::StrCat(
      "--metrics: cannot write ", path, ": ", std::strerror(error)));
}

/// Bytes and number of the complete lines at the beginning of `path` of steps
/// up to `last`.
struct KeptLines {
  int64_t bytes = 0;
  int64_t lines = 0;
};

/// Returns whether a file may contain metrics, possibly cut off by a failed
/// write.
bool MayBeMetrics(const std::string& path) {
  const std::string begin = "{\"step\":";
  std::string found(begin.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(found.data(), static_cast<std::streamsize>(found.size()));
  found.resize(static_cast<size_t>(file.gcount()));
  return begin.compare(0, found.size(), found) == 0;
}

KeptLines LinesUpTo(const std::string& path, int64_t last) {
  KeptLines kept;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto json = nlohmann::json::parse(line, nullptr,
                                            /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") ||
        !json["step"].is_number_integer() ||
        json["step"].get<int64_t>() > last) {
      break;
    }
    kept.bytes += static_cast<int64_t>(line.size()) + 1;
    ++kept.lines;
  }
  return kept;
}

}  // namespace

Traffic TotalTraffic(const World& world) {
  Traffic traffic;
  for (const auto& group : world.groups()) {
    const CommunicatorStats& stats = group->stats();
    for (size_t kind = 0; kind < std::size(stats.by_kind); ++kind) {
      const CommunicatorStats::Count& count = stats.by_kind[kind];
      if (count.calls == 0) continue;
      CommunicatorStats::Count& total =
          traffic[group->name()][Name(static_cast<CollectiveKind>(kind))];
      total.calls += count.calls;
      total.bytes += count.bytes;
    }
  }
  return traffic;
}

Traffic Difference(const Traffic& later, const Traffic& earlier) {
  Traffic difference;
  for (const auto& [axis, by_kind] : later) {
    for (const auto& [kind, count] : by_kind) {
      CommunicatorStats::Count since = count;
      if (const auto a = earlier.find(axis); a != earlier.end()) {
        if (const auto k = a->second.find(kind); k != a->second.end()) {
          since.calls -= k->second.calls;
          since.bytes -= k->second.bytes;
        }
      }
      if (since.calls != 0) difference[axis][kind] = since;
    }
  }
  return difference;
}

std::string ToJson(const StepMetrics& metrics, int rank) {
  using Json = nlohmann::ordered_json;
  const auto optional = [](const std::optional<double>& value) {
    return value.has_value() ? Json(*value) : Json(nullptr);
  };
  Json peaks = Json::object();
  for (int i = 0; i < kNumMemoryClasses; ++i) {
    peaks[Name(static_cast<MemoryClass>(i))] =
        metrics.memory.peak[static_cast<size_t>(i)];
  }
  peaks["total"] = metrics.memory.peak_total;
  Json moved = Json::object();
  for (const auto& [axis, by_kind] : metrics.traffic) {
    for (const auto& [kind, count] : by_kind) {
      moved[axis][kind] = {{"calls", count.calls}, {"bytes", count.bytes}};
    }
  }
  Json line;
  line["step"] = metrics.step;
  line["loss"] = optional(metrics.loss);
  line["grad_norm"] = optional(metrics.grad_norm);
  line["lr"] = metrics.lr;
  if (metrics.eval_loss.has_value()) line["eval_loss"] = *metrics.eval_loss;
  line["tokens_per_s"] = metrics.tokens_per_s;
  line["step_ms"] = metrics.step_ms;
  line["rank"] = rank;
  line["peak_bytes"] = std::move(peaks);
  line["copied_bytes"] = metrics.copied_bytes;
  line["moved"] = std::move(moved);
  return line.dump();
}

absl::Status MetricsFile::Check(const std::string& path) {
  struct stat info;
  const bool existed = stat(path.c_str(), &info) == 0;
  if (existed && S_ISFIFO(info.st_mode)) {
    return access(path.c_str(), W_OK) == 0 ? absl::OkStatus() : Refused(path);
  }
  if (existed && S_ISREG(info.st_mode) && !MayBeMetrics(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics=", path,
                     ": exists and does not hold metrics, so it is not "
                     "overwritten; name another file"));
  }
  CH_RETURN_IF_ERROR(Open(path).status());
  // The file may have been created behind a link.
  std::error_code error;
  const auto made = std::filesystem::canonical(path, error);
  if (!existed && !error) unlink(made.c_str());
  return absl::OkStatus();
}

absl::StatusOr<MetricsFile> MetricsFile::Open(const std::string& path,
                                              int64_t kept_steps) {
  MetricsFile metrics(path);
  if (path.empty()) return metrics;
  struct stat info;
  if (kept_steps > 0 && stat(path.c_str(), &info) == 0 &&
      S_ISREG(info.st_mode)) {
    const KeptLines kept = LinesUpTo(path, kept_steps);
    metrics.bytes_ = kept.bytes;
    metrics.lines_ = kept.lines;
  }
  // O_NONBLOCK refuses a pipe without a reader instead of waiting for one.
  metrics.fd_ =
      open(path.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
  if (metrics.fd_ < 0) return Refused(path);
  const int flags = fcntl(metrics.fd_, F_GETFL);
  if (flags < 0 || fcntl(metrics.fd_, F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return Refused(path);
  }
  return metrics;
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status MetricsFile::Append(const std::string& line) {
  const auto failed = [this] {
    const int error = errno;
    return absl::InternalError(absl::StrCat(
        "--metrics: cannot write ", path_, ": ", std::strerror(error),
        "; it contains the first ", lines_, " steps"));
  };
  // Pipes and the like have no earlier content and no end to seek to.
  struct stat info;
  if (fstat(fd_, &info) != 0) return failed();
  const bool is_file = S_ISREG(info.st_mode);
  if (is_file && !is_begun_ &&
      (ftruncate(fd_, bytes_) != 0 || lseek(fd_, bytes_, SEEK_SET) < 0)) {
    return failed();
  }
  is_begun_ = true;
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t result =
        write(fd_, line.data() + written, line.size() - written);
    if (result >= 0) {
      written += static_cast<size_t>(result);
    } else if (errno != EINTR) {
      const absl::Status status = failed();
      if (is_file && written > 0 && ftruncate(fd_, bytes_) != 0) {
        return absl::InternalError(absl::StrCat(std::string(status.message()),
                                                " and part of the next"));
      }
      return status;
    }
  }
  ++lines_;
  bytes_ += static_cast<int64_t>(line.size());
  return absl::OkStatus();
}

absl::Status MetricsFile::Write(const StepMetrics& metrics, int rank) {
  if (fd_ < 0 || !status_.ok()) return status_;
  status_ = Append(ToJson(metrics, rank) + "\n");
  return status_;
}

std::filesystem::path ResolvedPath(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path resolved = fs::absolute(path, error);
  // The system's limit on the number of links; it refuses cycles.
  for (int links = 0; links < 40 && !error; ++links) {
    resolved = fs::weakly_canonical(resolved, error);
    std::error_code absent;  // No link either.
    if (error || !fs::is_symlink(fs::symlink_status(resolved, absent))) break;
    resolved = resolved.parent_path() / fs::read_symlink(resolved, error);
  }
  if (error) resolved = fs::path(path).lexically_normal();
  return resolved.has_filename() ? resolved : resolved.parent_path();
}

}  // namespace crosshatch::examples
