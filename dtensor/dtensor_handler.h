// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DTENSOR_HANDLER_H_
#define CROSSHATCH_DTENSOR_DTENSOR_HANDLER_H_

/// \file
/// What a Tensor carries that is spread over ranks, and the one path that ops
/// on such tensors take:
///
/// 1. Look the call up in the rank's cache, by the op's address and attributes
///    and the inputs' layouts (as numbers), sizes and dtypes. On a miss ask the
///    op's rule (op_rule.h).
/// 2. Redistribute those inputs that lie otherwise than the rule asks.
/// 3. Run the op on the local tensors.
/// 4. Wrap the results.

#include <memory>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "crosshatch/dtensor/dtensor_runtime.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

class DTensorHandler final : public TensorHandler {
 public:
  /// \param layout lives as long as the rank.
  /// \param unwritable writing to it is refused: a view that had to be copied,
  ///     so that it would not reach the tensor that it is a view of, or a part
  ///     of another tensor, of whose copies it would reach this rank's alone.
  /// \param written when `local` will be: whoever asks for it waits on the
  ///     current stream, without noticing.
  DTensorHandler(Tensor local, const InternedLayout& layout, DeviceMesh mesh,
                 bool unwritable = false, Event written = {})
      : local_(std::move(local)),
        layout_(layout),
        mesh_(std::move(mesh)),
        unwritable_(unwritable),
        in_flight_(written.state() == nullptr
                       ? nullptr
                       : std::make_unique<InFlight>(
                             InFlight{std::move(written), {}})) {}

  /// The handler of a distributed tensor. \pre t.is_distributed()
  static const DTensorHandler& Of(const Tensor& t) {
    return static_cast<const DTensorHandler&>(*t.handler());
  }

  TensorList Dispatch(const Op& op, TensorSpan inputs) const override;
  std::string Describe() const override;
  Tensor ConformGradient(const Tensor& leaf, Tensor gradient) const override;
  uint32_t Version() const override;
  std::string MemoryOwner() const override;
  bool OwnsMemory() const override;

  const Tensor& local() const {
    if (in_flight_ != nullptr) WaitFor(*in_flight_);
    return local_;
  }
  const InternedLayout& interned() const { return layout_; }
  const Layout& layout() const { return layout_.layout; }
  const DeviceMesh& mesh() const { return mesh_; }
  bool unwritable() const { return unwritable_; }

 private:
  /// Work on a side stream that `local_` is the result of.
  struct InFlight {
    Event written;
    /// Streams that are ordered after it already.
    absl::InlinedVector<const Stream*, 1> ordered;
  };
  static void WaitFor(InFlight& work);

  const Tensor local_;
  const InternedLayout& layout_;
  const DeviceMesh mesh_;
  const bool unwritable_;
  const std::unique_ptr<InFlight> in_flight_;
};

/// A distributed tensor of global shape `sizes`, outside of the graph. Checks
/// that `local` has the shape of this rank's shard.
/// \param written, unwritable as for DTensorHandler.
Tensor Wrap(Tensor local, const InternedLayout& layout, const DeviceMesh& mesh,
            Shape sizes, Event written = {}, bool unwritable = false);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DTENSOR_HANDLER_H_
