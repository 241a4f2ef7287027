// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/ucx/ucx_api.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace crosshatch::internal {
namespace {

constexpr char kLibrary[] = "libucp.so.0";

/// Settings that UCX only reads from the environment.
constexpr const char* kVariables[][2] = {
    {"UCX_LOG_FILE", "stderr"},
    // Errors are returned as statuses. The coordinator reports lost peers.
    {"UCX_LOG_LEVEL", "fatal"},
    {"UCX_HANDLE_ERRORS", "none"},
#if defined(__SANITIZE_THREAD__)
    // UCX would patch functions that the sanitizer has replaced.
    {"UCX_MEM_EVENTS", "n"},
#endif
    // UCX needs this to use shared memory with endpoints that report errors.
    {"UCX_MM_ERROR_HANDLING", "y"},
    {"UCX_CMA_MEMORY_INVALIDATE", "y"},
    // Connecting to an unreachable host must not block.
    {"UCX_TCP_CONN_NB", "y"},
    // The coordinator finds dead processes.
    {"UCX_TCP_KEEPIDLE", "inf"},
    // Larger than UCX's own: half the time of large messages.
    {"UCX_TCP_TX_SEG_SIZE", "256k"},
    {"UCX_TCP_RX_SEG_SIZE", "256k"}};

absl::StatusOr<UcxApi> Load() {
  for (const auto& [name, value] : kVariables) {
    setenv(name, value, /*overwrite=*/0);
  }
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("UCX is not installed (Debian: libucx0), or use mpirun "
                     "and --transport=mpi: ",
                     dlerror()));
  }
  UcxApi api;
  const char* missing = nullptr;
#define CH_UCX_FIND(name)                                                 \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #name)); \
  if (api.name == nullptr) missing = #name;
  CH_UCX_FUNCTIONS(CH_UCX_FIND)
#undef CH_UCX_FIND
  if (missing != nullptr) {
    return absl::NotFoundError(absl::StrCat(kLibrary, " has no ", missing,
                                            ": UCX 1.11 or later is needed"));
  }
  return api;
}

}  // namespace

absl::StatusOr<const UcxApi*> LoadUcx() {
  static const auto* const loaded = new absl::StatusOr<UcxApi>(Load());
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

}  // namespace crosshatch::internal
