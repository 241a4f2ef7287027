// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/kernel_faults_testutil.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/tensor/kernels/cuda/cuda_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using emulation::BarrierPlace;
using emulation::KernelFault;
using emulation::KernelProbe;
using emulation::LastAccesses;
using kernel_test::Bytes;
using kernel_test::Operand;
using Outputs = KernelFaults::Outputs;

constexpr int kOrders = 20;
constexpr int kNever = -1;
constexpr int kEnded = kOrders;

// Returns whether a kernel emulates a library's. These are in files
// "..._emulated.cu".
bool IsOfALibrary(const std::string& kernel) {
  return kernel == "gemm" || kernel == "stable_sort";
}

internal::CudaKernelContext& Context() {
  return internal::CudaContextOf(kernel_test::Context());
}

// Returns the outputs after the call. Threads run in the order of their indices
// if `order` is 0, otherwise in a random order of that seed.
Outputs OutputsOf(const KernelCall& call, uint64_t order) {
  const auto stream = static_cast<cudaStream_t>(Context().stream);
  emulation::SetThreadOrder(stream, order);
  CH_CHECK_EQ(
      cudaMemsetAsync(Context().scratch, 0xFF, internal::kScratchBytes, stream),
      cudaSuccess);
  for (Operand* output : call.outputs) {
    output->set_bytes(Bytes(output->bytes().size(), std::byte{0xFF}));
  }
  for (Bytes* workspace : call.workspaces) {
    std::fill(workspace->begin(), workspace->end(), std::byte{0xFF});
  }
  kernel_test::Run(call.run);
  Outputs outputs;
  for (Operand* output : call.outputs) outputs.push_back(output->bytes());
  return outputs;
}

// Returns the thread order, below kOrders, in which the fault changes the
// outputs; or kNever; or kEnded if it ends the program. Runs in a forked
// process.
int Shows(const KernelCall& call, const Outputs& expected,
          const KernelFault& fault) {
  const pid_t child = fork();
  if (child == 0) {
    // The fault's error messages are not the test's.
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(0);
    for (int order = 0; order < kOrders; ++order) {
      const KernelProbe probe(fault);
      const Outputs outputs = OutputsOf(call, static_cast<uint64_t>(order));
      if (outputs != expected) _exit(order + 1);
    }
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) <= kOrders
             ? WEXITSTATUS(status) - 1
             : kEnded;
}

std::string TextOf(int shows) {
  if (shows == kNever) return "no difference";
  if (shows == kEnded) return "ends the program";
  return "found in order " + std::to_string(shows);
}

std::string TextOf(const BarrierPlace& barrier) {
  return std::filesystem::path(barrier.file).filename().string() + ":" +
         std::to_string(barrier.line);
}

// Calls take(file name, text) for all device code.
template <typename Take>
void ReadSources(const std::string& directory, Take take) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() != ".cu" && path.extension() != ".cuh") continue;
    std::ifstream file(path);
    take(path.filename().string(),
         std::string(std::istreambuf_iterator<char>(file), {}));
    ++files;
  }
  EXPECT_GT(files, 20) << "sources in " << directory;
}

// Returns quoted words that are the first of several arguments. A kernel's name
// is the first argument of its launch.
std::vector<std::string> FirstArguments(const std::string& text) {
  constexpr char kWord[] = "abcdefghijklmnopqrstuvwxyz_0123456789";
  std::vector<std::string> words;
  for (size_t at = text.find('('); at != std::string::npos;
       at = text.find('(', at + 1)) {
    const size_t quote = text.find_first_not_of(" \n", at + 1);
    if (quote == std::string::npos || text[quote] != '"') continue;
    const size_t end = text.find_first_not_of(kWord, quote + 1);
    if (end == std::string::npos || text.compare(end, 2, "\",") != 0) continue;
    words.push_back(text.substr(quote + 1, end - quote - 1));
  }
  return words;
}

}  // namespace

void KernelFaults::Inject(const KernelCall& call) {
  Outputs expected;
  std::set<BarrierPlace> barriers;
  std::map<std::string, LastAccesses> kernels;
  {
    const KernelProbe probe;
    expected = OutputsOf(call, 0);
    barriers = probe.barriers();
    kernels = probe.kernels();
  }
  EXPECT_FALSE(kernels.empty()) << call.name;
  EXPECT_EQ(OutputsOf(call, 1), expected) << call.name << " without a mistake";

  std::set<std::string> unused;
  for (const auto& [what, why] : call.harmless) unused.insert(what);
  const auto inject = [&](const std::string& kernel, const char* what,
                          KernelFault::Kind kind, int64_t number) {
    if (number < 0) return;
    const std::string mistake = kernel + what;
    const int shows = Shows(call, expected, {.kind = kind, .number = number});
    const auto known = call.harmless.find(mistake);
    std::cout << call.name << ": " << mistake << ": " << TextOf(shows);
    if (known != call.harmless.end()) std::cout << ", since " << known->second;
    std::cout << "\n";
    EXPECT_EQ(shows == kNever, known != call.harmless.end())
        << call.name << ": " << mistake;
    unused.erase(mistake);
  };
  for (const auto& [kernel, last] : kernels) {
    if (IsOfALibrary(kernel)) continue;
    EXPECT_TRUE(last.load >= 0 || last.store >= 0) << kernel;
    kernels_.insert(kernel);
    inject(kernel, " without its last load", KernelFault::Kind::kNoLoad,
           last.load);
    inject(kernel, " without its last store", KernelFault::Kind::kNoStore,
           last.store);
    inject(kernel, " with a store behind its last one",
           KernelFault::Kind::kOneStoreMore, last.store);
  }
  EXPECT_THAT(unused, testing::IsEmpty()) << call.name;

  for (const BarrierPlace& barrier : barriers) {
    bool& is_found = barriers_[TextOf(barrier)];
    if (is_found) continue;
    const int shows =
        Shows(call, expected,
              {.kind = KernelFault::Kind::kNoBarrier, .barrier = barrier});
    std::cout << call.name << ": without the barrier at " << TextOf(barrier)
              << ": " << TextOf(shows) << "\n";
    is_found = shows != kNever;
  }
}

void KernelFaults::ExpectAllInjected(
    const std::string& directory,
    const std::multiset<std::string>& harmless) const {
  std::set<std::string> launched;
  std::set<std::string> barriers;
  ReadSources(directory, [&](const std::string& name, const std::string& text) {
    for (const std::string& kernel : FirstArguments(text)) {
      if (!IsOfALibrary(kernel)) launched.insert(kernel);
    }
    int line = 1;
    for (size_t at = 0; at < text.size(); ++at) {
      if (text[at] == '\n') ++line;
      if (text.compare(at, 16, "__syncthreads();") == 0 ||
          text.compare(at, 19, "WaitForCopies<0>();") == 0) {
        barriers.insert(name + ":" + std::to_string(line));
      }
    }
  });
  EXPECT_EQ(kernels_, launched);
  std::set<std::string> injected;
  std::multiset<std::string> not_found;
  for (const auto& [barrier, is_found] : barriers_) {
    injected.insert(barrier);
    if (!is_found) not_found.insert(barrier.substr(0, barrier.find(':')));
  }
  EXPECT_EQ(injected, barriers);
  EXPECT_EQ(not_found, harmless) << "files of barriers that change nothing";
}

}  // namespace crosshatch
