// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MODULE_H_
#define CROSSHATCH_NN_MODULE_H_

/// \file
/// The tree of modules, with hooks around each forward, to which tensor
/// parallelism and FSDP attach.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

class Module;
class RowCount;

/// State that a runtime (FSDP) keeps on a module.
class Attachment {
 public:
  virtual ~Attachment() = default;

  /// Returns whether it runs the module on different rows of the batch on
  /// several ranks and reports which (batch_rows.h).
  virtual bool splits_batch() const { return false; }
};

/// State that outlives a module, for objects that refer to it.
struct ModuleLife {
  Module* module = nullptr;  ///< Null once the module is destroyed.
  /// Module::label, as of the last call of Module::life.
  std::shared_ptr<const std::string> label = nullptr;
};

struct NamedParameter {
  std::string name;
  Parameter* parameter;
};
struct NamedBuffer {
  std::string name;
  Buffer* buffer;
};
struct NamedModule {
  std::string name;  ///< Empty for the root.
  Module* module;
};

/// Base of all layers and models. A subclass creates its submodules, parameters
/// and buffers in the lines that declare them:
///
///     class Mlp final : public Module {
///       ...
///       Linear& up_ = Make<Linear>("up", 16, 64);
///       Gelu& gelu_ = Make<Gelu>("gelu");
///       Parameter& scale_ = MakeParameter("scale", {16}, init::Constant(1));
///     };
///
/// or owns them otherwise and registers them (RegisterModule and similar). Not
/// movable, because hooks and parents refer to it by address.
class Module {
 public:
  using PreHook = std::function<void(Module&, TensorList& inputs)>;
  using PostHook =
      std::function<void(Module&, TensorSpan inputs, TensorList& outputs)>;
  using ForwardFunction = std::function<TensorList(TensorSpan inputs)>;
  using ForwardWrapper = std::function<TensorList(
      TensorSpan inputs, const ForwardFunction& forward)>;

  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Runs the pre-hooks in order (they may replace inputs), ForwardImpl, then
  /// the post-hooks in order (they may replace outputs).
  TensorList Call(TensorList inputs);
  /// Does the same for one input and one output.
  Tensor Forward(const Tensor& input);

  /// Returns a name for messages, e.g. "Linear": by default that of the class.
  /// Code distinguishes modules by their C++ types.
  virtual const char* type_name() const;

  /// Returns the name from the root of the tree, e.g. "layers.0.mlp"; empty for
  /// the root.
  std::string FullName() const;
  /// Returns a name for messages, e.g. "layers.0.mlp (LlamaMlp)"; for the root
  /// its type.
  const std::shared_ptr<const std::string>& label() const;

  /// Returns an object that reports whether this module still exists.
  std::shared_ptr<const ModuleLife> life();

  /// Returns a number, the same on all ranks, if the module's own forward draws
  /// random numbers by the index of a row in the batch (dropout during
  /// training); the draws depend on it. Otherwise nullopt.
  virtual std::optional<uint64_t> row_randomness() const {
    return std::nullopt;
  }

  /// Returns the inputs of the outermost module that runs on the calling
  /// thread; empty outside of modules.
  static TensorSpan OutermostInputs();
  /// Returns the innermost module that runs on the calling thread; null outside
  /// of modules.
  static const Module* Innermost();

  /// Returns the module that registered this one first; null for the root of a
  /// tree, and after that module is destroyed.
  Module* parent() const {
    return parent_ == nullptr ? nullptr : parent_->module;
  }
  const std::vector<std::pair<std::string, Module*>>& children() const {
    return children_;
  }
  /// Returns this module's own parameters, not those of its children.
  const std::vector<std::pair<std::string, std::shared_ptr<Parameter>>>&
  own_parameters() const {
    return parameters_;
  }
  /// Returns this module's own buffers.
  const std::vector<std::pair<std::string, std::shared_ptr<Buffer>>>&
  own_buffers() const {
    return buffers_;
  }
  /// Returns this module and all below it, each once, depth first, left to
  /// right, with names from this module.
  std::vector<NamedModule> NamedModules();
  /// Returns every parameter once, in traversal order, with names from this
  /// module. Sets the full names (Parameter::name) of parameters and buffers of
  /// the whole tree that have none yet. A model need not call it, because all
  /// readers of names do. A module that gets a parent before it is materialized
  /// is named again, from the new root.
  std::vector<NamedParameter> NamedParameters();
  std::vector<Parameter*> Parameters();
  /// Returns every buffer once, persistent or not.
  std::vector<NamedBuffer> NamedBuffers();
  /// Calls `f` for each module below, each once, children before their parents,
  /// then for this one (torch.nn.Module.apply).
  void ForEachModule(absl::FunctionRef<void(Module&)> f);

  /// Returns whether the module is in training mode, as it is initially. A
  /// forward that is recomputed for its backward (activation_checkpoint.h) gets
  /// the value of the first time, whatever was set since.
  bool training() const;
  /// Sets the mode of this module and all below it.
  void set_training(bool training);

  /// Changes the dtype of all floating-point parameters and buffers in this
  /// module and below (Parameter::set_dtype).
  /// \checks that they have no memory and are not distributed yet
  void set_dtype(DType dtype);

  /// Materializes all parameters and buffers (materialize.h).
  absl::Status Materialize(const MaterializeOptions& options);

  /// Adds a hook. A hook gets the tensors that the hooks before it left. A hook
  /// that is added or removed during a call has its effect from the next call
  /// on.
  /// \param first whether it runs before the existing hooks, instead of after.
  /// \returns an id for RemoveHook.
  int AddPreHook(PreHook hook, bool first = false);
  int AddPostHook(PostHook hook, bool first = false);
  void RemoveHook(int id);

  /// Runs `wrapper` between the hooks from now on, in place of ForwardImpl or
  /// the last wrapper, which it gets as `forward`.
  void AddForwardWrapper(ForwardWrapper wrapper);

  /// Sets the count of rows (batch_rows.h) that receives the begin and the end
  /// of each forward, except for those that are recomputed; null removes it.
  void set_row_count(std::shared_ptr<RowCount> count) {
    row_count_ = std::move(count);
  }
  const std::shared_ptr<RowCount>& row_count() const { return row_count_; }

  /// Returns the runtime state under `key` ("fsdp"); null if there is none.
  Attachment* attachment(const std::string& key) const;
  /// Returns whether one of the runtimes on it splits the batch.
  bool splits_batch() const;
  /// Replaces the state under `key`; null removes it.
  void Attach(const std::string& key, std::shared_ptr<Attachment> attachment);

 protected:
  virtual TensorList ForwardImpl(TensorSpan inputs) = 0;

  /// Returns the mode as it is set now, also during a recomputation: for
  /// queries from outside of the forward (row_randomness).
  bool is_set_to_train() const { return training_; }

  /// Registers a module that somebody else owns. `name` may have dots: a list
  /// of modules registers "layers.0", "layers.1" and needs no module of its
  /// own.
  /// \checks that names are unique within a module, and that no module is below
  ///     itself
  void RegisterModule(std::string name, Module& module);
  void RegisterParameter(std::string name,
                         std::shared_ptr<Parameter> parameter);
  void RegisterBuffer(std::string name, std::shared_ptr<Buffer> buffer);

  /// \name Creation with registration
  /// The created objects live as long as this module.
  /// @{
  template <typename M, typename... Args>
  M& Make(std::string name, Args&&... args) {
    const Construction construction(*this, name);
    auto module = std::make_unique<M>(std::forward<Args>(args)...);
    M& made = *module;
    Own(std::move(name), std::move(module));
    return made;
  }
  /// Makes an M from options by name, e.g.
  /// Make<Linear>("up", {.in = 16, .out = 64, .bias = true}).
  template <typename M>
  M& Make(std::string name, const typename M::Options& options) {
    return Make<M, const typename M::Options&>(std::move(name), options);
  }
  /// Takes over and registers `module`.
  Module& Own(std::string name, std::unique_ptr<Module> module);
  Parameter& MakeParameter(std::string name, ShapeView sizes,
                           Initializer initializer, DType dtype = kFloat32) {
    return *AddParameter(std::move(name), sizes, std::move(initializer), dtype);
  }
  /// Returns shared ownership, for parameters that other modules may tie.
  std::shared_ptr<Parameter> AddParameter(std::string name, ShapeView sizes,
                                          Initializer initializer,
                                          DType dtype = kFloat32);
  Buffer& MakeBuffer(std::string name, ShapeView sizes, Initializer initializer,
                     DType dtype = kFloat32, bool persistent = true);
  /// @}

 private:
  // Shared, so that a hook may remove itself while it runs.
  template <typename F>
  struct Hook {
    int id;
    std::shared_ptr<F> run;
  };

  /// A call that runs.
  class Running;

  /// Names the module that Make constructs in messages of failed checks.
  class Construction final : public ErrorContext {
   public:
    Construction(const Module& parent, const std::string& name)
        : ErrorContext(Kind::kOp), parent_(parent), name_(name) {}
    std::string Describe() const override;

   private:
    const Module& parent_;
    const std::string& name_;
  };

  template <typename F>
  using HookList = absl::InlinedVector<Hook<F>, 2>;

  template <typename F>
  int AddHook(HookList<F>& hooks, F hook, bool first);

  /// Resets the labels of this module and all below, because a name has
  /// changed.
  void ForgetLabels();

  /// Checks that no parameter or buffer has this name.
  void CheckFree(const std::string& name) const;

  /// Without a label yet.
  const std::shared_ptr<ModuleLife>& OwnLife();

  std::shared_ptr<const ModuleLife> parent_;  ///< Null until registered.
  std::string name_in_parent_;
  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> parameters_;
  std::vector<std::pair<std::string, std::shared_ptr<Buffer>>> buffers_;
  std::vector<std::unique_ptr<Module>> owned_;
  bool training_ = true;
  HookList<PreHook> pre_hooks_;
  HookList<PostHook> post_hooks_;
  ForwardWrapper forward_wrapper_;
  std::shared_ptr<RowCount> row_count_;
  int next_hook_id_ = 0;
  mutable std::shared_ptr<const std::string> label_;  ///< Null until requested.
  mutable std::string type_name_;                     ///< As label_.
  std::shared_ptr<ModuleLife> life_;                  ///< Null until requested.
  std::map<std::string, std::shared_ptr<Attachment>> attachments_;
};

/// Second base of a module with several inputs that names them, so that styles
/// can refer to them by name (tp::PrepareModuleInput):
///
///     class CrossAttention final : public nn::Module, public nn::NamedInputs {
///       std::vector<std::string> input_names() const override {
///         return {"x", "memory"};
///       }
class NamedInputs {
 public:
  virtual ~NamedInputs() = default;
  /// Returns the names in the order of Module::Call's inputs.
  virtual std::vector<std::string> input_names() const = 0;
};

/// Returns the root of the tree of `module`: itself if it has no parent.
inline Module& RootOf(Module& module) {
  Module* root = &module;
  while (root->parent() != nullptr) root = root->parent();
  return *root;
}

/// Reports whether parameters of a module that a runtime (FSDP) manages can be
/// saved and restored now. Attached under kKey to the module and those below
/// it.
class StateGuard : public Attachment {
 public:
  static constexpr char kKey[] = "state_guard";

  /// Returns OK if Parameter::data() has the current values.
  /// \param what the caller, for the message: "ModuleState".
  /// \error kFailedPrecondition naming the module and what to do first.
  virtual absl::Status CheckReadable(const char* what) const = 0;
  /// Returns OK if Parameter::data() may be overwritten.
  /// \error as CheckReadable.
  virtual absl::Status CheckWritable(const char* what) const = 0;
  /// Called before the forward of `module`, to which this is attached, is
  /// recomputed in a backward (nn/activation_checkpoint.h), without hooks: it
  /// needs its parameters.
  virtual void BeginRecomputation(Module& /*module*/) {}
};

/// Returns OK if every guard on `module` and below allows reading.
/// \error of the first StateGuard::CheckReadable that fails.
absl::Status CheckReadable(Module& module, const char* what);
/// Returns OK if every guard allows overwriting.
/// \error of the first StateGuard::CheckWritable that fails.
absl::Status CheckWritable(Module& module, const char* what);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MODULE_H_
