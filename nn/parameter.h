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

/// A parameter has two faces, which are two members and never one swapped:
/// - data(): what lives from step to step; optimizers, clipping and checkpoints
///   work on it. A plain tensor, a DTensor over the tp axis, or, under
///   FullyShard, a DTensor over the whole mesh.
/// - Get(): what forward computes with. The same as data() until FullyShard
///   sets a gathered tensor.
///
/// Tied weights are one Parameter, registered by several modules.
class Parameter : public std::enable_shared_from_this<Parameter> {
 public:
  /// Deferred: name and shape, no memory until Module::Materialize.
  Parameter(ShapeView sizes, DType dtype, Initializer initializer)
      : Parameter(sizes, dtype, std::move(initializer),
                  /*requires_grad=*/true) {}
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  /// The full name from the root of the tree, "layers.0.mlp.up_proj.weight";
  /// of a tied parameter the first one in traversal order. Set by
  /// Module::NamedParameters; empty before.
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

  const Initializer& initializer() const { return initializer_; }
  /// For Module::Materialize to come: checks that there is no memory yet.
  void set_initializer(Initializer initializer);

  /// Makes it one of `dtype`, floating point. Checks that there is no memory
  /// yet, and that it is not spread over ranks.
  void set_dtype(DType dtype);

  const Tensor& data() const { return data_; }
  /// Replaces the persistent tensor by a leaf of the same global sizes:
  /// parallelization does.
  void set_data(Tensor data);

  const Tensor& Get() const { return gathered_.defined() ? gathered_ : data_; }
  const Tensor& gathered() const { return gathered_; }
  void set_gathered(Tensor gathered) { gathered_ = std::move(gathered); }

  /// The gradient, of data()'s layout; undefined where there is none.
  const Tensor& grad() const { return data_.grad(); }
  void set_grad(Tensor grad) { data_.set_grad(std::move(grad)); }

  /// Whether the memory of data() is the host's beside a device's: there goes
  /// what is leased for it and for its optimizer.
  bool on_host() const { return on_host_; }
  void set_on_host(bool on_host) { on_host_ = on_host; }

  /// Whether a runtime has a gradient of it that waits for its reduction over
  /// ranks, so that grad() is not all there is; set by the runtime.
  bool gradient_is_pending() const { return gradient_is_pending_; }
  void set_gradient_is_pending(bool pending) { gradient_is_pending_ = pending; }

  /// Whether data() holds other values for a while, and its own are put back
  /// over what is written meanwhile; set by who swaps them (Ema).
  bool is_swapped() const { return is_swapped_; }
  void set_swapped(bool swapped) { is_swapped_ = swapped; }

  bool requires_grad() const { return requires_grad_; }
  void set_requires_grad(bool requires_grad);

  /// Whether data() has memory, and so values.
  bool has_memory() const;

  /// Whose the memory of a deferred parameter is, as far as storages know.
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
};

/// What a module keeps beside its parameters, and no gradient changes: tables,
/// running statistics. It is made, named, filled and replaced (data, set_data)
/// as a parameter is; FullyShard leaves it whole on each rank, in its own
/// dtype, whatever MixedPrecisionPolicy says.
///
/// Every rank holds the same: what a forward writes to it is to be the same on
/// all of them (CheckBuffers compares). A module that is recomputed
/// (Checkpoint) reads buffers and does not write them, which is checked. Where
/// tensors are distributed, ReplicatedLike(buffer.data(), x) meets them in an
/// op.
class Buffer final : public Parameter {
 public:
  /// \param persistent whether it is part of the module's state.
  Buffer(ShapeView sizes, DType dtype, Initializer initializer,
         bool persistent = true);

  bool persistent() const { return persistent_; }

 private:
  const bool persistent_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_PARAMETER_H_
