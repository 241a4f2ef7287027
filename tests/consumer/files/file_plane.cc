// SPDX-License-Identifier: Apache-2.0
#include "files/file_plane.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/reduce_segments.h"
#include "crosshatch/comm/route.h"
#include "crosshatch/comm/segment_cursor.h"
#include "crosshatch/tensor/rank_context.h"

namespace consumer {

using crosshatch::Collective;
using crosshatch::NumElements;
using crosshatch::Segment;
using crosshatch::SegmentCursor;
using crosshatch::SegmentList;

FilePlane::FilePlane(std::string prefix, int member, int size,
                     const crosshatch::RankContext& context)
    : prefix_(std::move(prefix)),
      member_(member),
      size_(size),
      context_(context) {}

std::string FilePlane::PathOf(int member, int64_t number) const {
  return absl::StrCat(prefix_, ".", number, ".", member);
}

absl::Status FilePlane::Write(const Collective& collective) {
  const int64_t elem_bytes = SizeOf(collective.dtype);
  const std::string path = PathOf(member_, number_);
  {
    std::ofstream file(path + ".new", std::ios::binary);
    const auto write = [&](const void* data, int64_t bytes) {
      file.write(static_cast<const char*>(data), bytes);
    };
    const auto lists = static_cast<int64_t>(collective.send.size());
    write(&lists, sizeof lists);
    for (const SegmentList& list : collective.send) {
      const int64_t count = NumElements(list);
      write(&count, sizeof count);
    }
    for (const SegmentList& list : collective.send) {
      SegmentCursor at(list, elem_bytes);
      for (int64_t left = NumElements(list); left > 0;) {
        const int64_t run = at.contiguous();
        write(at.data(), run * elem_bytes);
        at.Advance(run);
        left -= run;
      }
    }
    file.close();
    if (!file) return absl::UnavailableError("cannot write " + path);
  }
  // The rename makes the whole file visible at once.
  if (std::rename((path + ".new").c_str(), path.c_str()) != 0) {
    return absl::UnavailableError("cannot rename " + path);
  }
  return absl::OkStatus();
}

absl::StatusOr<FilePlane::Sent> FilePlane::Read(int member,
                                                int64_t elem_bytes) const {
  const std::string path = PathOf(member, number_);
  std::ifstream file;
  while (true) {
    file.open(path, std::ios::binary);
    if (file.is_open()) break;
    // The job has failed, so this member's file will not come.
    if (is_aborted_) return absl::AbortedError("the job has failed");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  Sent sent;
  int64_t lists = 0;
  file.read(reinterpret_cast<char*>(&lists), sizeof lists);
  sent.counts.resize(static_cast<size_t>(lists));
  int64_t elems = 0;
  for (int64_t& count : sent.counts) {
    file.read(reinterpret_cast<char*>(&count), sizeof count);
    elems += count;
  }
  sent.data.resize(static_cast<size_t>(elems * elem_bytes));
  file.read(sent.data.data(), elems * elem_bytes);
  if (!file) return absl::DataLossError("cannot read " + path);
  return sent;
}

absl::Status FilePlane::Issue(const Collective& collective, int64_t,
                              const crosshatch::Payloads&,
                              crosshatch::Stream&) {
  ++number_;
  const int64_t elem_bytes = SizeOf(collective.dtype);
  CH_RETURN_IF_ERROR(Write(collective));
  std::vector<Sent> sent;
  for (int r = 0; r < size_; ++r) {
    CH_ASSIGN_OR_RETURN(sent.emplace_back(), Read(r, elem_bytes));
  }
  // All members have written their files, so they have read the previous ones.
  std::remove(PathOf(member_, number_ - 1).c_str());

  // The list that this member takes of each member, packed.
  std::vector<Segment> taken(sent.size());
  for (int r = 0; r < size_; ++r) {
    const crosshatch::Route route =
        crosshatch::RouteOf(collective.kind, collective.root, r, member_);
    // A root may have no recv list.
    if (!route.exists() || collective.recv.empty()) continue;
    taken[r] = PackedList(sent[r], route.send, elem_bytes);
    if (IsReduction(collective.kind)) continue;
    const SegmentList& to = collective.recv[route.recv];
    CopySegments(SegmentCursor({&taken[r], 1}, elem_bytes),
                 SegmentCursor(to, elem_bytes), NumElements(to), elem_bytes);
  }
  if (!IsReduction(collective.kind)) return absl::OkStatus();
  std::vector<SegmentCursor> sources;
  for (const Segment& list : taken) {
    sources.emplace_back(absl::MakeConstSpan(&list, 1), elem_bytes);
  }
  crosshatch::KernelContext here;
  ReduceSegments(collective, absl::MakeSpan(sources),
                 SegmentCursor(collective.recv[0], elem_bytes),
                 NumElements(collective.recv[0]), context_.kernels(), here);
  return absl::OkStatus();
}

Segment FilePlane::PackedList(const Sent& sent, int index, int64_t elem_bytes) {
  int64_t at = 0;
  for (int i = 0; i < index; ++i) at += sent.counts[i];
  return {.data = const_cast<char*>(sent.data.data()) + at * elem_bytes,
          .run_elems = sent.counts[index]};
}

absl::StatusOr<std::unique_ptr<crosshatch::DataPlane>> FilePlanes::Connect(
    const crosshatch::GroupKey& key, int member,
    crosshatch::RankContext& context, absl::Duration, Exchange) {
  // Returns a name that all members of the group, and no other group, share.
  std::string name = absl::StrCat(key.name, "-", key.stream_name);
  for (const int rank : key.world_ranks) absl::StrAppend(&name, "-", rank);
  return std::make_unique<FilePlane>(directory_ + "/" + name, member,
                                     key.size(), context);
}

}  // namespace consumer
