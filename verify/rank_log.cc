// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/verify/rank_log.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/byte_hash.h"

namespace crosshatch::verify {
namespace {

using Kind = LoggedEvent::Kind;

class Hash {
 public:
  void Add(uint64_t value) { value_ = HashBytes(value_, &value, sizeof value); }
  // Omits the ranks of a mesh: "mesh(ep=2, ranks=[1,3])".
  void AddText(std::string_view text) {
    constexpr std::string_view kRanks = ", ranks=[";
    const size_t begin = text.find(kRanks);
    const size_t end =
        begin == std::string_view::npos ? begin : text.find(']', begin);
    AddPart(text.substr(0, begin));
    if (end != std::string_view::npos) AddPart(text.substr(end + 1));
    AddSigned(-1);
  }
  void AddSigned(int64_t value) { Add(static_cast<uint64_t>(value)); }
  uint64_t value() const { return value_; }

 private:
  void AddPart(std::string_view text) {
    value_ = HashBytes(value_, text.data(), static_cast<int64_t>(text.size()));
  }

  uint64_t value_ = 1;
};

}  // namespace

int64_t RankLog::LeaseAt(int64_t address) const {
  const auto after = std::upper_bound(
      leases.begin(), leases.end(), address,
      [](int64_t at, const LoggedLease& lease) { return at < lease.begin; });
  if (after == leases.begin()) return -1;
  const auto lease = after - 1;
  if (address >= lease->begin + lease->bytes) return -1;
  return lease - leases.begin();
}

std::string RankLog::Describe(int64_t event) const {
  const LoggedEvent& e = events[static_cast<size_t>(event)];
  const std::string where =
      e.stream < 0
          ? " by the host"
          : absl::StrCat(" on ", streams[static_cast<size_t>(e.stream)]);
  const std::string number = absl::StrCat(" (event ", event, ")");
  const std::string text = e.text < 0 ? "" : texts[static_cast<size_t>(e.text)];
  switch (e.kind) {
    case Kind::kWork:
      return absl::StrCat(text, where, number);
    case Kind::kCollective: {
      const LoggedCollective& c = collectives[static_cast<size_t>(e.id)];
      return absl::StrCat(Name(c.kind), " '", c.label, "' over ",
                          groups[static_cast<size_t>(c.group)].name, where,
                          number);
    }
    case Kind::kRecord:
      return absl::StrCat("Record", where, number);
    case Kind::kWait:
      return absl::StrCat("Wait", where, number);
    case Kind::kHostWait:
      return absl::StrCat("a wait", where, number);
    case Kind::kExchange:
      return absl::StrCat(text, " over ",
                          groups[static_cast<size_t>(e.id)].name, number);
    case Kind::kLease:
      return absl::StrCat("the lease of ", DescribeLease(e.id), number);
    case Kind::kUse:
    case Kind::kRelease:
      return absl::StrCat("the release of ", DescribeLease(e.id), number);
  }
  return number;
}

std::string RankLog::DescribeLease(int64_t lease) const {
  const LoggedLease& l = leases[static_cast<size_t>(lease)];
  return absl::StrCat(
      l.bytes, " bytes of ", Name(l.memory_class), " memory (#", lease,
      ", leased on ", streams[static_cast<size_t>(l.stream)],
      l.text < 0 ? ""
                 : absl::StrCat(" by ", texts[static_cast<size_t>(l.text)]),
      ")");
}

uint64_t RankLog::Digest() const {
  Hash hash;
  for (const std::string& stream : streams) hash.AddText(stream);
  for (const LoggedGroup& group : groups) {
    hash.AddText(group.name);
    hash.AddText(group.stream);
    hash.Add(group.world_ranks.size());
  }
  // Texts are numbered in the order of their first use.
  for (const std::string& text : texts) hash.AddText(text);
  for (const LoggedLease& lease : leases) {
    hash.AddSigned(lease.bytes);
    hash.Add(static_cast<uint64_t>(lease.memory_class));
    hash.Add(lease.released);
  }
  for (const LoggedCollective& c : collectives) {
    hash.AddSigned(c.group);
    hash.Add(static_cast<uint64_t>(c.kind));
    hash.Add(static_cast<uint64_t>(c.dtype));
    hash.Add(static_cast<uint64_t>(c.op));
    hash.Add(std::bit_cast<uint64_t>(c.scale));
    hash.AddSigned(c.root);
    hash.AddText(c.label);
    for (const int64_t count : c.sent) hash.AddSigned(count);
    for (const int64_t count : c.received) hash.AddSigned(count);
  }
  for (const LoggedEvent& e : events) {
    hash.Add(static_cast<uint64_t>(e.kind));
    hash.Add(static_cast<uint64_t>(e.accumulates) * 2 + e.zeros);
    hash.AddSigned(e.stream);
    hash.AddSigned(e.id);
    hash.AddSigned(e.point);
    hash.AddSigned(e.text);
    hash.Add(e.num_accesses);
  }
  for (const LoggedAccess& access : accesses) {
    const int64_t lease = LeaseAt(access.begin);
    const int64_t base =
        lease < 0 ? 0 : leases[static_cast<size_t>(lease)].begin;
    hash.AddSigned(lease);
    hash.AddSigned(access.begin - base);
    hash.AddSigned(access.end - base);
    hash.Add(static_cast<uint64_t>(access.writes) * 2 + access.carries);
    hash.Add(std::bit_cast<uint64_t>(access.factor));
  }
  return hash.value();
}

}  // namespace crosshatch::verify
