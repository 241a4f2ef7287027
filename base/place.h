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
#include <utility>

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
  /// Of an op, and of a step of a backward pass, the op's name, which lives as
  /// long as the program; null where there is none.
  virtual const char* op_name() const { return nullptr; }

 protected:
  explicit Place(Kind kind) : around_(innermost_), kind_(kind) {
    innermost_ = this;
  }
  ~Place() { innermost_ = around_; }

 private:
  friend class AdoptedPlace;

  static constinit inline thread_local const Place* innermost_ = nullptr;

  const Place* const around_;
  const Kind kind_;
};

/// The module that runs on the calling thread; null outside of modules.
std::shared_ptr<const std::string> RunningModule();

/// In its scope the calling thread is where `place` is: a thread of another
/// one's, which waits for it meanwhile.
class AdoptedPlace {
 public:
  explicit AdoptedPlace(const Place* place)
      : previous_(std::exchange(Place::innermost_, place)) {}
  ~AdoptedPlace() { Place::innermost_ = previous_; }
  AdoptedPlace(const AdoptedPlace&) = delete;
  AdoptedPlace& operator=(const AdoptedPlace&) = delete;

 private:
  const Place* const previous_;
};

/// Where work was issued that another thread does later, when its issuer is
/// somewhere else. A value, which work takes along.
class IssuedPlace {
 public:
  IssuedPlace() = default;
  /// The module, the step of a backward pass and the op of the calling thread.
  /// \param in_words with the sizes of operands, which takes microseconds;
  ///     else names alone, which takes a walk of the chain.
  static IssuedPlace Here(bool in_words);

  /// "op matmul of f32[2, 7] on cpu, f32[6, 6]", "gradient of matmul, op mul";
  /// without the module; may be empty.
  std::string Describe() const;
  const std::shared_ptr<const std::string>& module() const { return module_; }

 private:
  std::shared_ptr<const std::string> module_;
  const char* gradient_ = nullptr;
  const char* op_ = nullptr;
  std::string words_;
};

/// Stands for it on the stack of the thread that does the work.
class IssuedPlaceScope final : public Place {
 public:
  /// \param issued outlives the scope.
  explicit IssuedPlaceScope(const IssuedPlace& issued)
      : Place(Kind::kOp), issued_(issued) {}

  std::string Describe() const override { return issued_.Describe(); }
  std::shared_ptr<const std::string> module() const override {
    return issued_.module();
  }

 private:
  const IssuedPlace& issued_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_PLACE_H_
