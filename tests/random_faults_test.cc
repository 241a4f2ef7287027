// SPDX-License-Identifier: Apache-2.0

/// \file
/// Injects one fault at a random point of a random rank into training with FSDP
/// and tensor parallelism. Every rank must return without waiting for a
/// timeout, the job's error must name the rank, no lease may remain (checked by
/// the allocators), and the process must train again as before.
///
/// CROSSHATCH_FUZZ_SEED and CROSSHATCH_FUZZ_FAULTS select the faults and their
/// number.

#include <cstdint>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/faulty_engine_testutil.h"
#include "crosshatch/comm/run_rank.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using Axes = std::vector<MeshAxis>;

constexpr int kSteps = 2;
// Waited in full only for a rank that never arrives.
constexpr absl::Duration kTimeout = absl::Minutes(1);
// For a rank that never arrives. No rank of these models delays the others by
// as much, even on a busy machine.
constexpr absl::Duration kShortTimeout = absl::Seconds(5);

const std::vector<Axes>& Meshes() {
  static const auto* const meshes =
      new std::vector<Axes>{{{"fsdp", 2}},
                            {{"fsdp", 3}},
                            {{"fsdp", 2}, {"tp", 2}},
                            {{"replicate", 2}, {"fsdp", 2}},
                            {{"fsdp", 1}, {"tp", 3}},
                            {{"replicate", 2}, {"fsdp", 2}, {"tp", 2}}};
  return *meshes;
}

int RanksOf(const Axes& axes) { return MeshAxes(axes).ranks(); }

/// A fault on the rank's thread, between two parts of its program.
enum class HostFault {
  kNone,
  kReturn,
  kReturnError,
  kThrow,
  kAbortWorld,
  kAbortMesh,
  kAbortGroup,
  kPoison,
  kPoisonByKernel,
  kExtraCollective,
  kExtraExchange,
  // Faults without a point: the rank runs another program.
  kOtherMesh,
  kOtherModel,
  kOtherOptions,
  kFewerSteps,
  kMoreSteps,
  kThrowInModule,
  kErrorInModule,
};
constexpr int kNumHostFaults = 18;
const char* Name(HostFault fault) {
  static constexpr const char* kNames[kNumHostFaults] = {
      "no fault",           "return",
      "return an error",    "throw",
      "abort the world",    "abort the mesh",
      "abort a group",      "poison",
      "poison by a kernel", "extra collective",
      "extra exchange",     "another mesh",
      "another model",      "other options",
      "fewer steps",        "more steps",
      "throw in a module",  "poison in a module"};
  return kNames[static_cast<int>(fault)];
}

absl::Status Injected(HostFault fault) {
  return absl::UnavailableError(absl::StrCat("injected: ", Name(fault)));
}

struct Fault {
  int rank = -1;
  EngineFault engine;
  HostFault host = HostFault::kNone;
  /// The host fault occurs before this point of the program.
  int point = 0;
  /// Ranks continue after an error, as far as they can.
  bool goes_on = false;
  uint64_t adversarial_seed = 0;

  std::string Describe() const {
    return absl::StrCat("rank ", rank, ": ",
                        host == HostFault::kNone
                            ? absl::StrCat(Name(engine.kind), " in #",
                                           engine.index, " of ", engine.group)
                            : absl::StrCat(Name(host), " at point ", point),
                        goes_on ? ", goes on" : "", ", streams ",
                        adversarial_seed);
  }
};

/// One rank of the training.
class Program {
 public:
  Program(World& world, const Axes& axes, const Fault& fault)
      : world_(world), axes_(axes), fault_(fault) {
    if (fault.rank != world.rank()) fault_.host = HostFault::kNone;
  }

  absl::Status Run() {
    CH_ASSIGN_OR_RETURN(
        const DeviceMesh mesh,
        InitDeviceMesh(world_, fault_.host == HostFault::kOtherMesh
                                   ? Axes{{"other", RanksOf(axes_)}}
                                   : axes_));
    mesh_ = &mesh;
    const absl::Status status = Train();
    mesh_ = nullptr;
    return status == Injected(HostFault::kReturn) ? absl::OkStatus() : status;
  }

  /// Injection points passed so far.
  int points() const { return points_; }
  const std::vector<float>& losses() const { return losses_; }

 private:
  /// Runs between two parts of the program. If it returns an error, so must the
  /// rank.
  absl::Status Point() {
    if (points_++ != fault_.point) return absl::OkStatus();
    RankContext& context = world_.context();
    switch (fault_.host) {
      case HostFault::kReturn:  // See Run.
      case HostFault::kReturnError:
        return Injected(fault_.host);
      case HostFault::kThrow:
        throw std::runtime_error("injected: throw");
      case HostFault::kAbortWorld:
        world_.Abort(Injected(fault_.host));
        return absl::OkStatus();
      case HostFault::kAbortMesh:
        mesh_->Abort(Injected(fault_.host));
        return absl::OkStatus();
      case HostFault::kAbortGroup: {
        CH_ASSIGN_OR_RETURN(Communicator * group, Extra());
        group->Abort(Injected(fault_.host));
        return absl::OkStatus();
      }
      case HostFault::kPoison:
        context.Poison(Injected(fault_.host));
        return absl::OkStatus();
      case HostFault::kPoisonByKernel:
        context.compute_stream().Launch(
            [&context, error = Injected(fault_.host)](KernelContext&) {
              context.Poison(error);
            });
        return absl::OkStatus();
      case HostFault::kExtraCollective: {
        CH_ASSIGN_OR_RETURN(Communicator * group, Extra());
        return Barrier(*group, context.SideStream("extra"), "injected");
      }
      case HostFault::kExtraExchange: {
        CH_ASSIGN_OR_RETURN(Communicator * group, Extra());
        return group->Exchange("", "injected").status();
      }
      default:
        return absl::OkStatus();
    }
  }

  /// Creates a group of all ranks of the mesh that only the fault uses.
  absl::StatusOr<Communicator*> Extra() const {
    std::vector<int> all(static_cast<size_t>(mesh_->ndim()));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    return mesh_->communicator(all, "extra");
  }

  /// Returns whether the rank returns `status` now.
  bool Leaves(const absl::Status& status) const {
    return !status.ok() && !fault_.goes_on;
  }

  absl::Status Train();
  absl::Status Parallelize(nn::Llama& model);
  void InjectInModule(nn::Llama& model);
  absl::Status Step(nn::Llama& model, nn::AdamW& optimizer, int step);

  World& world_;
  const Axes axes_;
  Fault fault_;
  const DeviceMesh* mesh_ = nullptr;
  int part_ = 0;
  int points_ = 0;
  std::vector<float> losses_;
};

absl::Status Program::Parallelize(nn::Llama& model) {
  std::vector<std::string> data_axes;
  for (const std::string& axis : mesh_->axis_names()) {
    if (axis != "tp") data_axes.push_back(axis);
  }
  CH_ASSIGN_OR_RETURN(const DeviceMesh data, mesh_->Slice(data_axes));
  for (int i = 0; i < data.ndim(); ++i) {
    part_ = part_ * data.size(i) + *data.index(i);
  }
  fsdp::FullyShardOptions options;
  if (fault_.host == HostFault::kOtherOptions) {
    options.reshard_after_forward = false;
    options.mixed_precision.param_dtype = kBFloat16;
  }
  if (mesh_->axis_names().back() == "tp") {
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh_->Slice("tp"));
    CH_RETURN_IF_ERROR(
        tp::ParallelizeModule(model, tp, tp::LlamaPlan(model.config())));
    options.extension = DTensorExtensions::Create();
  }
  for (nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(fsdp::FullyShard(block, data, options));
  }
  return fsdp::FullyShard(model, data, options);
}

void Program::InjectInModule(nn::Llama& model) {
  int calls = 0;
  for (nn::Module& block : model.blocks()) {
    // Each block is called once per step; the point selects the step.
    block.AddPreHook(
        [this, call = calls++, seen = 0](nn::Module&, TensorList&) mutable {
          const int here = 2 * seen++ + call;
          if (here != fault_.point % 4) return;
          if (fault_.host == HostFault::kThrowInModule) {
            throw std::runtime_error("injected: throw in a module");
          }
          if (fault_.host == HostFault::kErrorInModule) {
            world_.context().Poison(Injected(fault_.host));
          }
        });
  }
}

absl::Status Program::Step(nn::Llama& model, nn::AdamW& optimizer, int step) {
  constexpr int64_t kRows = 2;
  constexpr int64_t kLength = 6;
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < kRows * kLength; ++i) {
    const int64_t at = (step * 16 + part_) * kRows * kLength + i;
    tokens.push_back(static_cast<int32_t>(at * 7 % 29));
    targets.push_back(static_cast<int32_t>((at + 1) * 7 % 29));
  }
  CH_RETURN_IF_ERROR(Point());
  const Tensor loss =
      CrossEntropy(model.Forward(FromValues<int32_t>({kRows, kLength}, tokens)),
                   FromValues<int32_t>({kRows, kLength}, targets));
  CH_RETURN_IF_ERROR(Point());
  absl::Status status = Backward(loss);
  if (Leaves(status)) return status;
  CH_RETURN_IF_ERROR(Point());
  status.Update(nn::ClipGradNorm(model.Parameters(), 1.0).status());
  if (Leaves(status)) return status;
  CH_RETURN_IF_ERROR(Point());
  status.Update(optimizer.Step());
  if (Leaves(status)) return status;
  optimizer.ZeroGrad();
  losses_.push_back(LocalTensor(loss).ToVector<float>()[0]);
  status.Update(world_.context().status());
  if (Leaves(status)) return status;
  return absl::OkStatus();
}

absl::Status Program::Train() {
  CH_RETURN_IF_ERROR(Point());
  nn::Llama model({.dim = 12,
                   .layers = fault_.host == HostFault::kOtherModel ? 3 : 2,
                   .heads = 3,
                   .ffn = 20,
                   .vocab = 29});
  CH_RETURN_IF_ERROR(Parallelize(model));
  InjectInModule(model);
  CH_RETURN_IF_ERROR(Point());
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
  CH_RETURN_IF_ERROR(Point());
  nn::AdamW optimizer(model.Parameters(), {.lr = 1e-2});
  int steps = kSteps;
  if (fault_.host == HostFault::kFewerSteps) --steps;
  if (fault_.host == HostFault::kMoreSteps) ++steps;
  for (int step = 0; step < steps; ++step) {
    CH_RETURN_IF_ERROR(Step(model, optimizer, step));
  }
  return world_.context().Synchronize();
}

/// The results of a run without faults, by rank.
struct Healthy {
  std::vector<std::vector<GroupTraffic>> traffic;
  std::vector<std::vector<float>> losses;
  int points = 0;
};

/// Runs the program on all ranks. `seen` may be null.
absl::Status Run(const Axes& axes, const Fault& fault, absl::Duration timeout,
                 Healthy* seen) {
  const int ranks = RanksOf(axes);
  Healthy found;
  found.traffic.resize(static_cast<size_t>(ranks));
  found.losses.resize(static_cast<size_t>(ranks));
  const absl::Status status = StatusOfRanks(
      ranks,
      [&](World& world) -> absl::Status {
        const auto rank = static_cast<size_t>(world.rank());
        FaultyEngine engine(
            world.control(), world.planes(), world.context(),
            world.rank() == fault.rank ? fault.engine : EngineFault{});
        World faulty(engine, engine, world.context());
        Program program(faulty, axes, fault);
        const absl::Status result =
            RunRank(faulty, [&](World&) { return program.Run(); });
        found.traffic[rank] = engine.traffic();
        found.losses[rank] = program.losses();
        if (rank == 0) found.points = program.points();
        return result;
      },
      {.timeout = timeout,
       .test = {.adversarial_seed = fault.adversarial_seed}});
  if (seen != nullptr) *seen = std::move(found);
  return status;
}

unsigned NumberFromEnvironment(const char* name, unsigned otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr
             ? otherwise
             : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

class RandomFaults {
 public:
  explicit RandomFaults(const Axes& axes) : axes_(axes) {
    const absl::Status status = Run(axes_, {}, kTimeout, &healthy_);
    EXPECT_TRUE(status.ok()) << status;
  }

  void InjectOne(uint64_t seed) {
    random_.seed(seed);
    const Fault fault = Choose();
    SCOPED_TRACE(fault.Describe());
    const bool never_comes =
        fault.engine.kind == EngineFault::Kind::kNeverComes;
    const absl::Status status =
        Run(axes_, fault, never_comes ? kShortTimeout : kTimeout, nullptr);
    ASSERT_FALSE(status.ok());
    if (never_comes) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    } else {
      EXPECT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    }
    const std::string message(status.message());
    EXPECT_THAT(message, testing::ContainsRegex(
                             absl::StrCat("ranks? ([0-9, ]*, )?", fault.rank)));
    if (status.code() == absl::StatusCode::kUnavailable) {
      EXPECT_THAT(message, testing::HasSubstr("injected"));
    }
    ExpectHealthy();
  }

 private:
  /// Expects that a run after the fault has the bits of the one before.
  void ExpectHealthy() {
    Healthy again;
    const absl::Status status = Run(axes_, {}, kTimeout, &again);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(again.losses, healthy_.losses);
  }

  int64_t Below(int64_t n) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  }

  Fault Choose() {
    Fault fault;
    fault.rank = static_cast<int>(Below(RanksOf(axes_)));
    fault.goes_on = Below(2) == 0;
    if (Below(3) == 0) fault.adversarial_seed = 1 + random_() % 1000;
    if (Below(2) == 0) {
      fault.host = static_cast<HostFault>(1 + Below(kNumHostFaults - 1));
      // Nobody waits for a rank that leaves at the last point.
      const bool leaves = fault.host == HostFault::kReturn;
      fault.point = static_cast<int>(Below(healthy_.points - (leaves ? 1 : 0)));
      return fault;
    }
    const auto& groups = healthy_.traffic[static_cast<size_t>(fault.rank)];
    while (true) {
      fault.engine.kind =
          static_cast<EngineFault::Kind>(1 + Below(EngineFault::kNumKinds - 1));
      // A fault that needs a timeout takes seconds.
      if (fault.engine.kind == EngineFault::Kind::kNeverComes &&
          Below(4) != 0) {
        continue;
      }
      const GroupTraffic& group = groups[static_cast<size_t>(
          Below(static_cast<int64_t>(groups.size())))];
      const int64_t times = EngineFault::IsOfExchange(fault.engine.kind)
                                ? group.exchanges
                                : group.collectives;
      if (group.size == 1 || times == 0) continue;
      fault.engine.group = group.group;
      fault.engine.index = Below(times);
      return fault;
    }
  }

  const Axes axes_;
  std::mt19937_64 random_;
  Healthy healthy_;
};

class RandomFaultsTest : public testing::TestWithParam<size_t> {};

TEST_P(RandomFaultsTest, AreErrorsOfAllRanksThatNameTheRank) {
  const unsigned seed = NumberFromEnvironment("CROSSHATCH_FUZZ_SEED", 20240607);
  const unsigned faults = NumberFromEnvironment("CROSSHATCH_FUZZ_FAULTS", 10);
  RandomFaults random_faults(Meshes()[GetParam()]);
  for (unsigned i = 0; i < faults; ++i) {
    SCOPED_TRACE(absl::StrCat("CROSSHATCH_FUZZ_SEED=", seed + i,
                              " CROSSHATCH_FUZZ_FAULTS=1"));
    random_faults.InjectOne(seed + i);
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, RandomFaultsTest,
                         testing::Range(size_t{0}, Meshes().size()),
                         [](const auto& info) {
                           std::string name;
                           for (const MeshAxis& axis : Meshes()[info.param]) {
                             absl::StrAppend(&name, axis.name, axis.size);
                           }
                           return name;
                         });

}  // namespace
}  // namespace crosshatch
