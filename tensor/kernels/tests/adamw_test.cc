// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using kernel_test::ExpectWithin;
using kernel_test::Gamma;
using kernel_test::Kernels;
using kernel_test::Operand;
using kernel_test::Random;
using kernel_test::Real;
using kernel_test::Reals;

void TestAdamW(int64_t count, double beta1, bool scaled) {
  Random random(static_cast<uint64_t>(count));
  Operand param(DType::kFloat32, {count}), grad(DType::kFloat32, {count}),
      exp_avg(DType::kFloat32, {count}), exp_avg_sq(DType::kFloat32, {count});
  param.Fill(random, -1, 1);
  grad.Fill(random, -1, 1);
  exp_avg.Fill(random, -0.1, 0.1);
  exp_avg_sq.Fill(random, 0, 0.1);
  const float scale = 0.37f;
  const kernel_test::DeviceVector<float> scale_of_gradients = {scale};
  AdamWArgs args;
  args.count = count;
  args.param = static_cast<float*>(param.data());
  args.grad = static_cast<const float*>(grad.data());
  args.exp_avg = static_cast<float*>(exp_avg.data());
  args.exp_avg_sq = static_cast<float*>(exp_avg_sq.data());
  args.lr = 3e-3;
  args.beta1 = beta1;
  args.beta2 = 0.95;
  args.eps = 1e-8;
  args.weight_decay = 0.1;
  args.bias_correction1 = 1 - std::pow(beta1, 3);
  args.bias_correction2 = 1 - std::pow(0.95, 3);
  args.grad_scale = scaled ? scale_of_gradients.data() : nullptr;

  Reals p = param.Read(), m = exp_avg.Read(), v = exp_avg_sq.Read();
  const Reals g0 = grad.Read();
  Reals p_bound, m_bound, v_bound;
  for (size_t i = 0; i < p.size(); ++i) {
    const Real g = g0[i] * (scaled ? Real(scale) : Real(1));
    p_bound.push_back(Gamma(kFloat32, 3) * std::abs(p[i]));
    p[i] *= 1 - Real(args.lr) * Real(args.weight_decay);
    m_bound.push_back(Gamma(kFloat32, 5) * (std::abs(m[i]) + 2 * std::abs(g)));
    m[i] += (1 - Real(beta1)) * (g - m[i]);
    v[i] = Real(args.beta2) * v[i] + (1 - Real(args.beta2)) * g * g;
    v_bound.push_back(Gamma(kFloat32, 6) * v[i]);
    const Real root =
        std::sqrt(v[i]) / std::sqrt(Real(args.bias_correction2)) + args.eps;
    const Real step = Real(args.lr) / Real(args.bias_correction1);
    p[i] -= step * m[i] / root;
    p_bound.back() += Gamma(kFloat32, 16) * std::abs(step * m[i] / root) +
                      step / root * m_bound.back();
  }
  kernel_test::RunAllWays(
      {&param, &exp_avg, &exp_avg_sq},
      [&](KernelContext& context) { Kernels().adamw(args, context); }, "adamw");
  ExpectWithin(exp_avg.Read(), m, m_bound, kFloat32, "exp_avg");
  ExpectWithin(exp_avg_sq.Read(), v, v_bound, kFloat32, "exp_avg_sq");
  ExpectWithin(param.Read(), p, p_bound, kFloat32, "param");
}

TEST(AdamWTest, MatchesItsDefinition) {
  for (int64_t count : {0, 1, 2, 3, 5, 7, 13, 31, 64, 127, 40001}) {
    TestAdamW(count, 0.9, false);
    TestAdamW(count, 0.3, true);
  }
}

TEST(AdamWTest, SpansMayBeCutAnywhere) {
  for (int64_t cut : {0, 1, 3, 8, 50, 100}) {
    Random random(1);
    Operand whole(DType::kFloat32, {4, 100});
    whole.Fill(random, 0.125, 1);
    Operand cut_up(DType::kFloat32, {4, 100});
    cut_up.Set(whole.Read());
    KernelContext& context = kernel_test::Context();
    const auto update = [&](Operand& x, int64_t begin, int64_t end) {
      auto* data = static_cast<float*>(x.data());
      AdamWArgs args;
      args.count = end - begin;
      args.param = data + begin;
      args.grad = data + 100 + begin;
      args.exp_avg = data + 200 + begin;
      args.exp_avg_sq = data + 300 + begin;
      args.lr = 0.1;
      args.beta1 = 0.9;
      args.beta2 = 0.99;
      args.eps = 1e-8;
      Kernels().adamw(args, context);
    };
    update(whole, 0, 100);
    update(cut_up, 0, cut);
    update(cut_up, cut, 100);
    EXPECT_EQ(whole.bytes(), cut_up.bytes()) << cut;
  }
}

}  // namespace
}  // namespace crosshatch
