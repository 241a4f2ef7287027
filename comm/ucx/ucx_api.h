// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_UCX_UCX_API_H_
#define CROSSHATCH_COMM_UCX_UCX_API_H_

/// \file
/// UCX's functions. They are looked up when a job first needs them, and are not
/// linked, because UCX reads the environment and installs handlers of signals
/// when it is loaded: a program that does not use UCX keeps its own.

#include <ucp/api/ucp.h>

#include "absl/status/statusor.h"

#define CH_UCX_FUNCTIONS(FUNCTION)     \
  FUNCTION(ucp_cleanup)                \
  FUNCTION(ucp_config_modify)          \
  FUNCTION(ucp_config_read)            \
  FUNCTION(ucp_config_release)         \
  FUNCTION(ucp_ep_close_nbx)           \
  FUNCTION(ucp_ep_create)              \
  FUNCTION(ucp_get_version_string)     \
  FUNCTION(ucp_init_version)           \
  FUNCTION(ucp_request_cancel)         \
  FUNCTION(ucp_request_check_status)   \
  FUNCTION(ucp_request_free)           \
  FUNCTION(ucp_tag_msg_recv_nbx)       \
  FUNCTION(ucp_tag_probe_nb)           \
  FUNCTION(ucp_tag_recv_nbx)           \
  FUNCTION(ucp_tag_send_nbx)           \
  FUNCTION(ucp_tag_send_sync_nbx)      \
  FUNCTION(ucp_worker_arm)             \
  FUNCTION(ucp_worker_create)          \
  FUNCTION(ucp_worker_destroy)         \
  FUNCTION(ucp_worker_get_address)     \
  FUNCTION(ucp_worker_get_efd)         \
  FUNCTION(ucp_worker_progress)        \
  FUNCTION(ucp_worker_release_address) \
  FUNCTION(ucp_worker_signal)          \
  FUNCTION(ucs_status_string)

namespace crosshatch::internal {

struct UcxApi {
#define CH_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  CH_UCX_FUNCTIONS(CH_UCX_MEMBER)
#undef CH_UCX_MEMBER
};

/// Loads UCX on the first call. Sets those variables of the environment that
/// UCX reads while it is loaded, unless the user has set them: it logs to
/// stderr, only what ends the process, and leaves signals alone.
/// \error kNotFound without the library.
absl::StatusOr<const UcxApi*> LoadUcx();

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_UCX_UCX_API_H_
