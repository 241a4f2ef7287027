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
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

class Module;

/// State that a runtime (FSDP) keeps on a module.
class Attachment {
 public:
  virtual ~Attachment() = default;
};

struct NamedParameter {
  std::string name;
  Parameter* parameter;
};
struct NamedModule {
  std::string name;  ///< Empty for the root.
  Module* module;
};

struct MaterializeOptions {
  uint64_t seed = 0;
};

/// Base of all layers and models. A subclass holds its submodules and
/// parameters as members and registers them in its constructor; the tree does
/// not own submodules, their holders do. Not movable: hooks and parents refer
/// to it by address.
class Module {
 public:
  using PreHook = std::function<void(Module&, TensorList& inputs)>;
  using PostHook =
      std::function<void(Module&, TensorSpan inputs, TensorList& outputs)>;

  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Runs the pre-hooks in order (they may replace inputs), ForwardImpl, then
  /// the post-hooks in order (they may replace outputs).
  TensorList Call(TensorList inputs);
  /// Call for one input and one output.
  Tensor Forward(const Tensor& input);

  /// E.g. "Linear"; what parallel styles ask for.
  virtual const char* type_name() const = 0;

  const std::vector<std::pair<std::string, Module*>>& children() const {
    return children_;
  }
  /// This module's own parameters, not its children's.
  const std::vector<std::pair<std::string, std::shared_ptr<Parameter>>>&
  own_parameters() const {
    return parameters_;
  }
  /// This module and all below, depth first, left to right (".modules()").
  std::vector<NamedModule> NamedModules();
  /// Every parameter once, in traversal order, named from this module; sets
  /// Parameter::name of those that have none yet.
  std::vector<NamedParameter> NamedParameters();
  std::vector<Parameter*> Parameters();

  /// Gives memory to every deferred parameter (storages shared by several
  /// parameters once) and fills it by its initializer. Each rank makes only its
  /// own elements; the values are equal on every mesh.
  /// \error kFailedPrecondition naming a parameter that cannot be filled.
  absl::Status Materialize(const MaterializeOptions& options);

  /// \returns an id for RemoveHook. `first`: before the hooks that are there.
  int AddPreHook(PreHook hook, bool first = false);
  int AddPostHook(PostHook hook, bool first = false);
  void RemoveHook(int id);

  /// The runtime state under `key` ("fsdp"); null if none.
  Attachment* attachment(const std::string& key) const;
  void Attach(const std::string& key, std::shared_ptr<Attachment> attachment);

 protected:
  virtual TensorList ForwardImpl(TensorSpan inputs) = 0;

  void RegisterModule(std::string name, Module& module);
  void RegisterParameter(std::string name,
                         std::shared_ptr<Parameter> parameter);

 private:
  template <typename F>
  struct Hook {
    int id;
    F run;
  };

  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> parameters_;
  std::vector<Hook<PreHook>> pre_hooks_;
  std::vector<Hook<PostHook>> post_hooks_;
  int next_hook_id_ = 0;
  std::map<std::string, std::shared_ptr<Attachment>> attachments_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MODULE_H_
