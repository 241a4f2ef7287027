// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_RUNNING_NODE_H_
#define CROSSHATCH_TENSOR_RUNNING_NODE_H_

/// \file
/// Where the backward pass is: for tools that say what a rank does, and where.

namespace crosshatch {

class Node;

/// The node that the calling rank's Backward runs now, hooks included; of
/// nested ones the innermost. Null where none runs.
const Node* RunningNode();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_RUNNING_NODE_H_
