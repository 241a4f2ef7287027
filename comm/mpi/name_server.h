// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_NAME_SERVER_H_
#define CROSSHATCH_COMM_MPI_NAME_SERVER_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace crosshatch::internal {

/// Open MPI's ompi-server as a child of this process: what processes that no
/// mpirun started need to connect to one another. It ends with the object, and
/// with the process however that ends; its files go with it.
class NameServer {
 public:
  /// \error kUnavailable if it does not start within `timeout`, with what it
  ///     said; kNotFound without Open MPI's programs.
  static absl::StatusOr<NameServer> Start(absl::Duration timeout);

  NameServer(NameServer&& other) noexcept;
  NameServer& operator=(NameServer&&) = delete;
  ~NameServer();

  /// What processes are to have in OMPI_MCA_pmix_server_uri before MPI starts.
  const std::string& uri() const { return uri_; }

 private:
  NameServer(pid_t child, std::string directory);

  pid_t child_;
  std::string directory_;
  std::string uri_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_NAME_SERVER_H_
