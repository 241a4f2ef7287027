// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/this_machine.h"

#include <limits.h>
#include <unistd.h>

#include <fstream>

namespace crosshatch {

std::string ThisMachine() {
  char name[HOST_NAME_MAX + 1] = "?";
  gethostname(name, sizeof name - 1);
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return std::string(name) + "\n" + id;
}

}  // namespace crosshatch
