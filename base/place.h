// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_PLACE_H_
#define CROSSHATCH_BASE_PLACE_H_

/// \file
/// Place: where in a program a thread is, so that a check that fails can say
/// it. Ranks, modules, ops and steps of a backward pass stand on the stack as
/// links of a chain while they run; a failed check walks it (check.h). A link
/// costs a few stores, and nothing is described before something fails.

#include <cstdint>
#include <memory>
#include <string>

namespace crosshatch {

class Place {
 public:
  enum class Kind : uint8_t { kRank, kModule, kGradient, kOp };

  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  Kind kind() const { return kind_; }
  /// The link around this one; null at the end of the chain.
  const Place* around() const { return around_; }

  /// The calling thread's; null where none runs.
  static const Place* Innermost() { return innermost_; }
  static const Place* Innermost(Kind kind);

  /// "rank 1, module layers.0.up (Linear), op matmul of f32[2, 7] on cpu, ...":
  /// the innermost of each kind; empty outside of all.
  static std::string Here();

  /// The same for every link of that kind: what runs, with global sizes.
  virtual std::string Describe() const = 0;
  /// Of a module, and of a step of a backward pass the module that it is of;
  /// null where there is none.
  virtual std::shared_ptr<const std::string> module() const { return nullptr; }

 protected:
  explicit Place(Kind kind) : around_(innermost_), kind_(kind) {
    innermost_ = this;
  }
  ~Place() { innermost_ = around_; }

 private:
  static constinit inline thread_local const Place* innermost_ = nullptr;

  const Place* const around_;
  const Kind kind_;
};

/// The module that runs on the calling thread; null outside of modules.
std::shared_ptr<const std::string> RunningModule();

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_PLACE_H_
