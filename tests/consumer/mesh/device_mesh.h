// SPDX-License-Identifier: Apache-2.0
#ifndef CONSUMER_MESH_DEVICE_MESH_H_
#define CONSUMER_MESH_DEVICE_MESH_H_

namespace consumer {

// A mesh in this project's sense: triangles on a device's surface.
struct DeviceMesh {
  int triangles = 0;
};

}  // namespace consumer

#endif  // CONSUMER_MESH_DEVICE_MESH_H_
