// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_ERROR_CONTEXT_H_
#define CROSSHATCH_BASE_ERROR_CONTEXT_H_

/// \file
/// ErrorContext: what a thread is doing, for the message of a failed check
/// (check.h). Ranks, modules, ops and nodes of a backward pass are links of a
/// chain on the stack while they run. A link costs a few stores; texts are made
/// only when a check fails.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace crosshatch {

/// One link of the calling thread's chain.
class ErrorContext {
 public:
  enum class Kind : uint8_t { kRank, kModule, kGradient, kOp };

  ErrorContext(const ErrorContext&) = delete;
  ErrorContext& operator=(const ErrorContext&) = delete;

  Kind kind() const { return kind_; }
  /// The link around this one; null at the end of the chain.
  const ErrorContext* around() const { return around_; }

  /// Returns the calling thread's innermost link, of any kind or of `kind`;
  /// null if there is none.
  static const ErrorContext* Innermost() { return innermost_; }
  static const ErrorContext* Innermost(Kind kind);

  /// Returns the innermost link of each kind as text, e.g. "rank 1, module
  /// layers.0.up (Linear), op matmul of f32[2, 7] on cpu, ..."; empty if there
  /// is none.
  static std::string DescribeCurrent();

  /// Returns what runs, with global sizes.
  virtual std::string Describe() const = 0;
  /// Returns the name of the module that runs, or to which the node of a
  /// backward pass belongs; null if there is none.
  virtual std::shared_ptr<const std::string> module() const { return nullptr; }
  /// Returns the name of the op that runs, or to which the node of a backward
  /// pass belongs. It has static storage; null if there is none.
  virtual const char* op_name() const { return nullptr; }

 protected:
  explicit ErrorContext(Kind kind) : around_(innermost_), kind_(kind) {
    innermost_ = this;
  }
  ~ErrorContext() { innermost_ = around_; }

 private:
  friend class AdoptedErrorContext;

  static constinit inline thread_local const ErrorContext* innermost_ = nullptr;

  const ErrorContext* const around_;
  const Kind kind_;
};

/// Returns the module that runs on the calling thread; null outside of modules.
std::shared_ptr<const std::string> RunningModule();

/// Gives the calling thread the chain of another thread, which waits for it
/// meanwhile.
class AdoptedErrorContext {
 public:
  explicit AdoptedErrorContext(const ErrorContext* context)
      : previous_(std::exchange(ErrorContext::innermost_, context)) {}
  ~AdoptedErrorContext() { ErrorContext::innermost_ = previous_; }
  AdoptedErrorContext(const AdoptedErrorContext&) = delete;
  AdoptedErrorContext& operator=(const AdoptedErrorContext&) = delete;

 private:
  const ErrorContext* const previous_;
};

/// The error context in which work was issued that another thread does later. A
/// value, stored with the work.
class IssuedErrorContext {
 public:
  IssuedErrorContext() = default;
  /// Returns the module, node of a backward pass and op of the calling thread.
  /// \param in_words also formats the sizes of operands, which takes
  ///     microseconds; otherwise only names are kept.
  static IssuedErrorContext Capture(bool in_words);
  /// Returns "op matmul of f32[2, 7] on cpu, f32[6, 6]" or "gradient of matmul,
  /// op mul", without the module; may be empty.
  std::string Describe() const;
  const std::shared_ptr<const std::string>& module() const { return module_; }

 private:
  std::shared_ptr<const std::string> module_;
  const char* gradient_ = nullptr;
  const char* op_ = nullptr;
  std::string words_;
};

/// The link for issued work on the thread that does it.
class IssuedErrorContextScope final : public ErrorContext {
 public:
  /// \param issued outlives the scope.
  explicit IssuedErrorContextScope(const IssuedErrorContext& issued)
      : ErrorContext(Kind::kOp), issued_(issued) {}

  std::string Describe() const override { return issued_.Describe(); }
  std::shared_ptr<const std::string> module() const override {
    return issued_.module();
  }

 private:
  const IssuedErrorContext& issued_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_ERROR_CONTEXT_H_
