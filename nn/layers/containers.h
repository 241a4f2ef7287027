// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_CONTAINERS_H_
#define CROSSHATCH_NN_LAYERS_CONTAINERS_H_

/// \file
/// Modules that consist of a list of modules.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

/// Modules of one type, iterated by reference.
template <typename M>
class ModuleRange {
 public:
  class Iterator {
   public:
    explicit Iterator(M* const* at) : at_(at) {}
    M& operator*() const { return **at_; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    friend bool operator==(Iterator, Iterator) = default;

   private:
    M* const* at_;
  };

  explicit ModuleRange(const std::vector<M*>& modules) : modules_(modules) {}
  Iterator begin() const { return Iterator(modules_.data()); }
  Iterator end() const { return Iterator(modules_.data() + modules_.size()); }
  size_t size() const { return modules_.size(); }
  M& operator[](size_t i) const { return *modules_[i]; }

 private:
  const std::vector<M*>& modules_;
};

/// Modules of one type, named "0", "1", ..., which the owner of the list calls.
///
///     ModuleList<Block>& blocks_ = Make<ModuleList<Block>>("blocks");
///     for (int i = 0; i < layers; ++i) blocks_.Add(config);
///     for (Block& block : blocks_) x = block.Forward(x);
template <typename M = Module>
class ModuleList final : public Module {
 public:
  /// Creates a D, which is derived from M, from `args`, and appends it.
  template <typename D = M, typename... Args>
  D& Add(Args&&... args) {
    D& made = Make<D>(std::to_string(size()), std::forward<Args>(args)...);
    modules_.push_back(&made);
    return made;
  }
  /// Makes it from options by name: Add({.in = 16, .out = 64}).
  template <typename D = M>
  D& Add(const typename D::Options& options) {
    return Add<D, const typename D::Options&>(options);
  }

  size_t size() const { return modules_.size(); }
  /// \checks i < size()
  M& operator[](size_t i) const {
    CH_CHECK(i < size()) << "module " << i << " of the " << size() << " in "
                         << *label();
    return *modules_[i];
  }
  auto begin() const { return ModuleRange<M>(modules_).begin(); }
  auto end() const { return ModuleRange<M>(modules_).end(); }

 protected:
  TensorList ForwardImpl(TensorSpan /*inputs*/) override {
    CH_CHECK(false) << "a ModuleList is not called: its modules are, or use a "
                       "Sequential";
    return {};
  }

 private:
  std::vector<M*> modules_;
};

/// Modules one after the other, named "0", "1", ...: each gets all outputs of
/// the one before. Without modules it returns its inputs.
///
///     Sequential mlp;
///     mlp.Add<Linear>(16, 64);
///     mlp.Add<Gelu>();
///     mlp.Add<Linear>(64, 16);
class Sequential final : public Module {
 public:
  /// Makes an M of `args` and adds it at the end.
  template <typename M, typename... Args>
  M& Add(Args&&... args) {
    return Make<M>(std::to_string(size()), std::forward<Args>(args)...);
  }
  /// Makes it from options by name: Add<Linear>({.in = 16, .out = 64}).
  template <typename M>
  M& Add(const typename M::Options& options) {
    return Add<M, const typename M::Options&>(options);
  }

  size_t size() const { return children().size(); }
  /// \checks i < size()
  Module& operator[](size_t i) const {
    CH_CHECK(i < size()) << "module " << i << " of the " << size() << " in "
                         << *label();
    return *children()[i].second;
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    TensorList values(inputs.begin(), inputs.end());
    for (const auto& [name, module] : children()) {
      values = module->Call(std::move(values));
    }
    return values;
  }
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_CONTAINERS_H_
