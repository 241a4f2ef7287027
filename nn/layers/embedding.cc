// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/embedding.h"

#include <memory>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/ops/embedding.h"

namespace crosshatch::nn {

Embedding::Embedding(const EmbeddingOptions& options)
    : Embedding(options.rows, options.dim, options.stddev) {
  CH_CHECK(options.rows > 0 && options.dim > 0)
      << "embedding: EmbeddingOptions::rows " << options.rows << " and dim "
      << options.dim << " are above 0";
}

Embedding::Embedding(int64_t num_embeddings, int64_t dim, double stddev)
    : weight_(AddParameter("weight", {num_embeddings, dim},
                           init::Normal(stddev))) {}

TensorList Embedding::ForwardImpl(TensorSpan inputs) {
  CH_CHECK_EQ(inputs.size(), 1u) << "embedding";
  return {crosshatch::Embedding(inputs[0], weight_->Get())};
}

}  // namespace crosshatch::nn
