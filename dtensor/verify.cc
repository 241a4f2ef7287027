// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/verify.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch {
namespace {

// Exchanges a text with every rank of the mesh. Returns the texts in the order
// of mesh.layout().ranks().
absl::StatusOr<std::vector<std::string>> ExchangeOnMesh(const DeviceMesh& mesh,
                                                        std::string blob,
                                                        const char* label) {
  CH_ASSIGN_OR_RETURN(Communicator * group, MeshCommunicator(mesh));
  return group->Exchange(std::move(blob), label);
}

// Returns what is wrong with this rank's part; empty if nothing is.
std::string Complaint(const Tensor& local, const DeviceMesh& mesh,
                      const Layout& layout, ShapeView sizes,
                      const Layout& grad_layout) {
  for (const Layout* l : {&layout, &grad_layout}) {
    if (l->mesh() != mesh.layout()) {
      return absl::StrCat("layout ", l->ToString(), " is on ",
                          l->mesh().ToString(), ", the mesh is ",
                          mesh.ToString());
    }
    if (l->ndim() != static_cast<int>(sizes.size())) {
      return absl::StrCat("layout ", l->ToString(), " is for ", l->ndim(),
                          " dims, the sizes are ", ToString(sizes));
    }
  }
  if (local.is_distributed()) {
    return absl::StrCat(local.Describe(), " is distributed already");
  }
  const Shape expected = layout.LocalShape(sizes, *mesh.coordinate());
  if (local.sizes() == expected) return "";
  return absl::StrCat("its part is ", ToString(local.sizes()),
                      ", the shard of ", ToString(sizes), " by ",
                      layout.ToString(), " is ", ToString(expected), " there");
}

}  // namespace

absl::Status VerifyReplicas(const Tensor& t) {
  return CompareReplicas("VerifyReplicas", LocalTensor(t), MeshOf(t),
                         LayoutOf(t), t.sizes());
}

absl::StatusOr<Tensor> VerifiedFromLocal(const Tensor& local,
                                         const DeviceMesh& mesh,
                                         const Layout& layout, ShapeView sizes,
                                         const Layout& grad_layout) {
  const std::string wrong = Complaint(local, mesh, layout, sizes, grad_layout);
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> said,
      ExchangeOnMesh(
          mesh,
          wrong.empty()
              ? absl::StrCat(Name(local.dtype()), ToString(sizes), " as ",
                             layout.ToStringByDim(), ", gradient ",
                             grad_layout.ToStringByDim())
              : "!" + wrong,
          "VerifiedFromLocal"));
  const auto ranks = mesh.layout().ranks();
  for (int i = 0; i < mesh.size(); ++i) {
    if (said[i][0] == '!') {
      return absl::InvalidArgumentError(absl::StrCat(
          "VerifiedFromLocal: on rank ", ranks[i], ": ", said[i].substr(1)));
    }
  }
  for (int i = 1; i < mesh.size(); ++i) {
    if (said[i] != said[0]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "VerifiedFromLocal: ranks describe different tensors: rank ",
          ranks[0], " gives ", said[0], ", rank ", ranks[i], " gives ",
          said[i]));
    }
  }
  Tensor t = FromLocal(local, mesh, layout, sizes, grad_layout);
  CH_RETURN_IF_ERROR(VerifyReplicas(t));
  return t;
}

}  // namespace crosshatch
