// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/nn/batch_rows.h"
#include "crosshatch/tensor/recompute.h"

namespace crosshatch::nn {
namespace {

std::string Join(const std::string& prefix, const std::string& name) {
  if (prefix.empty()) return name;
  if (name.empty()) return prefix;
  return absl::StrCat(prefix, ".", name);
}

// Returns the name of the module's class without namespaces and arguments of
// templates.
std::string ClassOf(const Module& module) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(typeid(module).name(), nullptr, nullptr, &status),
      &std::free);
  CH_CHECK_EQ(status, 0) << typeid(module).name();
  std::string name = demangled.get();
  if (name.back() == '>') {
    int depth = 0;
    size_t at = name.size();
    do {
      depth += name[--at] == '>' ? 1 : name[at] == '<' ? -1 : 0;
    } while (depth > 0 && at > 0);
    // An argument such as &T::operator-> has a bracket that nothing opens.
    if (depth == 0) name.resize(at);
  }
  const size_t colon = name.rfind(':');
  return colon == std::string::npos ? name : name.substr(colon + 1);
}

void Collect(const std::string& prefix, Module& module,
             absl::flat_hash_set<const Module*>& seen,
             std::vector<NamedModule>& modules) {
  if (!seen.insert(&module).second) return;
  modules.push_back({prefix, &module});
  for (const auto& [name, child] : module.children()) {
    Collect(Join(prefix, name), *child, seen, modules);
  }
}

void VisitBelow(Module& module, absl::flat_hash_set<const Module*>& seen,
                absl::FunctionRef<void(Module&)> f) {
  if (!seen.insert(&module).second) return;
  for (const auto& [name, child] : module.children()) {
    VisitBelow(*child, seen, f);
  }
  f(module);
}

/// Collects `own` of each module once, with names relative to `module`.
template <typename Named, typename Own>
std::vector<Named> CollectNamed(Module& module, Own own) {
  std::vector<Named> all;
  absl::flat_hash_set<const Parameter*> seen;
  for (const NamedModule& at : module.NamedModules()) {
    for (const auto& [name, entry] : (at.module->*own)()) {
      if (!seen.insert(entry.get()).second) continue;
      all.push_back({Join(at.name, name), entry.get()});
    }
  }
  return all;
}

template <typename Named>
Parameter& EntryOf(const Named& named) {
  const auto& [name, entry] = named;
  return *entry;
}

template <typename Named, typename Own>
bool AllHaveNames(Module& module, Own own) {
  const std::vector<Named> all = CollectNamed<Named>(module, own);
  return std::all_of(all.begin(), all.end(), [](const Named& named) {
    return !EntryOf(named).name().empty();
  });
}

template <typename Named, typename Own>
void NameAll(Module& root, Own own) {
  for (const Named& named : CollectNamed<Named>(root, own)) {
    Parameter& entry = EntryOf(named);
    if (entry.name().empty()) entry.set_name(named.name);
  }
}

/// Names all parameters and buffers of the tree, if one below `module` has no
/// name. Names start at the root, so a tied parameter has one name independent
/// of the first query.
void NameTree(Module& module) {
  if (AllHaveNames<NamedParameter>(module, &Module::own_parameters) &&
      AllHaveNames<NamedBuffer>(module, &Module::own_buffers)) {
    return;
  }
  Module& root = RootOf(module);
  NameAll<NamedParameter>(root, &Module::own_parameters);
  NameAll<NamedBuffer>(root, &Module::own_buffers);
}

/// Clears names below `module` when it gets a parent. A parameter with values
/// keeps the name that its values were drawn by.
void ForgetNames(Module& module) {
  const auto forget = [](Parameter& entry) {
    if (!entry.has_memory()) entry.set_name({});
  };
  module.ForEachModule([&](Module& below) {
    for (const auto& own : below.own_parameters()) forget(*own.second);
    for (const auto& own : below.own_buffers()) forget(*own.second);
  });
}

}  // namespace

Module::~Module() {
  if (life_ != nullptr) life_->module = nullptr;
}

const std::shared_ptr<ModuleLife>& Module::OwnLife() {
  if (life_ == nullptr) {
    life_ = std::make_shared<ModuleLife>(ModuleLife{.module = this});
  }
  return life_;
}

std::shared_ptr<const ModuleLife> Module::life() {
  OwnLife()->label = label();
  return life_;
}

class Module::Running final : public ErrorContext {
 public:
  Running(const Module& module, const TensorList& inputs)
      : ErrorContext(Kind::kModule), module_(module), inputs_(inputs) {
    if (module.row_count_ == nullptr || InRecomputation()) return;
    row_count_ = module.row_count_;
    row_count_->ForwardBegins(module);
  }
  ~Running() {
    if (row_count_ != nullptr) row_count_->ForwardEnds();
  }

  std::string Describe() const override {
    return absl::StrCat("module ", *module_.label());
  }
  std::shared_ptr<const std::string> module() const override {
    return module_.label();
  }
  const Module& called() const { return module_; }
  const TensorList& inputs() const { return inputs_; }
  bool is_outermost() const {
    for (const ErrorContext* context = around(); context != nullptr;
         context = context->around()) {
      if (context->kind() == Kind::kModule) return false;
    }
    return true;
  }

 private:
  const Module& module_;
  const TensorList& inputs_;
  std::shared_ptr<RowCount> row_count_;
};

const char* Module::type_name() const {
  if (type_name_.empty()) type_name_ = ClassOf(*this);
  return type_name_.c_str();
}

std::string Module::Construction::Describe() const {
  return absl::StrCat("construction of module \"", name_, "\" of ",
                      parent_.type_name());
}

const Module* Module::Innermost() {
  const ErrorContext* const context =
      ErrorContext::Innermost(ErrorContext::Kind::kModule);
  if (context == nullptr) return nullptr;
  return &static_cast<const Running*>(context)->called();
}

TensorSpan Module::OutermostInputs() {
  const ErrorContext* outermost = nullptr;
  for (const ErrorContext* context = ErrorContext::Innermost();
       context != nullptr; context = context->around()) {
    if (context->kind() == ErrorContext::Kind::kModule) outermost = context;
  }
  if (outermost == nullptr) return {};
  return static_cast<const Running*>(outermost)->inputs();
}

const std::shared_ptr<const std::string>& Module::label() const {
  if (label_ == nullptr) {
    const std::string name = FullName();
    label_ = std::make_shared<const std::string>(
        name.empty() ? type_name()
                     : absl::StrCat(name, " (", type_name(), ")"));
  }
  return label_;
}

void Module::ForgetLabels() {
  label_ = nullptr;
  for (const auto& [name, child] : children_) child->ForgetLabels();
}

TensorList Module::Call(TensorList inputs) {
  const Running running(*this, inputs);
  // A call runs the hooks that exist when it starts.
  if (!pre_hooks_.empty()) {
    const HookList<PreHook> hooks = pre_hooks_;
    for (const Hook<PreHook>& hook : hooks) (*hook.run)(*this, inputs);
  }
  TensorList outputs = forward_wrapper_ == nullptr
                           ? ForwardImpl(inputs)
                           : forward_wrapper_(inputs, [this](TensorSpan in) {
                               return ForwardImpl(in);
                             });
  if (!post_hooks_.empty()) {
    const HookList<PostHook> hooks = post_hooks_;
    for (const Hook<PostHook>& hook : hooks) {
      (*hook.run)(*this, inputs, outputs);
    }
  }
  if (running.is_outermost()) CompareTakenInputs();
  return outputs;
}

Tensor Module::Forward(const Tensor& input) {
  TensorList outputs = Call({input});
  CH_CHECK(outputs.size() == 1)
      << "Forward of " << *label() << ": its ForwardImpl gives "
      << outputs.size() << " outputs, and Forward returns the one of a module "
      << "that gives one; use Call, which returns them all";
  return std::move(outputs[0]);
}

std::string Module::FullName() const {
  return parent() == nullptr ? std::string()
                             : Join(parent()->FullName(), name_in_parent_);
}

std::vector<NamedModule> Module::NamedModules() {
  std::vector<NamedModule> modules;
  absl::flat_hash_set<const Module*> seen;
  Collect("", *this, seen, modules);
  return modules;
}

std::vector<NamedParameter> Module::NamedParameters() {
  NameTree(*this);
  return CollectNamed<NamedParameter>(*this, &Module::own_parameters);
}

std::vector<NamedBuffer> Module::NamedBuffers() {
  NameTree(*this);
  return CollectNamed<NamedBuffer>(*this, &Module::own_buffers);
}

std::vector<Parameter*> Module::Parameters() {
  std::vector<Parameter*> parameters;
  for (const NamedParameter& entry : NamedParameters()) {
    parameters.push_back(entry.parameter);
  }
  return parameters;
}

void Module::ForEachModule(absl::FunctionRef<void(Module&)> f) {
  absl::flat_hash_set<const Module*> seen;
  VisitBelow(*this, seen, f);
}

bool Module::training() const { return Captured(training_); }

void Module::set_training(bool training) {
  ForEachModule([training](Module& module) { module.training_ = training; });
}

void Module::set_dtype(DType dtype) {
  for (const NamedParameter& named : NamedParameters()) {
    if (!IsFloatingPoint(named.parameter->data().dtype())) continue;
    named.parameter->set_dtype(dtype);
  }
  for (const NamedBuffer& named : NamedBuffers()) {
    if (!IsFloatingPoint(named.buffer->data().dtype())) continue;
    named.buffer->set_dtype(dtype);
  }
}

absl::Status Module::Materialize(const MaterializeOptions& options) {
  std::vector<Parameter*> all = Parameters();
  for (const NamedBuffer& named : NamedBuffers()) all.push_back(named.buffer);
  return nn::Materialize(all, options);
}

template <typename F>
int Module::AddHook(HookList<F>& hooks, F hook, bool first) {
  const int id = next_hook_id_++;
  hooks.insert(first ? hooks.begin() : hooks.end(),
               {id, std::make_shared<F>(std::move(hook))});
  return id;
}

int Module::AddPreHook(PreHook hook, bool first) {
  return AddHook(pre_hooks_, std::move(hook), first);
}

int Module::AddPostHook(PostHook hook, bool first) {
  return AddHook(post_hooks_, std::move(hook), first);
}

void Module::RemoveHook(int id) {
  const auto remove = [id](auto& hooks) {
    hooks.erase(std::remove_if(hooks.begin(), hooks.end(),
                               [id](const auto& h) { return h.id == id; }),
                hooks.end());
  };
  remove(pre_hooks_);
  remove(post_hooks_);
}

void Module::AddForwardWrapper(ForwardWrapper wrapper) {
  if (forward_wrapper_ == nullptr) {
    forward_wrapper_ = std::move(wrapper);
    return;
  }
  // Shared, because a recomputation keeps the function.
  forward_wrapper_ = [inner = std::make_shared<const ForwardWrapper>(
                          std::move(forward_wrapper_)),
                      outer = std::move(wrapper)](
                         TensorSpan inputs, const ForwardFunction& forward) {
    return outer(inputs, [inner, forward](TensorSpan in) {
      return (*inner)(in, forward);
    });
  };
}

Attachment* Module::attachment(const std::string& key) const {
  const auto found = attachments_.find(key);
  return found == attachments_.end() ? nullptr : found->second.get();
}

bool Module::splits_batch() const {
  for (const auto& [key, attachment] : attachments_) {
    if (attachment->splits_batch()) return true;
  }
  return false;
}

void Module::Attach(const std::string& key,
                    std::shared_ptr<Attachment> attachment) {
  if (attachment == nullptr) {
    attachments_.erase(key);
  } else {
    attachments_[key] = std::move(attachment);
  }
}

void Module::RegisterModule(std::string name, Module& module) {
  CH_CHECK(!name.empty()) << "a child of module " << *label() << " has no name";
  for (const auto& [taken, child] : children_) {
    CH_CHECK(taken != name)
        << "module " << *label() << " has two children named \"" << name
        << "\", of the types " << child->type_name() << " and "
        << module.type_name() << "; give each child a name of its own";
  }
  for (const NamedModule& below : module.NamedModules()) {
    CH_CHECK(below.module != this)
        << *label() << " cannot have the child \"" << name << "\", which is "
        << (below.name.empty()
                ? std::string("the module itself")
                : absl::StrCat(*module.label(), " and has it as \"", below.name,
                               "\""))
        << ": modules are a tree, without a way back";
  }
  ForgetNames(module);
  if (module.parent() == nullptr) {
    module.parent_ = OwnLife();
    module.name_in_parent_ = name;
    module.ForgetLabels();
  }
  children_.emplace_back(std::move(name), &module);
}

void Module::CheckFree(const std::string& name) const {
  CH_CHECK(!name.empty()) << "a parameter or buffer of module " << *label()
                          << " has no name";
  const auto is_it = [&](const auto& entry) { return entry.first == name; };
  CH_CHECK(std::none_of(parameters_.begin(), parameters_.end(), is_it))
      << "module " << *label() << " has a parameter named \"" << name
      << "\" already; give each parameter and buffer a name of its own";
  CH_CHECK(std::none_of(buffers_.begin(), buffers_.end(), is_it))
      << "module " << *label() << " has a buffer named \"" << name
      << "\" already; give each parameter and buffer a name of its own";
}

void Module::RegisterParameter(std::string name,
                               std::shared_ptr<Parameter> parameter) {
  CH_CHECK(parameter != nullptr) << "no parameter for the name " << name;
  CheckFree(name);
  parameters_.emplace_back(std::move(name), std::move(parameter));
}

void Module::RegisterBuffer(std::string name, std::shared_ptr<Buffer> buffer) {
  CH_CHECK(buffer != nullptr) << "no buffer for the name " << name;
  CheckFree(name);
  buffers_.emplace_back(std::move(name), std::move(buffer));
}

Module& Module::Own(std::string name, std::unique_ptr<Module> module) {
  CH_CHECK(module != nullptr) << "no module for the name " << name;
  owned_.push_back(std::move(module));
  RegisterModule(std::move(name), *owned_.back());
  return *owned_.back();
}

std::shared_ptr<Parameter> Module::AddParameter(std::string name,
                                                ShapeView sizes,
                                                Initializer initializer,
                                                DType dtype) {
  auto made = std::make_shared<Parameter>(sizes, dtype, std::move(initializer));
  RegisterParameter(std::move(name), made);
  return made;
}

Buffer& Module::MakeBuffer(std::string name, ShapeView sizes,
                           Initializer initializer, DType dtype,
                           bool persistent) {
  auto made = std::make_shared<Buffer>(sizes, dtype, std::move(initializer),
                                       persistent);
  RegisterBuffer(std::move(name), made);
  return *made;
}

namespace {

absl::Status CheckGuards(Module& module, const char* what,
                         absl::Status (StateGuard::*check)(const char*) const) {
  for (const NamedModule& named : module.NamedModules()) {
    const auto* guard = static_cast<const StateGuard*>(
        named.module->attachment(StateGuard::kKey));
    if (guard != nullptr) CH_RETURN_IF_ERROR((guard->*check)(what));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReadable(Module& module, const char* what) {
  return CheckGuards(module, what, &StateGuard::CheckReadable);
}

absl::Status CheckWritable(Module& module, const char* what) {
  return CheckGuards(module, what, &StateGuard::CheckWritable);
}

}  // namespace crosshatch::nn
