// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {
namespace {

/// A tensor with more elements shows only the edges of dims longer than twice
/// the edge.
constexpr int64_t kMostShown = 1000;
constexpr int64_t kEdge = 3;
constexpr size_t kColumns = 80;

std::string OfReal(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*g", digits, value);
  return text;
}

template <typename T>
const T& At(const void* data, int64_t offset) {
  return static_cast<const T*>(data)[offset];
}

std::string ElementText(const void* data, DType dtype, int64_t offset) {
  switch (dtype) {
    case DType::kFloat32:
      return OfReal(At<float>(data, offset), 6);
    case DType::kFloat64:
      return OfReal(At<double>(data, offset), 8);
    case DType::kBFloat16:
      return OfReal(static_cast<float>(At<BFloat16>(data, offset)), 4);
    case DType::kFloat16:
      return OfReal(static_cast<float>(At<Float16>(data, offset)), 4);
    case DType::kInt32:
      return std::to_string(At<int32_t>(data, offset));
    case DType::kInt64:
      return std::to_string(At<int64_t>(data, offset));
    case DType::kUInt16:
      return std::to_string(At<uint16_t>(data, offset));
    case DType::kBool:
      return At<bool>(data, offset) ? "true" : "false";
    case DType::kFloat8E4M3:
      return OfReal(static_cast<float>(At<Float8E4M3>(data, offset)), 3);
    case DType::kFloat8E5M2:
      return OfReal(static_cast<float>(At<Float8E5M2>(data, offset)), 3);
    case DType::kUInt8:
      return std::to_string(At<uint8_t>(data, offset));
  }
  return {};
}

class Printer {
 public:
  explicit Printer(const Tensor& tensor)
      : tensor_(tensor),
        view_(tensor),
        edge_(tensor.numel() > kMostShown ? kEdge : tensor.numel()) {
    ForShown(0, 0, [&](int64_t offset) {
      width_ = std::max(width_, Text(offset).size());
    });
  }

  std::string Print() {
    if (tensor_.ndim() == 0) return Text(0);
    Append(0, 0);
    return std::move(text_);
  }

 private:
  std::string Text(int64_t offset) const {
    return ElementText(view_.data(), tensor_.dtype(), offset);
  }

  /// Calls f(index) for the indices of a dim that are shown, f(-1) for the gap.
  template <typename F>
  void ForIndices(int dim, F f) const {
    const int64_t size = tensor_.size(dim);
    for (int64_t i = 0; i < size; ++i) {
      if (size > 2 * edge_ && i == edge_) {
        f(int64_t{-1});
        i = size - edge_;
      }
      f(i);
    }
  }

  template <typename F>
  void ForShown(int dim, int64_t offset, F f) const {
    if (dim == tensor_.ndim()) return f(offset);
    ForIndices(dim, [&](int64_t i) {
      if (i >= 0) {
        ForShown(dim + 1, offset + i * tensor_.strides()[Dim(dim)], f);
      }
    });
  }

  /// Appends the elements of one row, on one or more lines.
  void AppendRow(int64_t offset) {
    const int dim = tensor_.ndim() - 1;
    size_t column = static_cast<size_t>(dim) + 1;
    bool is_first = true;
    ForIndices(dim, [&](int64_t i) {
      std::string word =
          i < 0 ? "..." : Text(offset + i * tensor_.strides()[Dim(dim)]);
      if (i >= 0) word.insert(0, width_ - word.size(), ' ');
      if (!is_first) {
        text_ += ",";
        if (column + word.size() + 2 > kColumns) {
          text_ += "\n" + std::string(static_cast<size_t>(dim), ' ');
          column = static_cast<size_t>(dim);
        }
        text_ += " ";
      }
      text_ += word;
      column += word.size() + 2;
      is_first = false;
    });
  }

  void Append(int dim, int64_t offset) {
    text_ += "[";
    if (dim == tensor_.ndim() - 1) {
      AppendRow(offset);
    } else {
      // A line break after each row, and an empty line between blocks.
      const std::string next =
          "," +
          std::string(static_cast<size_t>(tensor_.ndim() - 1 - dim), '\n') +
          std::string(static_cast<size_t>(dim) + 1, ' ');
      bool is_first = true;
      ForIndices(dim, [&](int64_t i) {
        if (!is_first) text_ += next;
        is_first = false;
        if (i < 0) {
          text_ += "...";
        } else {
          Append(dim + 1, offset + i * tensor_.strides()[Dim(dim)]);
        }
      });
    }
    text_ += "]";
  }

  static size_t Dim(int dim) { return static_cast<size_t>(dim); }

  const Tensor& tensor_;
  const HostView view_;
  const int64_t edge_;
  size_t width_ = 0;
  std::string text_;
};

std::string ValuesOf(const Tensor& local) {
  if (local.numel() == 0) return "[]";
  if (!local.storage()->attached()) return "(no memory yet)";
  if (local.device().is_meta()) return "(no values in a dry run)";
  return Printer(local).Print();
}

}  // namespace

std::string ToString(const Tensor& tensor) {
  const std::string what = tensor.Describe();
  if (!tensor.defined()) return what;
  if (!tensor.is_distributed()) return what + "\n" + ValuesOf(tensor);
  const Tensor local = tensor.handler()->LocalPart();
  if (!local.defined()) return what;
  return what + "\nhere " + ToString(local.sizes()) + ":\n" + ValuesOf(local);
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  return out << ToString(tensor);
}

}  // namespace crosshatch
