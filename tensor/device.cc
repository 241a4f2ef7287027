// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/device.h"

namespace crosshatch {

std::ostream& operator<<(std::ostream& out, Device device) {
  switch (device.kind()) {
    case Device::Kind::kCpu:
      return out << "cpu";
    case Device::Kind::kCuda:
      return out << "cuda:" << device.index();
    case Device::Kind::kMeta:
      return out << "meta";
  }
  return out << "unknown";
}

}  // namespace crosshatch
