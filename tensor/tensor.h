// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_TENSOR_H_
#define CROSSHATCH_TENSOR_TENSOR_H_

/// \file
/// Tensor: a handle to a strided view of a Storage or, if it has a
/// TensorHandler, to a distributed tensor. Ops take both. op.h describes how an
/// op is dispatched, autograd.h gradients, creation.h factories.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/storage.h"

namespace crosshatch {

class Op;
class Tensor;
struct AutogradMeta;

class TensorList;
class TensorSpan;

/// Makes a tensor distributed. dtensor/ implements it; this package only
/// dispatches to it.
class TensorHandler {
 public:
  virtual ~TensorHandler() = default;

  /// Runs `op` on `inputs`, at least one of which has a handler, below
  /// autograd. Called on the handler of the first input that has one.
  virtual TensorList Dispatch(const Op& op, TensorSpan inputs) const = 0;

  /// E.g. "f32[8, 8]|S(0)R on mesh(fsdp=2, tp=2)".
  virtual std::string Describe() const = 0;

  /// Returns `gradient` in the form that accumulates as the .grad of `leaf`,
  /// which has this handler: in leaf's layout, with partial sums reduced.
  virtual Tensor ConformGradient(const Tensor& leaf, Tensor gradient) const;

  /// Returns the memory of the local shard, which counts writes to it.
  virtual const Storage& memory() const = 0;

  /// Returns whether the tensor is an alias of an operand in another layout: a
  /// write to one of them is visible in the other.
  virtual bool is_alias() const { return false; }

  /// Returns whether a sum of this tensor and `other` is the same whether it is
  /// written to this one's memory, to other's or to new memory. The result is
  /// the same on all ranks.
  virtual bool AddsInPlace(const Tensor& other) const = 0;

  /// Returns the owner of the memory (Storage::OwnerAt); may be empty.
  virtual std::string MemoryOwner() const { return {}; }

  /// Returns the local shard, to be read only; undefined if there is none.
  virtual Tensor LocalPart() const;

  /// Returns whether this handler alone refers to its memory and no two
  /// elements share an address, so that its holder may write to it.
  virtual bool OwnsMemory() const { return false; }
};

/// The state of a Tensor. Only ops and handlers create it.
struct TensorImpl {
  TensorImpl();
  ~TensorImpl();

  std::shared_ptr<Storage> storage;  ///< Null if there is a handler.
  int64_t offset = 0;                ///< First element, in elements.
  Shape sizes;                       ///< Global sizes if distributed.
  Shape strides;                     ///< In elements; global as the sizes.
  DType dtype = DType::kFloat32;
  std::shared_ptr<const TensorHandler> handler;
  std::unique_ptr<AutogradMeta> autograd;  ///< Null: never needed a gradient.
};

/// Elements [start, end) of a dim, clamped as in Python: Range{} is all
/// elements, Range{1} all but the first.
struct Range {
  int64_t start = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
};

/// An index of operator[]: one element, which removes the dim, or a Range.
class DimIndex {
 public:
  DimIndex(int64_t element) : element_(element), takes_one_(true) {}
  DimIndex(Range range) : range_(range) {}

  bool takes_one() const { return takes_one_; }
  int64_t element() const { return element_; }
  const Range& range() const { return range_; }

 private:
  int64_t element_ = 0;
  Range range_;
  bool takes_one_ = false;
};

/// A reference-counted handle; copies refer to the same tensor.
class Tensor {
 public:
  /// Creates an undefined tensor. Only defined(), copying and Describe() are
  /// allowed on it; everything else fails a check.
  Tensor() = default;
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

  bool defined() const { return impl_ != nullptr; }
  TensorImpl& impl() const { return Defined("impl"); }
  bool SameAs(const Tensor& other) const { return impl_ == other.impl_; }
  /// Returns whether this is the only handle to a tensor that alone refers to
  /// its memory, so that a write to it is not visible elsewhere. Returns false
  /// if that is unknown.
  bool IsUnique() const;
  /// Returns whether this is the only handle to a tensor, whose memory may be
  /// shared. Unlike IsUnique the result is the same on all ranks.
  bool IsOnlyHandle() const { return impl_.use_count() == 1; }

  /// Returns the sizes, global if the tensor is distributed.
  const Shape& sizes() const { return Defined("sizes").sizes; }
  /// Returns the size of a dim; negative dims count from the end.
  int64_t size(int64_t dim) const {
    const Shape& sizes = Defined("size").sizes;
    const auto ndim = static_cast<int64_t>(sizes.size());
    if (dim < -ndim || dim >= ndim) [[unlikely]] {
      FailNoDim(dim);
    }
    return sizes[static_cast<size_t>(dim < 0 ? dim + ndim : dim)];
  }
  int ndim() const { return static_cast<int>(Defined("ndim").sizes.size()); }
  int64_t numel() const { return NumElements(Defined("numel").sizes); }
  /// Returns the strides in elements. A distributed tensor has those that it
  /// would have on one device, whatever the memory layout of its shards. They
  /// decide whether an op's result aliases its operand, which is therefore the
  /// same on every rank and for plain tensors.
  const Shape& strides() const { return Defined("strides").strides; }
  int64_t storage_offset() const { return Defined("storage_offset").offset; }
  DType dtype() const { return Defined("dtype").dtype; }
  Device device() const;
  bool is_contiguous() const {
    const TensorImpl& impl = Defined("is_contiguous");
    return IsContiguous(impl.sizes, impl.strides);
  }

  /// Returns whether the tensor is distributed over ranks.
  bool is_distributed() const {
    return Defined("is_distributed").handler != nullptr;
  }
  const std::shared_ptr<const TensorHandler>& handler() const {
    return Defined("handler").handler;
  }

  /// Local tensors only.
  const std::shared_ptr<Storage>& storage() const {
    return Defined("storage").storage;
  }
  /// Returns the address of the first element; null on Device::Meta() or
  /// without elements. Work on it must go through a stream. Fails a check if
  /// the elements are not on the rank's device because a thread without a rank
  /// made them; ToThisDevice (creation.h) copies such tensors.
  void* raw_data() const;
  template <typename T>
  T* data() const {
    CH_CHECK(Defined("data").dtype == DTypeOf<T>)
        << "data<" << Name(DTypeOf<T>) << "> of a tensor of " << dtype();
    return static_cast<T*>(raw_data());
  }

  /// Returns the elements in row-major order, converted to T. Waits for the
  /// current stream. Local tensors with memory only.
  template <typename T>
  std::vector<T> ToVector() const;

  /// Returns a view of some elements, by Select and Slice (ops/view.h): x[0] is
  /// the first element of dim 0, x[Range{1, 3}] the next two, x[{Range{}, -1}]
  /// the last one of dim 1. Checks that the indices are in range.
  Tensor operator[](const DimIndex& index) const;
  Tensor operator[](std::initializer_list<DimIndex> indices) const;

  /// \name Autograd (autograd.h)
  /// @{
  bool requires_grad() const;
  /// Sets whether Backward computes a gradient for this leaf.
  Tensor& set_requires_grad(bool requires_grad);
  bool is_leaf() const;
  /// Returns the accumulated gradient of a leaf; undefined before the first
  /// Backward.
  const Tensor& grad() const;
  void set_grad(Tensor grad) const;
  /// Returns a tensor of the same elements outside the graph.
  Tensor Detach() const;
  /// @}

  /// Returns e.g. "f32[2, 3] on cpu", for messages.
  std::string Describe() const;

 private:
  /// Returns the state. Fails a check that names `method` if undefined.
  TensorImpl& Defined(const char* method) const {
    if (impl_ == nullptr) [[unlikely]] {
      FailUndefined(method);
    }
    return *impl_;
  }
  [[noreturn]] static void FailUndefined(const char* method);
  [[noreturn]] void FailNoDim(int64_t dim) const;

  std::shared_ptr<TensorImpl> impl_;
};

namespace internal {
/// Fails with the index, the size and the modules that run.
[[noreturn]] void FailTensorIndex(size_t index, size_t size);
}  // namespace internal

/// A view of tensors that another object owns, such as the inputs of a forward.
/// \checks in operator[], front and back that the tensor exists; the message
///     names the modules that run
class TensorSpan : public absl::Span<const Tensor> {
 public:
  using absl::Span<const Tensor>::Span;
  TensorSpan() = default;
  TensorSpan(absl::Span<const Tensor> tensors)
      : absl::Span<const Tensor>(tensors) {}

  const Tensor& operator[](size_t i) const {
    if (i >= size()) [[unlikely]] {
      internal::FailTensorIndex(i, size());
    }
    return data()[i];
  }
  const Tensor& front() const { return (*this)[0]; }
  const Tensor& back() const { return (*this)[size() - 1]; }
};

/// A list that owns its tensors, such as the outputs of a forward.
/// \checks as TensorSpan
class TensorList : public absl::InlinedVector<Tensor, 2> {
 public:
  using absl::InlinedVector<Tensor, 2>::InlinedVector;

  Tensor& operator[](size_t i) {
    return const_cast<Tensor&>(TensorSpan(data(), size())[i]);
  }
  const Tensor& operator[](size_t i) const {
    return TensorSpan(data(), size())[i];
  }
  Tensor& front() { return (*this)[0]; }
  const Tensor& front() const { return (*this)[0]; }
  Tensor& back() { return (*this)[size() - 1]; }
  const Tensor& back() const { return (*this)[size() - 1]; }
};

extern template std::vector<float> Tensor::ToVector<float>() const;
extern template std::vector<double> Tensor::ToVector<double>() const;
extern template std::vector<int32_t> Tensor::ToVector<int32_t>() const;
extern template std::vector<int64_t> Tensor::ToVector<int64_t>() const;

/// Returns the type of `tensor` and its values, abbreviated as NumPy does:
///
///     f32[2, 3] on cpu
///     [[0, 1, 2],
///      [3, 4, 5]]
///
/// For a distributed tensor: the global sizes, the layout and the local shard,
/// without communication. Waits for the current stream. If there are no values
/// (a dry run, no memory yet), the text says so.
std::string ToString(const Tensor& tensor);
/// Prints ToString(tensor), in tests too.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

/// Returns the owner of tensor's memory if it has a name, e.g.
/// "blocks.0.up.weight (gathered)".
std::string MemoryOwnerOf(const Tensor& tensor);

/// Counts a write of `what`, e.g. an op, to the local tensor `dst`
/// (Storage::version). Fails a check if other threads may read the memory,
/// because another thread made it or has read it.
void BeginWrite(const char* what, const Tensor& dst);

namespace internal {

/// Does the check of BeginWrite.
void CheckMayBeWritten(const char* what, const Tensor& dst);

/// Returns raw_data for work of the host, also if a thread without a rank made
/// the tensor on another device than the rank's.
const void* AddressForHost(const Tensor& tensor);

}  // namespace internal

/// Returns a local view of `storage`, outside the graph. Offset and strides are
/// in elements.
Tensor MakeView(std::shared_ptr<Storage> storage, int64_t offset, Shape sizes,
                Shape strides, DType dtype);

/// Returns a distributed tensor of global `sizes`.
Tensor MakeHandled(std::shared_ptr<const TensorHandler> handler, Shape sizes,
                   DType dtype);
/// Returns a distributed tensor with the `strides` that it would have on one
/// device.
Tensor MakeHandled(std::shared_ptr<const TensorHandler> handler, Shape sizes,
                   Shape strides, DType dtype);

inline Tensor TensorHandler::LocalPart() const { return {}; }

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_TENSOR_H_
