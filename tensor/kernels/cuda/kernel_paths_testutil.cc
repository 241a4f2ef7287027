// SPDX-License-Identifier: Apache-2.0

/// \file
/// Linked to a program that tests kernels under emulation, lists the paths of
/// kernels that ran, or injects a fault into one of them, for
/// kernel_paths_test.py. A line names a path: "KERNEL load|store BYTES", KERNEL
/// being the address from the start of the program.
///
/// - $CROSSHATCH_KERNEL_PATHS: the file to write;
/// - $CROSSHATCH_KERNEL_FAULT: the path whose accesses are wrong.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "crosshatch/base/check.h"
#include "crosshatch/emulation/kernel_probe.h"

/// Of the linker: where the program is loaded.
extern "C" const char __executable_start;

namespace crosshatch {
namespace {

using emulation::KernelFault;
using emulation::KernelPath;
using emulation::KernelProbe;

uintptr_t Start() { return reinterpret_cast<uintptr_t>(&__executable_start); }

KernelFault FaultOf(const char* text) {
  if (text == nullptr) return {};
  std::istringstream words(text);
  uintptr_t kernel = 0;
  std::string access;
  KernelPath path;
  words >> kernel >> access >> path.bytes;
  CH_CHECK(!words.fail()) << text;
  path.kernel = Start() + kernel;
  path.is_store = access == "store";
  return {.kind = KernelFault::Kind::kWrongBits, .path = path};
}

class PathsOfProgram {
 public:
  PathsOfProgram(const char* file, const char* fault)
      : file_(file == nullptr ? "" : file), probe_(FaultOf(fault)) {}
  ~PathsOfProgram() {
    if (file_.empty()) return;
    std::ofstream file(file_);
    for (const KernelPath& path : probe_.paths()) {
      file << path.kernel - Start() << (path.is_store ? " store " : " load ")
           << path.bytes << "\n";
    }
  }

 private:
  const std::string file_;
  const KernelProbe probe_;
};

// Tests run kernels on the program's first thread.
const std::unique_ptr<const PathsOfProgram> paths = [] {
  const char* const file = std::getenv("CROSSHATCH_KERNEL_PATHS");
  const char* const fault = std::getenv("CROSSHATCH_KERNEL_FAULT");
  return file == nullptr && fault == nullptr
             ? nullptr
             : std::make_unique<const PathsOfProgram>(file, fault);
}();

}  // namespace
}  // namespace crosshatch
