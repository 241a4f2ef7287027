// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_MODULE_LIST_H_
#define CROSSHATCH_NN_LAYERS_MODULE_LIST_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

/// Modules of one type, named "0", "1", ..., which the owner of the list calls.
///
///     ModuleList<Block>& blocks_ = Make<ModuleList<Block>>("blocks");
///     for (int i = 0; i < layers; ++i) blocks_.Add(config);
///     for (Block& block : blocks_) x = block.Forward(x);
template <typename M = Module>
class ModuleList final : public Module {
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

  const char* type_name() const override { return "ModuleList"; }

  /// Makes a D, which is an M, of `args` and adds it at the end.
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
  Iterator begin() const { return Iterator(modules_.data()); }
  Iterator end() const { return Iterator(modules_.data() + modules_.size()); }

 protected:
  TensorList ForwardImpl(TensorSpan /*inputs*/) override {
    CH_CHECK(false) << "a ModuleList is not called: its modules are, or use a "
                       "Sequential";
    return {};
  }

 private:
  std::vector<M*> modules_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_MODULE_LIST_H_
