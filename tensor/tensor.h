// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_TENSOR_H_
#define CROSSHATCH_TENSOR_TENSOR_H_

/// \file
/// Tensor: a handle to a strided view of a Storage, or, where it carries a
/// TensorHandler, to a tensor that is spread over ranks. Which of the two it is
/// is the tensor's own business: ops take either. See op.h for how an op finds
/// its way, autograd.h for gradients, creation.h for factories.

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

using TensorList = absl::InlinedVector<Tensor, 2>;
using TensorSpan = absl::Span<const Tensor>;

/// What makes a tensor more than local memory. dtensor/ supplies the one there
/// is; this package only routes to it.
class TensorHandler {
 public:
  virtual ~TensorHandler() = default;

  /// Runs `op` on `inputs`, of which at least one carries a handler; below
  /// autograd. Called on the handler of the first input that has one.
  virtual TensorList Dispatch(const Op& op, TensorSpan inputs) const = 0;

  /// E.g. "f32[8, 8]|S(0)R on mesh(fsdp=2, tp=2)".
  virtual std::string Describe() const = 0;

  /// `gradient`, of the sizes of `leaf` (which has this handler), in the form
  /// that accumulates as leaf's .grad: in leaf's layout, partial sums reduced.
  virtual Tensor ConformGradient(const Tensor& leaf, Tensor gradient) const;

  /// The memory of this rank's part, never null; it counts the writes.
  virtual const Storage& memory() const = 0;

  /// Whether it was made of an operand as another form of the same elements:
  /// what is written to one of them, the other shows.
  virtual bool is_alias() const { return false; }

  /// Whether a sum of this and `other` is the same in every respect, wherever a
  /// rank writes it: in this one's memory, in other's, or in new memory. Asks
  /// for nothing that ranks may differ in.
  virtual bool AddsInPlace(const Tensor& other) const = 0;

  /// Whose the memory behind is (Storage::OwnerAt); may be empty.
  virtual std::string MemoryOwner() const { return {}; }

  /// This rank's part, to be looked at; undefined where it has none.
  virtual Tensor LocalPart() const;

  /// Whether no other handler and no view refers to the memory behind, and no
  /// two elements share a place in it, so that whoever holds this one may
  /// write to it.
  virtual bool OwnsMemory() const { return false; }
};

/// The state behind a Tensor. Ops and handlers make these; everybody else
/// goes through Tensor.
struct TensorImpl {
  TensorImpl();
  ~TensorImpl();

  std::shared_ptr<Storage> storage;  ///< Null where there is a handler.
  int64_t offset = 0;                ///< First element, in elements.
  Shape sizes;                       ///< Global sizes where distributed.
  Shape strides;                     ///< In elements; global as the sizes.
  DType dtype = DType::kFloat32;
  std::shared_ptr<const TensorHandler> handler;
  std::unique_ptr<AutogradMeta> autograd;  ///< Null: never needed a gradient.
};

/// Elements [start, end) of a dim, both clamped as Python does: Range{} is all
/// of them, Range{1} all but the first.
struct Range {
  int64_t start = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
};

/// What operator[] takes of a dim: one element, and the dim goes away, or a
/// Range of them.
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
  /// The undefined tensor. It may be asked whether it is defined, copied and
  /// described; everything else of it fails a check.
  Tensor() = default;
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

  bool defined() const { return impl_ != nullptr; }
  TensorImpl& impl() const { return Defined("impl"); }
  bool SameAs(const Tensor& other) const { return impl_ == other.impl_; }
  /// Whether this is the only handle to a tensor that alone refers to its
  /// memory: then nobody sees a write to it. Says no where it cannot tell.
  bool IsUnique() const;
  /// The part of IsUnique that is the same on all ranks: whether this is the
  /// only handle to a tensor. Its memory may be shared.
  bool IsOnlyHandle() const { return impl_.use_count() == 1; }

  /// Sizes; the global ones of a distributed tensor.
  const Shape& sizes() const { return Defined("sizes").sizes; }
  /// Size of a dim; negative dims count from the end.
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
  /// In elements. Of a distributed tensor those that it would have on one
  /// device, whatever its parts lie like: whether the result of an op aliases
  /// its operand, as a view or by Contiguous, follows from them, and so is the
  /// same on every rank and for plain tensors.
  const Shape& strides() const { return Defined("strides").strides; }
  int64_t storage_offset() const { return Defined("storage_offset").offset; }
  DType dtype() const { return Defined("dtype").dtype; }
  Device device() const;
  bool is_contiguous() const {
    const TensorImpl& impl = Defined("is_contiguous");
    return IsContiguous(impl.sizes, impl.strides);
  }

  /// Whether it is spread over ranks.
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
  /// Address of the first element. Null on Device::Meta() or without elements.
  /// Work on it must go through a stream. Fails a check where the elements are
  /// not on the rank's device, because a thread without a rank made them:
  /// ToThisDevice (creation.h) brings them.
  void* raw_data() const;
  template <typename T>
  T* data() const {
    CH_CHECK(Defined("data").dtype == DTypeOf<T>)
        << "data<" << Name(DTypeOf<T>) << "> of a tensor of " << dtype();
    return static_cast<T*>(raw_data());
  }

  /// Copies the elements out in row-major order, converted to T. Waits for the
  /// current stream. Local tensors with memory only.
  template <typename T>
  std::vector<T> ToVector() const;

  /// A view of some elements, by Select and Slice (ops/view.h): x[0] is the
  /// first of dim 0, x[Range{1, 3}] two of them, x[{Range{}, -1}] the last of
  /// dim 1. Checks that the indices name dims and elements.
  Tensor operator[](const DimIndex& index) const;
  Tensor operator[](std::initializer_list<DimIndex> indices) const;

  /// \name Autograd (autograd.h)
  /// @{
  bool requires_grad() const;
  /// Leaves only: marks it as one to compute a gradient for.
  Tensor& set_requires_grad(bool requires_grad);
  bool is_leaf() const;
  /// The accumulated gradient of a leaf; undefined before the first Backward.
  const Tensor& grad() const;
  void set_grad(Tensor grad) const;
  /// The same elements outside the graph.
  Tensor Detach() const;
  /// @}

  /// "f32[2, 3] on cpu", for messages.
  std::string Describe() const;

 private:
  /// What is behind, for `method`; of an undefined tensor a failed check.
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

extern template std::vector<float> Tensor::ToVector<float>() const;
extern template std::vector<double> Tensor::ToVector<double>() const;
extern template std::vector<int32_t> Tensor::ToVector<int32_t>() const;
extern template std::vector<int64_t> Tensor::ToVector<int64_t>() const;

/// What `tensor` is and its values, many of them shortened as NumPy does:
///
///     f32[2, 3] on cpu
///     [[0, 1, 2],
///      [3, 4, 5]]
///
/// Of a distributed one the global sizes, the layout and this rank's part; no
/// rank asks another. Waits for the current stream. Where there are no values
/// to be had (a dry run, no memory yet) it says so.
std::string ToString(const Tensor& tensor);
/// As ToString; tests print tensors by it.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

/// Whose memory `tensor` lies in, where that has a name: "blocks.0.up.weight
/// (gathered)".
std::string MemoryOwnerOf(const Tensor& tensor);

/// Says that `what`, an op say, writes to `dst`, which is local: counts the
/// write (Storage::version). Fails a check where other threads may read the
/// memory: what another thread made, and what another thread has read.
void BeginWrite(const char* what, const Tensor& dst);

namespace internal {

/// The check of BeginWrite.
void CheckMayBeWritten(const char* what, const Tensor& dst);

/// As raw_data, for work of the host: memory that a thread without a rank made
/// on another device than the rank's may be read there.
const void* AddressForHost(const Tensor& tensor);

}  // namespace internal

/// A local view of `storage` (no graph). Offset and strides in elements.
Tensor MakeView(std::shared_ptr<Storage> storage, int64_t offset, Shape sizes,
                Shape strides, DType dtype);

/// A distributed tensor: `sizes` are global, `handler` holds the rest.
Tensor MakeHandled(std::shared_ptr<const TensorHandler> handler, Shape sizes,
                   DType dtype);
/// As above; `strides` are those that the tensor would have on one device.
Tensor MakeHandled(std::shared_ptr<const TensorHandler> handler, Shape sizes,
                   Shape strides, DType dtype);

inline Tensor TensorHandler::LocalPart() const { return {}; }

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_TENSOR_H_
