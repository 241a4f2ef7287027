// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/note.h"

#include <cstring>
#include <memory>
#include <utility>

#include "crosshatch/base/byte_hash.h"
#include "crosshatch/comm/coordination/failure_message.h"
#include "crosshatch/comm/mpi/wire.h"

namespace crosshatch::internal {
namespace {

constexpr int64_t kDataAlignment = 16;

using Counts = absl::InlinedVector<int64_t, 4>;

/// Counts are mostly equal, and there is one for each member: (value, times).
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
        << "a message has more counts than it says";
    for (; times > 0; --times) counts[i++] = value;
  }
}

}  // namespace

uint64_t GroupId(const GroupKey& key) {
  uint64_t hash = 1;
  const auto add = [&](const void* data, size_t size) {
    hash = HashBytes(hash, data, static_cast<int64_t>(size));
  };
  // The lengths keep "a" and "bc" from being "ab" and "c".
  for (const std::string* text : {&key.name, &key.stream_name}) {
    const uint64_t size = text->size();
    add(&size, sizeof(size));
    add(text->data(), text->size());
  }
  add(key.world_ranks.data(), key.world_ranks.size() * sizeof(int));
  return hash;
}

void StartNote(const NoteHeader& header, std::string& note) {
  note.assign(reinterpret_cast<const char*>(&header), sizeof(header));
}

NoteHeader HeaderOf(const std::string& note) {
  return WireReader(note).Value<NoteHeader>();
}

void SetHeader(const NoteHeader& header, std::string& note) {
  std::memcpy(note.data(), &header, sizeof(header));
}

void AppendFingerprint(const Fingerprint& f, std::string& note) {
  WireWriter writer(note);
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

void ReadFingerprint(const std::string& note, Fingerprint& f) {
  WireReader reader(note, sizeof(NoteHeader));
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

char* AppendData(int64_t bytes, std::string& note) {
  NoteHeader header = HeaderOf(note);
  const auto end = static_cast<int64_t>(note.size());
  header.data_at = (end + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  header.data_bytes = bytes;
  note.resize(static_cast<size_t>(header.data_at + bytes));
  SetHeader(header, note);
  return note.data() + header.data_at;
}

void AppendFailure(const FailureNotice& notice, std::string& note) {
  note += coordination::ToMessage(notice).SerializeAsString();
}

FailureNotice ReadFailure(const std::string& note) {
  coordination::Failure message;
  const bool is_whole =
      message.ParseFromString(note.substr(sizeof(NoteHeader)));
  CH_CHECK(is_whole) << "a message is cut short";
  return coordination::ToNotice(message);
}

}  // namespace crosshatch::internal
