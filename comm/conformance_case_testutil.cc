// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/conformance_case_testutil.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/tensor/allocator.h"

namespace crosshatch::internal {
namespace {

template <typename F>
void WithType(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float());
    case DType::kFloat64:
      return f(double());
    case DType::kBFloat16:
      return f(BFloat16());
    case DType::kFloat16:
      return f(Float16());
    case DType::kInt32:
      return f(int32_t());
    case DType::kInt64:
      return f(int64_t());
    case DType::kUInt16:
      return f(uint16_t());
    case DType::kBool:
      return f(bool());
    case DType::kFloat8E4M3:
      return f(Float8E4M3());
    case DType::kFloat8E5M2:
      return f(Float8E5M2());
    case DType::kUInt8:
      return f(uint8_t());
  }
}

template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_class_v<T>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
double ToDouble(T value) {
  if constexpr (std::is_class_v<T>) {
    return static_cast<float>(value);
  } else {
    return static_cast<double>(value);
  }
}

double Rounded(double value, DType dtype) {
  double result = 0;
  WithType(dtype, [&](auto zero) {
    result = ToDouble(FromDouble<decltype(zero)>(value));
  });
  return result;
}

double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 0x1p-23;
    case DType::kFloat64:
      return 0x1p-52;
    case DType::kBFloat16:
      return 0x1p-7;
    case DType::kFloat16:
      return 0x1p-10;
    default:
      return 0;
  }
}

uint64_t Hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t h = 0x9E3779B97F4A7C15u;
  for (uint64_t x : {a, b, c, d}) {
    h = (h ^ x) * 0xBF58476D1CE4E5B9u;
    h ^= h >> 29;
  }
  return h;
}

double Value(const CollectiveCase& c, int rank, int list, int64_t i) {
  const uint64_t hash = Hash(c.seed, rank, list, i);
  if (c.reals) {
    const double magnitude = std::ldexp(1.0, static_cast<int>(hash % 6));
    const double fraction = static_cast<double>(hash >> 40) / (1 << 23) - 1.0;
    return Rounded(magnitude * fraction, c.dtype);
  }
  if (c.dtype == DType::kBool) return hash & 1;
  // Sums and products over five ranks are exact in all dtypes.
  return 1 + static_cast<double>((hash >> 8) % 3);
}

/// Returns rank 0's value combined with rank 1's, and so on, in that order.
template <typename T>
T Combine(ReduceOp op, const std::vector<double>& values) {
  T result = static_cast<T>(values[0]);
  for (size_t r = 1; r < values.size(); ++r) {
    const T value = static_cast<T>(values[r]);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        result += value;
        break;
      case ReduceOp::kProduct:
        result *= value;
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
    }
  }
  return result;
}

double Reduced(const CollectiveCase& c, const std::vector<double>& values) {
  double result = c.dtype == DType::kFloat64 ? Combine<double>(c.op, values)
                                             : Combine<float>(c.op, values);
  if (c.op == ReduceOp::kAvg) result /= static_cast<double>(values.size());
  return Rounded(result * c.scale, c.dtype);
}

/// Returns the tolerance of an engine's result, relative to Reduced's.
double Tolerance(const CollectiveCase& c, const std::vector<double>& values,
                 bool order_fixed) {
  double sum = 0;
  for (double value : values) sum += std::abs(value);
  double rounded = 0;
  // 1 / n and the scale are rounded, and so are the products with them.
  if (c.op == ReduceOp::kAvg || c.scale != 1.0) rounded += 2;
  // Another order of the sum: each of n - 1 steps rounds once in either order,
  // at worst in the dtype.
  const bool adds = c.op == ReduceOp::kSum || c.op == ReduceOp::kAvg;
  if (c.reals && adds && !order_fixed) {
    rounded += 2 * static_cast<double>(values.size());
  }
  return rounded * Epsilon(c.dtype) * sum * std::abs(c.scale);
}

}  // namespace

/// Memory and the lists in it.
class CollectiveRun::Arena {
 public:
  Arena(ListLayout layout, uint64_t seed) : layout_(layout), random_(seed) {}

  int AddList(int64_t count) {
    List list;
    switch (layout_) {
      case ListLayout::kContiguous:
      case ListLayout::kInPlace:
        list.segments = {{.run_elems = count}};
        break;
      case ListLayout::kSplit:
        while (count > 0) {
          const auto n = std::min<int64_t>(count, Below(40));
          list.segments.push_back({.run_elems = n});
          count -= n;
        }
        break;
      case ListLayout::kStrided: {
        const int64_t run = 1 + Below(5);
        list.segments = {{.run_elems = run,
                          .runs = count / run,
                          .stride_elems = run + Below(3)},
                         {.run_elems = count % run}};
        break;
      }
    }
    Place(list);
    lists_.push_back(std::move(list));
    return static_cast<int>(lists_.size()) - 1;
  }

  int64_t size() const { return size_; }
  std::vector<int64_t> Offsets(int list) const {
    std::vector<int64_t> offsets;
    const List& l = lists_[list];
    for (size_t k = 0; k < l.segments.size(); ++k) {
      const Segment& s = l.segments[k];
      for (int64_t run = 0; run < s.runs; ++run) {
        for (int64_t i = 0; i < s.run_elems; ++i) {
          offsets.push_back(l.begins[k] + run * s.stride_elems + i);
        }
      }
    }
    return offsets;
  }
  /// Returns the list's segments if the arena is at `memory`.
  SegmentList Segments(int list, std::byte* memory, int64_t elem_bytes) const {
    SegmentList segments = lists_[list].segments;
    if (memory == nullptr) return segments;  // A dry run.
    for (size_t k = 0; k < segments.size(); ++k) {
      segments[k].data = memory + lists_[list].begins[k] * elem_bytes;
    }
    return segments;
  }

 private:
  struct List {
    SegmentList segments;
    std::vector<int64_t> begins;
  };

  int64_t Below(int64_t n) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  }

  /// Assigns addresses to the segments, shuffled and with gaps.
  void Place(List& list) {
    std::vector<size_t> order(list.segments.size());
    for (size_t k = 0; k < order.size(); ++k) order[k] = k;
    std::shuffle(order.begin(), order.end(), random_);
    list.begins.resize(order.size());
    for (size_t k : order) {
      size_ += Below(4);
      list.begins[k] = size_;
      const Segment& s = list.segments[k];
      if (s.elems() > 0) size_ += (s.runs - 1) * s.stride_elems + s.run_elems;
    }
  }

  const ListLayout layout_;
  std::mt19937_64 random_;
  int64_t size_ = 0;
  std::vector<List> lists_;
};

struct CollectiveRun::Memory {
  Memory(ListLayout layout, uint64_t seed) : arena(layout, seed) {}

  Arena arena;
  /// Indices of lists. In place, a list is in both.
  std::vector<int> send;
  std::vector<int> recv;
  Block block;
  /// The initial content of the arena.
  std::vector<double> before;
};

std::string CollectiveCase::Describe() const {
  static constexpr const char* kLayouts[] = {"contiguous", "split", "strided",
                                             "in place"};
  return absl::StrCat(Name(kind), " ", Name(dtype), " ",
                      std::string(ToString(op)), " scale ", scale, " root ",
                      root, " counts ", absl::StrJoin(counts, ","), " ",
                      kLayouts[static_cast<int>(layout)], reals ? " reals" : "",
                      " seed ", seed);
}

CollectiveRun::CollectiveRun(const ConformanceEngine& engine, World& world,
                             Communicator& comm, const CollectiveCase& c)
    : engine_(&engine),
      comm_(&comm),
      case_(c),
      memory_(
          std::make_unique<Memory>(c.layout, Hash(c.seed, comm.rank(), 0, 0))) {
  const int n = comm.size();
  const int me = comm.rank();
  const auto& counts = c.counts;
  const bool in_place = c.layout == ListLayout::kInPlace;
  Arena& arena = memory_->arena;
  std::vector<int>& send = memory_->send;
  std::vector<int>& recv = memory_->recv;
  switch (c.kind) {
    case CollectiveKind::kAllGather:
      for (int r = 0; r < n; ++r) recv.push_back(arena.AddList(counts[r]));
      send = {in_place ? recv[me] : arena.AddList(counts[me])};
      break;
    case CollectiveKind::kReduceScatter:
      for (int r = 0; r < n; ++r) send.push_back(arena.AddList(counts[r]));
      recv = {in_place ? send[me] : arena.AddList(counts[me])};
      break;
    case CollectiveKind::kAllReduce:
      send = {arena.AddList(counts[0])};
      recv = {in_place ? send[0] : arena.AddList(counts[0])};
      break;
    case CollectiveKind::kAllToAll:
      for (int r = 0; r < n; ++r) {
        send.push_back(arena.AddList(counts[me * n + r]));
      }
      for (int r = 0; r < n; ++r) {
        const bool share = in_place && r == me;
        recv.push_back(share ? send[me] : arena.AddList(counts[r * n + me]));
      }
      break;
    case CollectiveKind::kBroadcast:
      if (me == c.root) {
        send = {arena.AddList(counts[0])};
        // In every second case the root has no recv list.
        if (in_place) {
          recv = send;
        } else if (c.seed % 2 == 0) {
          recv = {arena.AddList(counts[0])};
        }
      } else {
        recv = {arena.AddList(counts[0])};
      }
      break;
    case CollectiveKind::kBarrier:
      break;
  }

  // Unused memory has values, too, to detect changes.
  std::vector<double>& before = memory_->before;
  for (int64_t i = 0; i < arena.size(); ++i) {
    before.push_back(c.dtype == DType::kBool ? i % 2 : 90 + i % 7);
  }
  for (size_t list = 0; list < send.size(); ++list) {
    const std::vector<int64_t> offsets = arena.Offsets(send[list]);
    for (size_t i = 0; i < offsets.size(); ++i) {
      before[offsets[i]] = Value(c, me, static_cast<int>(list), i);
    }
  }
  const int64_t elem_bytes = SizeOf(c.dtype);
  RankContext& context = world.context();
  memory_->block = context.allocator().Allocate(arena.size() * elem_bytes,
                                                MemoryClass::kCommunication,
                                                context.compute_stream());
  context.compute_stream().Synchronize();  // The host writes next.
  WithType(c.dtype, [&](auto zero) {
    if (memory_->block.data() == nullptr) return;
    std::vector<std::byte> bytes(before.size() * sizeof(zero));
    for (size_t i = 0; i < before.size(); ++i) {
      const auto value = FromDouble<decltype(zero)>(before[i]);
      std::memcpy(&bytes[i * sizeof(zero)], &value, sizeof(zero));
    }
    engine.copy(memory_->block.data(), bytes.data(),
                static_cast<int64_t>(bytes.size()));
  });
  collective_ = {.kind = c.kind,
                 .dtype = c.dtype,
                 .reduce_op = c.op,
                 .scale = c.scale,
                 .root = c.root,
                 .label = c.label.empty() ? c.Describe() : c.label};
  for (int list : send) {
    collective_.send.push_back(
        arena.Segments(list, memory_->block.data(), elem_bytes));
  }
  for (int list : recv) {
    collective_.recv.push_back(
        arena.Segments(list, memory_->block.data(), elem_bytes));
  }
}

CollectiveRun::~CollectiveRun() = default;
CollectiveRun::CollectiveRun(CollectiveRun&&) noexcept = default;

absl::Status CollectiveRun::Issue(Stream& stream) {
  return comm_->Issue(collective_, stream);
}

absl::Status CollectiveRun::Check() const {
  if (memory_->block.data() == nullptr) return absl::OkStatus();
  const CollectiveCase& c = case_;
  const int n = comm_->size();
  const int me = comm_->rank();
  std::vector<double> want = memory_->before;
  std::vector<double> tolerance(want.size());
  std::vector<double> values(n);
  for (size_t list = 0; list < memory_->recv.size(); ++list) {
    const std::vector<int64_t> offsets =
        memory_->arena.Offsets(memory_->recv[list]);
    const int r = static_cast<int>(list);
    for (size_t i = 0; i < offsets.size(); ++i) {
      double& value = want[offsets[i]];
      switch (c.kind) {
        case CollectiveKind::kAllGather:
          value = Value(c, r, 0, i);
          break;
        case CollectiveKind::kAllToAll:
          value = Value(c, r, me, i);
          break;
        case CollectiveKind::kBroadcast:
          value = Value(c, c.root, 0, i);
          break;
        case CollectiveKind::kReduceScatter:
        case CollectiveKind::kAllReduce: {
          const bool scatter = c.kind == CollectiveKind::kReduceScatter;
          for (int rank = 0; rank < n; ++rank) {
            values[rank] = Value(c, rank, scatter ? me : 0, i);
          }
          value = Reduced(c, values);
          tolerance[offsets[i]] =
              Tolerance(c, values, engine_->order_fixed_sums);
          break;
        }
        case CollectiveKind::kBarrier:
          break;
      }
    }
  }
  absl::Status result;
  WithType(c.dtype, [&](auto zero) {
    std::vector<std::byte> bytes(want.size() * sizeof(zero));
    engine_->copy(bytes.data(), memory_->block.data(),
                  static_cast<int64_t>(bytes.size()));
    for (size_t i = 0; i < want.size() && result.ok(); ++i) {
      auto value = zero;
      std::memcpy(&value, &bytes[i * sizeof(zero)], sizeof(zero));
      const double got = ToDouble(value);
      if (std::abs(got - want[i]) <= tolerance[i]) continue;
      result = absl::DataLossError(
          absl::StrCat(c.Describe(), ", index ", me, " of ", n, ": element ", i,
                       " of the memory is ", got, " instead of ", want[i],
                       " within ", tolerance[i]));
    }
  });
  return result;
}

}  // namespace crosshatch::internal
