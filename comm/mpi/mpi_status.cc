// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/mpi_status.h"

#include <mpi.h>

#include "absl/strings/str_cat.h"

namespace crosshatch::internal {

absl::Status MpiStatus(int code, const char* call) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  return absl::InternalError(
      absl::StrCat(call, " failed with code ", code, ": ",
                   absl::string_view(text, static_cast<size_t>(length))));
}

}  // namespace crosshatch::internal
