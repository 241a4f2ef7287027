// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_WIRE_H_
#define CROSSHATCH_COMM_MPI_WIRE_H_

/// \file
/// Values as bytes and back. Both ends are the same program on the same kind of
/// machine, so plain values go as they lie in memory.

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "crosshatch/base/check.h"

namespace crosshatch::internal {

/// Appends to a string.
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

/// Takes from a string, which it checks to be long enough.
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
  /// Valid as long as what is read.
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
    CH_CHECK(in_.size() - at_ >= size) << "a message is cut short";
    const char* data = in_.data() + at_;
    at_ += size;
    return data;
  }

  const std::string& in_;
  size_t at_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_WIRE_H_
