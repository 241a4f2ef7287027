// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/control_message.h"

#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/string_view.h"
#include "crosshatch/base/byte_hash.h"
#include "crosshatch/base/check.h"
#include "crosshatch/comm/coordination/failure_message.h"

namespace crosshatch::internal {
namespace {

constexpr int64_t kDataAlignment = 16;

// Serialization. Both ends run the same program on the same kind of machine, so
// values are copied as bytes.

class WireWriter {
 public:
  explicit WireWriter(std::string& out) : out_(out) {}

  template <typename T>
  void Value(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Text(const char* text, size_t size) {
    Value(static_cast<uint64_t>(size));
    out_.append(text, size);
  }
  void Text(const std::string& text) { Text(text.data(), text.size()); }

 private:
  std::string& out_;
};

/// Reads from a string, with bounds checks.
class WireReader {
 public:
  explicit WireReader(const std::string& in, size_t at = 0)
      : in_(in), at_(at) {}

  template <typename T>
  T Value() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, Take(sizeof(value)), sizeof(value));
    return value;
  }
  /// Valid as long as the string.
  absl::string_view View() {
    const auto size = static_cast<size_t>(Value<uint64_t>());
    return absl::string_view(Take(size), size);
  }
  void Text(std::string& text) {
    const absl::string_view view = View();
    text.assign(view.data(), view.size());
  }
  std::string Text() {
    std::string text;
    Text(text);
    return text;
  }

 private:
  const char* Take(size_t size) {
    CH_CHECK(at_ <= in_.size() && in_.size() - at_ >= size)
        << "a message is cut short";
    const char* data = in_.data() + at_;
    at_ += size;
    return data;
  }

  const std::string& in_;
  size_t at_;
};

using Counts = absl::InlinedVector<int64_t, 4>;

/// Counts per member are mostly equal, so they are encoded as (value, times).
void WriteCounts(const Counts& counts, WireWriter& writer) {
  writer.Value(static_cast<int32_t>(counts.size()));
  for (size_t i = 0; i < counts.size();) {
    size_t end = i + 1;
    while (end < counts.size() && counts[end] == counts[i]) ++end;
    writer.Value(counts[i]);
    writer.Value(static_cast<int32_t>(end - i));
    i = end;
  }
}

void ReadCounts(WireReader& reader, Counts& counts) {
  counts.resize(static_cast<size_t>(reader.Value<int32_t>()));
  for (size_t i = 0; i < counts.size();) {
    const auto value = reader.Value<int64_t>();
    auto times = reader.Value<int32_t>();
    CH_CHECK(times > 0 && counts.size() - i >= static_cast<size_t>(times))
        << "a message contains more counts than its header states";
    for (; times > 0; --times) counts[i++] = value;
  }
}

}  // namespace

uint64_t GroupId(const GroupKey& key) {
  uint64_t hash = 1;
  const auto add = [&](const void* data, size_t size) {
    hash = HashBytes(hash, data, static_cast<int64_t>(size));
  };
  // The lengths distinguish "a", "bc" from "ab", "c".
  for (const std::string* text : {&key.name, &key.stream_name}) {
    const uint64_t size = text->size();
    add(&size, sizeof(size));
    add(text->data(), text->size());
  }
  add(key.world_ranks.data(), key.world_ranks.size() * sizeof(int));
  return hash;
}

void StartMessage(const MessageHeader& header, std::string& message) {
  message.assign(reinterpret_cast<const char*>(&header), sizeof(header));
}

MessageHeader HeaderOf(const std::string& message) {
  return WireReader(message).Value<MessageHeader>();
}

void SetHeader(const MessageHeader& header, std::string& message) {
  std::memcpy(message.data(), &header, sizeof(header));
}

void AppendFingerprint(const Fingerprint& f, std::string& message) {
  WireWriter writer(message);
  writer.Value(f.sequence);
  writer.Value(f.kind);
  writer.Value(f.dtype);
  writer.Value(f.reduce_op);
  writer.Value(f.scale);
  writer.Value(static_cast<int32_t>(f.root));
  writer.Text(f.label);
  writer.Value(f.about != nullptr);
  if (f.about != nullptr) writer.Text(*f.about);
  WriteCounts(f.send, writer);
  WriteCounts(f.recv, writer);
}

void ReadFingerprint(const std::string& message, Fingerprint& f) {
  WireReader reader(message, sizeof(MessageHeader));
  f.sequence = reader.Value<int64_t>();
  f.kind = reader.Value<CollectiveKind>();
  f.dtype = reader.Value<DType>();
  f.reduce_op = reader.Value<ReduceOp>();
  f.scale = reader.Value<double>();
  f.root = reader.Value<int32_t>();
  reader.Text(f.label);
  if (!reader.Value<bool>()) {
    f.about = nullptr;
  } else if (const absl::string_view about = reader.View();
             f.about == nullptr || *f.about != about) {
    f.about = std::make_shared<const std::string>(about);
  }
  ReadCounts(reader, f.send);
  ReadCounts(reader, f.recv);
}

std::string DescribeMessage(const std::string& message) {
  Fingerprint fingerprint;
  ReadFingerprint(message, fingerprint);
  return Describe(fingerprint);
}

char* AppendPayload(int64_t bytes, std::string& message) {
  MessageHeader header = HeaderOf(message);
  const auto end = static_cast<int64_t>(message.size());
  header.data_at = (end + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  header.data_bytes = bytes;
  message.resize(static_cast<size_t>(header.data_at + bytes));
  SetHeader(header, message);
  return message.data() + header.data_at;
}

void AppendFailure(const FailureNotice& notice, std::string& message) {
  message += coordination::ToMessage(notice).SerializeAsString();
}

FailureNotice ReadFailure(const std::string& message) {
  coordination::Failure failure;
  const bool is_whole =
      failure.ParseFromString(message.substr(sizeof(MessageHeader)));
  CH_CHECK(is_whole) << "a message is cut short";
  return coordination::ToNotice(failure);
}

Arrivals::Arrivals(int members) : members_(members) {
  for (std::vector<Slot>& slots : slots_) {
    slots.resize(static_cast<size_t>(members));
  }
}

void Arrivals::File(int member, const MessageHeader& header,
                    std::string& message) {
  const size_t parity = Parity(header.round);
  Slot& slot = slots_[parity][static_cast<size_t>(member)];
  // The initial -1 is odd, so the first odd round follows it like any other.
  CH_CHECK(slot.header.round == header.round - 2 ||
           (slot.header.round == -1 && header.round == 0))
      << "member " << member << " came to round " << header.round << " after "
      << slot.header.round;
  slot.header = header;
  std::swap(slot.message, message);
  ++num_came_[parity];
}

}  // namespace crosshatch::internal
