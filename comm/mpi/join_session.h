// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_JOIN_SESSION_H_
#define CROSSHATCH_COMM_MPI_JOIN_SESSION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace crosshatch::internal {

/// What a process that no mpirun started needs beside MPI: a directory for
/// MPI's files, and one process of the job Open MPI's ompi-server, by which all
/// connect to one another. A child of this process, a shell, runs the server
/// and removes the directory when the session ends, or the process, however
/// that ends.
class JoinSession {
 public:
  /// \param serve whether to start ompi-server.
  /// \error kUnavailable if it does not start within `timeout`, with what it
  ///     said; kNotFound without Open MPI's programs.
  static absl::StatusOr<JoinSession> Start(bool serve, absl::Duration timeout);

  JoinSession(JoinSession&& other) noexcept;
  JoinSession& operator=(JoinSession&&) = delete;
  ~JoinSession();

  const std::string& directory() const { return directory_; }
  /// What processes are to have in OMPI_MCA_pmix_server_uri before MPI starts;
  /// empty without a server.
  const std::string& uri() const { return uri_; }

 private:
  JoinSession(int life, std::string directory);

  /// The pipe that the shell reads; its end is the end of the session.
  int life_;
  std::string directory_;
  std::string uri_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_JOIN_SESSION_H_
