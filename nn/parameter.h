// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_PARAMETER_H_
#define CROSSHATCH_NN_PARAMETER_H_

/// \file
/// A parameter of a module, and a buffer.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "crosshatch/nn/initializer.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// A parameter of a module. It has two tensors:
/// - data(): the persistent one, for optimizers, clipping and checkpoints. A
///   plain tensor, a DTensor over the tp axis or, under FullyShard, a DTensor
///   over the whole mesh.
/// - Get(): the one that forward computes with. The same as data() until
///   FullyShard sets a gathered tensor.
///
/// Tied weights are one Parameter, registered by several modules.
class Parameter : public std::enable_shared_from_this<Parameter> {
 public:
  /// Creates a parameter without memory, which Module::Materialize allocates.
  Parameter(ShapeView sizes, DType dtype, Initializer initializer)
      : Parameter(sizes, dtype, std::move(initializer),
                  /*requires_grad=*/true) {}
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  /// Returns the full name from the root of the tree, e.g.
  /// "layers.0.mlp.up_proj.weight"; for a tied parameter the first one in
  /// traversal order. Empty before Module::NamedParameters.
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

  const Initializer& initializer() const { return initializer_; }
  /// Sets the initializer for Module::Materialize.
  /// \checks that there is no memory yet
  void set_initializer(Initializer initializer);

  /// Changes the dtype to `dtype`, floating point.
  /// \checks that there is no memory yet and that it is not distributed
  void set_dtype(DType dtype);

  const Tensor& data() const { return data_; }
  /// Replaces the persistent tensor by a leaf of the same global sizes, as
  /// parallelization does. Memory of MemoryClass::kActivation becomes that of
  /// MemoryClass::kParameter.
  void set_data(Tensor data);

  const Tensor& Get() const { return gathered_.defined() ? gathered_ : data_; }
  const Tensor& gathered() const { return gathered_; }
  /// Returns tensors that belong to gathered(), such as the scale of float8
  /// values, if gather hooks supply any (fsdp/gather_hooks.h).
  const TensorList& gathered_extras() const { return gathered_extras_; }
  void set_gathered(Tensor gathered, TensorList extras = {}) {
    gathered_ = std::move(gathered);
    gathered_extras_ = std::move(extras);
  }

  /// Returns the gradient, in data()'s layout; undefined if there is none.
  const Tensor& grad() const { return data_.grad(); }
  /// Replaces the gradient. Memory of MemoryClass::kActivation becomes that of
  /// MemoryClass::kGradient.
  void set_grad(Tensor grad);

  /// Returns whether data() and its optimizer state are in host memory although
  /// the rank has a device.
  bool on_host() const { return on_host_; }
  void set_on_host(bool on_host) { on_host_ = on_host; }

  /// Returns whether a runtime has a gradient that is not reduced over ranks
  /// yet, so that grad() is incomplete. Set by the runtime.
  bool gradient_is_pending() const { return gradient_is_pending_; }
  void set_gradient_is_pending(bool pending) { gradient_is_pending_ = pending; }

  /// Returns whether data() temporarily has other values (Ema::SwapIn), so that
  /// writes to it will be lost.
  bool is_swapped() const { return is_swapped_; }
  void set_swapped(bool swapped) { is_swapped_ = swapped; }

  bool requires_grad() const { return requires_grad_; }
  void set_requires_grad(bool requires_grad);

  /// Returns whether data() has memory.
  bool has_memory() const;

  /// The owner in messages about storage without memory.
  static constexpr char kNotMaterialized[] =
      "a parameter that was not materialized";

 protected:
  Parameter(ShapeView sizes, DType dtype, Initializer initializer,
            bool requires_grad);

 private:
  std::string name_;
  Initializer initializer_;
  bool requires_grad_;
  bool on_host_ = false;
  bool gradient_is_pending_ = false;
  bool is_swapped_ = false;
  Tensor data_;
  Tensor gathered_;
  TensorList gathered_extras_;
};

/// A tensor that a module keeps and that has no gradient, such as a table or
/// running statistics. It is created, named, filled and replaced (data,
/// set_data) like a parameter. FullyShard leaves it replicated, in its own
/// dtype, whatever MixedPrecisionPolicy says.
///
/// All ranks must hold the same values (CheckBuffers compares them), so a
/// forward must write the same on all ranks. A module under activation
/// checkpointing (CheckpointActivations) may not write buffers, which is
/// checked. To combine one with DTensors, use ReplicatedLike(buffer.data(), x).
class Buffer final : public Parameter {
 public:
  /// Creates a buffer without memory, which Module::Materialize allocates.
  /// \param persistent whether it is part of the module's state.
  Buffer(ShapeView sizes, DType dtype, Initializer initializer,
         bool persistent = true);

  bool persistent() const { return persistent_; }

 private:
  const bool persistent_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_PARAMETER_H_
