// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/parameter_kinds.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/dtensor/dtensor.h"

namespace crosshatch::examples {
namespace {

// Returns the kind of a name: "layers.3.mlp.up_proj.weight" gives
// "layers.*.mlp.up_proj.weight".
std::string KindOf(const std::string& name) {
  std::vector<std::string> parts = absl::StrSplit(name, '.');
  for (std::string& part : parts) {
    int number = 0;
    if (absl::SimpleAtoi(part, &number)) part.assign(1, '*');
  }
  return absl::StrJoin(parts, ".");
}

std::string LayoutText(const Tensor& tensor) {
  return tensor.is_distributed() ? LayoutOf(tensor).ToString() : "plain";
}

}  // namespace

std::vector<ParameterKind> ParameterKinds(nn::Module& model) {
  std::vector<ParameterKind> kinds;
  for (const nn::NamedParameter& named : model.NamedParameters()) {
    const Tensor& data = named.parameter->data();
    const std::string name = KindOf(named.name);
    const std::string layout = LayoutText(data);
    auto kind =
        std::find_if(kinds.begin(), kinds.end(), [&](const ParameterKind& k) {
          return k.name == name && k.layout == layout &&
                 k.sizes == data.sizes();
        });
    if (kind == kinds.end()) {
      kind = kinds.insert(
          kind, {name, layout, Shape(data.sizes()), 0, named.parameter});
    }
    ++kind->count;
  }
  return kinds;
}

}  // namespace crosshatch::examples
