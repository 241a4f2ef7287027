// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_MPI_STATUS_H_
#define CROSSHATCH_COMM_MPI_MPI_STATUS_H_

#include "absl/status/status.h"

namespace crosshatch::internal {

/// \param code what an MPI function returned.
/// \param call which, for the message, e.g. "MPI_Isend to rank 3".
/// \error kInternal with the library's own words.
absl::Status MpiStatus(int code, const char* call);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_MPI_STATUS_H_
