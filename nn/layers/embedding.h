// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_EMBEDDING_H_
#define CROSSHATCH_NN_LAYERS_EMBEDDING_H_

#include <cstdint>
#include <memory>

#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

struct EmbeddingOptions {
  int64_t rows = 0;  ///< Of the table, e.g. tokens of a vocabulary.
  int64_t dim = 0;   ///< Of a row.
  /// Of the table's normal distribution.
  double stddev = 0.02;
};

/// Rows of a table by index: ids [...] (i32, i64 or u16) to [..., dim].
class Embedding final : public Module {
 public:
  using Options = EmbeddingOptions;

  /// \checks that options.rows and options.dim are above 0.
  explicit Embedding(const EmbeddingOptions& options);
  /// \param stddev of the table's normal distribution.
  Embedding(int64_t num_embeddings, int64_t dim, double stddev = 0.02);

  /// [num_embeddings, dim]
  const std::shared_ptr<Parameter>& weight() const { return weight_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  std::shared_ptr<Parameter> weight_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_EMBEDDING_H_
