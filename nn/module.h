// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MODULE_H_
#define CROSSHATCH_NN_MODULE_H_

/// \file
/// The tree of modules, with hooks around each forward: what tensor parallelism
/// and FSDP attach to.

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

/// State that a runtime (FSDP) keeps on a module.
class Attachment {
 public:
  virtual ~Attachment() = default;

  /// Whether it runs the module on a part of the batch on each of several
  /// ranks, and says which (batch_rows.h).
  virtual bool splits_batch() const { return false; }
};

/// What outlives a module, for those that refer to it.
struct ModuleLife {
  Module* module = nullptr;  ///< Null once the module is destroyed.
  /// Module::label, as of the last call of Module::life.
  std::shared_ptr<const std::string> label = nullptr;
};

/// Receives the begin and the end of each forward of the modules that it is set
/// on (Module::set_forward_watcher), but for those that recomputation runs
/// again.
class ForwardWatcher {
 public:
  virtual ~ForwardWatcher() = default;

  virtual void ForwardBegins(const Module& module) = 0;
  /// Outermost forwards end last; their inputs are still there
  /// (Module::OutermostInputs).
  virtual void ForwardEnds() = 0;
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

/// Base of all layers and models. A subclass makes its submodules, parameters
/// and buffers in the line that declares them:
///
///     class Mlp final : public Module {
///       ...
///       Linear& up_ = Make<Linear>("up", 16, 64);
///       Gelu& gelu_ = Make<Gelu>("gelu");
///       Parameter& scale_ = MakeParameter("scale", {16}, init::Constant(1));
///     };
///
/// or holds them otherwise and registers them (RegisterModule and its like):
/// then the tree does not own them, their holders do. Not movable: hooks and
/// parents refer to it by address.
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
  /// Call for one input and one output.
  Tensor Forward(const Tensor& input);

  /// E.g. "Linear", for messages: what a module is says its C++ type.
  virtual const char* type_name() const = 0;

  /// From the root of the tree: "layers.0.mlp"; empty for the root.
  std::string FullName() const;
  /// For messages: "layers.0.mlp (LlamaMlp)"; of the root its type.
  const std::shared_ptr<const std::string>& label() const;

  /// Returns what reports whether this module is still there.
  std::shared_ptr<const ModuleLife> life();

  /// Not nullopt: its own forward, as it is set now, draws random numbers for a
  /// row by where in the batch the row lies (dropout, while training), and they
  /// follow from this number, which is the same on all ranks.
  virtual std::optional<uint64_t> row_randomness() const {
    return std::nullopt;
  }

  /// The inputs of the outermost module that runs on the calling thread; empty
  /// outside of modules.
  static TensorSpan OutermostInputs();
  /// Returns the innermost module that runs on the calling thread; null outside
  /// of modules.
  static const Module* Innermost();

  /// The module that registered this one first; null for the root of a tree,
  /// and once that module is destroyed.
  Module* parent() const {
    return parent_ == nullptr ? nullptr : parent_->module;
  }
  const std::vector<std::pair<std::string, Module*>>& children() const {
    return children_;
  }
  /// This module's own parameters, not its children's.
  const std::vector<std::pair<std::string, std::shared_ptr<Parameter>>>&
  own_parameters() const {
    return parameters_;
  }
  /// The same of buffers.
  const std::vector<std::pair<std::string, std::shared_ptr<Buffer>>>&
  own_buffers() const {
    return buffers_;
  }
  /// This module and all below, each once, depth first, left to right; named
  /// from this module.
  std::vector<NamedModule> NamedModules();
  /// Every parameter once, in traversal order, named from this module. Gives
  /// the parameters and buffers of the whole tree their full names
  /// (Parameter::name) where they have none yet. All that reads the names calls
  /// it, Materialize too, so a model need not; a module that gets a parent
  /// before it is materialized is named anew, from the new root.
  std::vector<NamedParameter> NamedParameters();
  std::vector<Parameter*> Parameters();
  /// The same of buffers, persistent or not.
  std::vector<NamedBuffer> NamedBuffers();
  /// Calls `f` for each module below, each once, children before their
  /// parents, then for this one (apply of torch).
  void ForEachModule(absl::FunctionRef<void(Module&)> f);

  /// True at first. What differs in training (Dropout) asks for its own. A
  /// forward that is computed again for its backward (checkpoint.h) is told
  /// what it was told the first time, whatever was set since.
  bool training() const;
  /// Of this module and all below.
  void set_training(bool training);

  /// Makes all parameters and buffers of floating point in this module and
  /// below ones of `dtype` (Parameter::set_dtype), which checks that it comes
  /// before Materialize and what spreads them over ranks.
  void set_dtype(DType dtype);

  /// Materializes all parameters and buffers; see materialize.h.
  absl::Status Materialize(const MaterializeOptions& options);

  /// A hook sees what the hooks before it left. A hook that is added or removed
  /// while the module runs takes part from the next call on.
  /// \returns an id for RemoveHook. `first`: before the hooks that are there.
  int AddPreHook(PreHook hook, bool first = false);
  int AddPostHook(PostHook hook, bool first = false);
  void RemoveHook(int id);

  /// From now on `wrapper` runs in the place of what ran there so far, between
  /// the hooks, and gets that as `forward`: ForwardImpl at first.
  void AddForwardWrapper(ForwardWrapper wrapper);

  /// Null takes it away.
  void set_forward_watcher(std::shared_ptr<ForwardWatcher> watcher) {
    forward_watcher_ = std::move(watcher);
  }
  const std::shared_ptr<ForwardWatcher>& forward_watcher() const {
    return forward_watcher_;
  }

  /// The runtime state under `key` ("fsdp"); null if none.
  Attachment* attachment(const std::string& key) const;
  /// Whether one of the runtimes on it splits the batch.
  bool splits_batch() const;
  /// Replaces what is there; null takes it away.
  void Attach(const std::string& key, std::shared_ptr<Attachment> attachment);

 protected:
  virtual TensorList ForwardImpl(TensorSpan inputs) = 0;

  /// training() as it is set now: for what is asked of a module by those around
  /// its forward (row_randomness), who do not ask again for a backward.
  bool is_set_to_train() const { return training_; }

  /// `name` may have dots: a list of modules registers "layers.0", "layers.1"
  /// and needs no module of its own. Names are unique within a module, and no
  /// module is below itself, both checked.
  void RegisterModule(std::string name, Module& module);
  void RegisterParameter(std::string name,
                         std::shared_ptr<Parameter> parameter);
  void RegisterBuffer(std::string name, std::shared_ptr<Buffer> buffer);

  /// \name Making and registering in one
  /// What is made lives as long as this module.
  /// @{
  template <typename M, typename... Args>
  M& Make(std::string name, Args&&... args) {
    const Construction construction(*this, name);
    auto module = std::make_unique<M>(std::forward<Args>(args)...);
    M& made = *module;
    Own(std::move(name), std::move(module));
    return made;
  }
  /// Makes an M that is described by options, by their names:
  /// Make<Linear>("up", {.in = 16, .out = 64, .bias = true}).
  template <typename M>
  M& Make(std::string name, const typename M::Options& options) {
    return Make<M, const typename M::Options&>(std::move(name), options);
  }
  /// Registers what somebody else has made.
  Module& Own(std::string name, std::unique_ptr<Module> module);
  Parameter& MakeParameter(std::string name, ShapeView sizes,
                           Initializer initializer, DType dtype = kFloat32);
  Buffer& MakeBuffer(std::string name, ShapeView sizes, Initializer initializer,
                     DType dtype = kFloat32, bool persistent = true);
  /// @}

 private:
  // Shared, so that a hook that adds or removes hooks of this module does not
  // pull the function that runs from under its own feet.
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

  /// Of this module and all below: a name has changed.
  void ForgetLabels();

  /// Checks that it is none of the names of parameters and buffers.
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
  std::shared_ptr<ForwardWatcher> forward_watcher_;
  int next_hook_id_ = 0;
  mutable std::shared_ptr<const std::string> label_;  ///< Null until asked for.
  std::shared_ptr<ModuleLife> life_;                  ///< Null until asked for.
  std::map<std::string, std::shared_ptr<Attachment>> attachments_;
};

/// Base, beside Module, of a module that names its inputs:
///
///     class CrossAttention final : public nn::Module, public nn::NamedInputs {
///       std::vector<std::string> input_names() const override {
///         return {"x", "memory"};
///       }
class NamedInputs {
 public:
  virtual ~NamedInputs() = default;
  /// In the order in which Module::Call takes them.
  virtual std::vector<std::string> input_names() const = 0;
};

/// The root of the tree that `module` is in: itself where it has no parent.
/// Owned as it is; no other module until one of them gets a parent.
inline Module& RootOf(Module& module) {
  Module* root = &module;
  while (root->parent() != nullptr) root = root->parent();
  return *root;
}

/// Attached under kKey to each module that the runtime has taken over, and to
/// its parts: the state of a part is as much the runtime's.
class StateGuard : public Attachment {
 public:
  static constexpr char kKey[] = "state_guard";

  /// Whether Parameter::data() holds the values that the module is at.
  /// \param what the caller, to begin the message with: "ModuleState".
  /// \error kFailedPrecondition naming the module and what to do first.
  virtual absl::Status CheckReadable(const char* what) const = 0;
  /// Whether Parameter::data() may be overwritten.
  /// \error as CheckReadable.
  virtual absl::Status CheckWritable(const char* what) const = 0;
  /// The forward of `module`, to which this is attached, runs again within a
  /// backward (nn/checkpoint.h), without its hooks, and needs its parameters.
  virtual void BeginRecomputation(Module& /*module*/) {}
};

/// Whether every guard on `module` and below lets its parameters be read.
/// \error as StateGuard::CheckReadable, of the first that does not.
absl::Status CheckReadable(Module& module, const char* what);
/// Whether every one lets them be overwritten.
/// \error as StateGuard::CheckWritable, of the first that does not.
absl::Status CheckWritable(Module& module, const char* what);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MODULE_H_
