// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/tensor.h"

#include <cstdlib>
#include <sstream>
#include <type_traits>
#include <utility>

#include "crosshatch/base/error_context.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/write_guard.h"

namespace crosshatch {
namespace {

// Copies strided elements to row-major `out`, outermost dim first.
template <typename From, typename To>
void CopyOut(const From* data, ShapeView sizes, ShapeView strides, To*& out) {
  if (!sizes.empty()) {
    for (int64_t i = 0; i < sizes[0]; ++i) {
      CopyOut(data + i * strides[0], sizes.subspan(1), strides.subspan(1), out);
    }
  } else if constexpr (std::is_class_v<From>) {  // A 16-bit or 8-bit float.
    *out++ = static_cast<To>(static_cast<float>(*data));
  } else {
    *out++ = static_cast<To>(*data);
  }
}

template <typename To>
void CopyOut(const Tensor& tensor, To* out) {
  const HostView view(tensor);
  const auto copy = [&](auto zero) {
    CopyOut(static_cast<const decltype(zero)*>(view.data()), tensor.sizes(),
            tensor.strides(), out);
  };
  switch (tensor.dtype()) {
    case DType::kFloat32:
      return copy(float{});
    case DType::kFloat64:
      return copy(double{});
    case DType::kBFloat16:
      return copy(BFloat16{});
    case DType::kFloat16:
      return copy(Float16{});
    case DType::kInt32:
      return copy(int32_t{});
    case DType::kInt64:
      return copy(int64_t{});
    case DType::kUInt16:
      return copy(uint16_t{});
    case DType::kBool:
      return copy(bool{});
    case DType::kFloat8E4M3:
      return copy(Float8E4M3{});
    case DType::kFloat8E5M2:
      return copy(Float8E5M2{});
    case DType::kUInt8:
      return copy(uint8_t{});
  }
}

// A rank's tensors are used on its own thread: work of another thread is not
// ordered after the rank's streams.
void CheckMayBeUsedHere(const Tensor& tensor) {
  const Allocator* const allocator = tensor.storage()->block().allocator();
  CH_CHECK(allocator->OnOwnThread() || allocator->owner().name.empty())
      << tensor.Describe() << " is used on another thread than that of "
      << allocator->owner().name << ", which made it: a rank's tensors stay "
      << "with the rank; read its values there (ToVector)";
}

// Returns whether the memory belongs to another thread's context.
bool IsOfAnotherThread(const Storage& storage, const Allocator* allocator) {
  return storage.context() != 0 &&
         storage.context() != RankContext::Current().id() &&
         !allocator->OnOwnThread();
}

// `by_host`: for the host, not for kernels of the rank's device.
std::byte* AddressOf(const Tensor& tensor, bool by_host) {
  const TensorImpl& impl = tensor.impl();
  CH_CHECK(impl.handler == nullptr)
      << "the address of a distributed tensor: " << tensor.Describe();
  const std::shared_ptr<Storage>& storage = impl.storage;
  std::byte* const start = storage->data();
  if (start == nullptr || NumElements(impl.sizes) == 0) return nullptr;
  if (storage->context() != 0) {
    RankContext& context = RankContext::Current();
    if (storage->context() != context.id()) {
      CheckMayBeUsedHere(tensor);
      CH_CHECK(by_host || context.dry_run() ||
               storage->device() == context.device())
          << tensor.Describe() << " is used on " << context.device()
          << ": a thread without a rank, such as a loader's, made it; bring it "
          << "to the rank's device by ToThisDevice";
      if (!storage->block().allocator()->OnOwnThread()) {
        storage->NoteHandedOver();
      }
      context.Hold(storage);
    }
  }
  return start + impl.offset * SizeOf(impl.dtype);
}

}  // namespace

void BeginWrite(const char* what, const Tensor& dst) {
  internal::CheckMayBeWritten(what, dst);
  AwaitReaders(RankContext::Current(), *dst.storage());
  dst.storage()->BumpVersion();
}

namespace internal {

void FailTensorIndex(size_t index, size_t size) {
  std::string modules;
  for (const ErrorContext* context = ErrorContext::Innermost();
       context != nullptr; context = context->around()) {
    if (context->kind() != ErrorContext::Kind::kModule) continue;
    modules = context->Describe() + (modules.empty() ? "" : " > ") + modules;
  }
  CH_CHECK(false) << "tensor [" << static_cast<int64_t>(index)
                  << "] of a list of " << size
                  << (size == 1 ? " tensor" : " tensors")
                  << (modules.empty() ? "" : ", in ") << modules
                  << "; the inputs of a forward are those that Call was given";
  std::abort();
}

void CheckMayBeWritten(const char* what, const Tensor& dst) {
  Storage& storage = *dst.storage();
  if (IsOfAnotherThread(storage, storage.block().allocator())) {
    CheckMayBeUsedHere(dst);
    CH_CHECK(false) << what << ": " << dst.Describe()
                    << " was made by another thread, which may give it to "
                    << "several ranks: nobody writes to it any more; write to "
                    << "a Clone of it";
  }
  CH_CHECK(!storage.was_handed_over())
      << what << ": " << dst.Describe()
      << " was given to another thread, which may read it now: make a new "
      << "tensor for new values";
}

const void* AddressForHost(const Tensor& tensor) {
  return AddressOf(tensor, /*by_host=*/true);
}

}  // namespace internal

TensorImpl::TensorImpl() = default;
TensorImpl::~TensorImpl() = default;

void Tensor::FailUndefined(const char* method) {
  CH_CHECK(false) << method << " of an undefined tensor: nothing was assigned "
                  << "to it, or it was moved from";
  std::abort();
}

void Tensor::FailNoDim(int64_t dim) const {
  CH_CHECK(false) << "size(" << dim << ") of a tensor of " << ndim()
                  << " dims: " << Describe();
  std::abort();
}

bool Tensor::IsUnique() const {
  if (impl_.use_count() != 1) return false;
  if (is_distributed()) {
    return handler().use_count() == 1 && handler()->OwnsMemory();
  }
  return impl_->storage.use_count() == 1 && !impl_->storage->block().empty() &&
         !IsOfAnotherThread(*impl_->storage,
                            impl_->storage->block().allocator());
}

Device Tensor::device() const {
  return is_distributed() ? RankContext::Current().device()
                          : Defined("device").storage->device();
}

std::string MemoryOwnerOf(const Tensor& tensor) {
  if (tensor.is_distributed()) return tensor.handler()->MemoryOwner();
  return tensor.storage()->OwnerAt(tensor.storage_offset() *
                                   SizeOf(tensor.dtype()));
}

void* Tensor::raw_data() const { return AddressOf(*this, /*by_host=*/false); }

template <typename T>
std::vector<T> Tensor::ToVector() const {
  CH_CHECK(defined()) << "ToVector of an undefined tensor";
  // A tensor without memory has an error of its own.
  if (!is_distributed()) storage()->CheckAttached();
  CH_CHECK(!is_distributed())
      << "ToVector of " << Describe() << ", whose elements are not all here: "
      << "FullTensor gathers them on every rank, LocalTensor is this rank's "
      << "part (dtensor/dtensor.h)";
  CH_CHECK(!device().is_meta())
      << "ToVector of " << Describe() << ", whose elements are nowhere";
  std::vector<T> values(static_cast<size_t>(numel()));
  CopyOut(*this, values.data());
  return values;
}

template std::vector<float> Tensor::ToVector<float>() const;
template std::vector<double> Tensor::ToVector<double>() const;
template std::vector<int32_t> Tensor::ToVector<int32_t>() const;
template std::vector<int64_t> Tensor::ToVector<int64_t>() const;

std::string Tensor::Describe() const {
  if (!defined()) return "an undefined tensor";
  std::ostringstream text;
  text << dtype() << ToString(sizes());
  if (is_distributed()) {
    // Keep the layout from the handler's description.
    const std::string of_part = handler()->Describe();
    const size_t bar = of_part.find('|');
    if (bar != std::string::npos) text << of_part.substr(bar);
  } else {
    text << " on " << device();
  }
  return text.str();
}

Tensor MakeView(std::shared_ptr<Storage> storage, int64_t offset, Shape sizes,
                Shape strides, DType dtype) {
  CH_CHECK_EQ(sizes.size(), strides.size()) << "sizes and strides of a view";
  int64_t first = offset, last = offset;
  bool empty = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t extent = (sizes[i] - 1) * strides[i];
    (extent < 0 ? first : last) += extent;
    if (sizes[i] == 0) empty = true;
  }
  CH_CHECK(empty ||
           (first >= 0 && (last + 1) * SizeOf(dtype) <= storage->bytes()))
      << "a view of " << ToString(sizes) << " with strides "
      << ToString(strides) << " at " << offset << " leaves the "
      << storage->bytes() << " bytes of its storage";
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::move(storage);
  impl->offset = offset;
  impl->sizes = std::move(sizes);
  impl->strides = std::move(strides);
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

Tensor MakeHandled(std::shared_ptr<const TensorHandler> handler, Shape sizes,
                   DType dtype) {
  auto impl = std::make_shared<TensorImpl>();
  impl->handler = std::move(handler);
  impl->strides = ContiguousStrides(sizes);
  impl->sizes = std::move(sizes);
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

Tensor MakeHandled(std::shared_ptr<const TensorHandler> handler, Shape sizes,
                   Shape strides, DType dtype) {
  auto impl = std::make_shared<TensorImpl>();
  impl->handler = std::move(handler);
  impl->strides = std::move(strides);
  impl->sizes = std::move(sizes);
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

}  // namespace crosshatch
