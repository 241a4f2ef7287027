// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_LINEAR_H_
#define CROSSHATCH_NN_LAYERS_LINEAR_H_

#include <cstdint>
#include <memory>

#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

struct LinearOptions {
  /// Features of the input and of the output. Only of Linear(options).
  int64_t in = 0;
  int64_t out = 0;
  bool bias = false;
  /// Of the normal distribution that the weight is filled from; the bias is
  /// filled with zeros.
  double stddev = 0.02;
  /// Features that stay together where parallelism splits the output or the
  /// input: the width of a head, so that heads stay whole.
  int64_t out_unit = 1;
  int64_t in_unit = 1;
  /// Not 0: where there are fewer units than ranks, and so ranks without one,
  /// units are cut into parts of so many features, which divide them, if that
  /// makes the largest share smaller.
  int64_t out_part = 0;
  int64_t in_part = 0;
  /// Not 0: so many units of another projection read those of the output, each
  /// of which is read by as many neighbours: the query heads, where this one
  /// gives keys or values. Where there are fewer units than ranks, tensor
  /// parallelism may then give several ranks copies of one (out_copies). Hooks
  /// and callers then see an output [..., ranks * out_unit]: what is added to
  /// it comes from a projection of the same out_unit and out_readers. The
  /// readers' projection names one reader as its out_part, that back as its
  /// in_part: else a rank's local outputs of both do not belong together.
  int64_t out_readers = 0;
};

/// y = x weight^T + bias: [..., in] to [..., out]. Where x and the weight are
/// of different dtypes it computes in the weight's and gives x's.
class Linear final : public Module {
 public:
  using Options = LinearOptions;

  /// \checks that options.in and options.out are above 0.
  explicit Linear(const LinearOptions& options);
  /// \checks that options.in and options.out are left out.
  Linear(int64_t in_features, int64_t out_features,
         const LinearOptions& options = {});
  /// With a weight [out, in] that another module has too (tied).
  explicit Linear(std::shared_ptr<Parameter> weight);

  const char* type_name() const override { return "Linear"; }

  /// [out, in]
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  /// [out]; null if there is none.
  const std::shared_ptr<Parameter>& bias() const { return bias_; }
  int64_t out_unit() const { return out_unit_; }
  int64_t in_unit() const { return in_unit_; }
  /// Those to split between `ranks`: the units, or their parts.
  int64_t out_unit(int ranks) const;
  int64_t in_unit(int ranks) const;
  /// Those of which a rank has its own, where what goes with them (the keys of
  /// query heads) has to be with them: parts where each rank then has as many
  /// and all of one unit, else whole units.
  int64_t own_out_unit(int ranks) const;
  int64_t own_in_unit(int ranks) const;
  /// How many neighbouring ranks hold a copy of each unit of the output: more
  /// than 1 where the ranks are a multiple of the units and divide the readers,
  /// so that a rank's readers read one unit.
  int out_copies(int ranks) const;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  void Init(int64_t in_features, int64_t out_features,
            const LinearOptions& options);

  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
  int64_t out_unit_ = 1;
  int64_t in_unit_ = 1;
  int64_t out_part_ = 0;
  int64_t in_part_ = 0;
  int64_t out_readers_ = 0;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_LINEAR_H_
