// SPDX-License-Identifier: Apache-2.0

/// \file
/// Collectives of more than 2^31 elements, and of parts whose bytes exceed an
/// int. For the nightly run, because two ranks take 9 GB. All collectives are
/// in place.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kBeyond = (int64_t{1} << 31) + 6;

/// Values repeat after a prime number of elements, so an offset by a power of
/// two changes them.
constexpr int64_t kPeriod = 65521;

/// Whole periods of elements, the source of any range.
template <typename T>
std::vector<T> Periods(const std::function<T(int64_t)>& value) {
  std::vector<T> block(static_cast<size_t>(16 * kPeriod));
  for (size_t i = 0; i < block.size(); ++i) {
    block[i] = value(static_cast<int64_t>(i) % kPeriod);
  }
  return block;
}

/// Calls `visit` for subranges of [begin, end) and their offset in the periods,
/// until it returns false.
template <typename T>
void ForStretches(const std::vector<T>& periods, int64_t begin, int64_t end,
                  const std::function<bool(int64_t at, const T* values,
                                           int64_t count)>& visit) {
  const auto size = static_cast<int64_t>(periods.size());
  while (begin < end) {
    const int64_t place = begin % kPeriod;
    const int64_t count = std::min(end - begin, size - place);
    if (!visit(begin, periods.data() + place, count)) return;
    begin += count;
  }
}

template <typename T>
void Fill(T* data, const std::vector<T>& periods, int64_t begin, int64_t end) {
  ForStretches<T>(
      periods, begin, end, [&](int64_t at, const T* values, int64_t count) {
        std::memcpy(data + at, values, static_cast<size_t>(count) * sizeof(T));
        return true;
      });
}

template <typename T>
absl::Status Compare(const T* data, const std::vector<T>& periods,
                     int64_t begin, int64_t end) {
  absl::Status status;
  ForStretches<T>(
      periods, begin, end, [&](int64_t at, const T* values, int64_t count) {
        if (std::memcmp(data + at, values,
                        static_cast<size_t>(count) * sizeof(T)) == 0) {
          return true;
        }
        const auto wrong = std::mismatch(values, values + count, data + at);
        status = absl::DataLossError(
            absl::StrCat("element ", wrong.second - data, ": ",
                         static_cast<int64_t>(*wrong.second), " instead of ",
                         static_cast<int64_t>(*wrong.first)));
        return false;
      });
  return status;
}

using Memory = std::unique_ptr<void, decltype(&std::free)>;

absl::StatusOr<Memory> Allocate(int64_t bytes) {
  Memory memory(std::malloc(static_cast<size_t>(bytes)), &std::free);
  if (memory != nullptr) return memory;
  return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes"));
}

/// Runs `body` on two ranks, each with `bytes` of memory.
void OnTwoRanks(int64_t bytes,
                const std::function<absl::Status(
                    Communicator& comm, Stream& stream, void* memory)>& body) {
  RunRanks(kRanks, [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto comm,
                        world.Group("all", world.AllRanks(), "comm"));
    CH_ASSIGN_OR_RETURN(const Memory memory, Allocate(bytes));
    return body(*comm, world.context().SideStream("comm"), memory.get());
  });
}

/// Returns kBool elements, which are bytes.
std::vector<uint8_t> BytesOf(int rank) {
  return Periods<uint8_t>([rank](int64_t i) {
    return static_cast<uint8_t>((i * 7 + i / 3 + rank) % 2);
  });
}

std::vector<uint16_t> NumbersOf(int rank) {
  return Periods<uint16_t>(
      [rank](int64_t i) { return static_cast<uint16_t>(i / 4 + rank * 1000); });
}

TEST(LargeCountsTest, ABroadcastOfMoreThanAnIntCounts) {
  OnTwoRanks(
      kBeyond,
      [](Communicator& comm, Stream& stream, void* memory) -> absl::Status {
        auto* const data = static_cast<uint8_t*>(memory);
        Fill(data, BytesOf(comm.rank()), 0, kBeyond);
        CH_RETURN_IF_ERROR(
            Broadcast(comm, data, kBeyond, kBool, /*root=*/1, stream, "all"));
        CH_RETURN_IF_ERROR(RankContext::Current().Synchronize());
        return Compare(data, BytesOf(1), 0, kBeyond);
      });
}

TEST(LargeCountsTest, PartsThatTogetherAreMore) {
  OnTwoRanks(
      kBeyond,
      [](Communicator& comm, Stream& stream, void* memory) -> absl::Status {
        auto* const data = static_cast<uint8_t*>(memory);
        constexpr int64_t kPart = kBeyond / kRanks;
        const int64_t begin = comm.rank() * kPart;
        Fill(data, BytesOf(comm.rank()), begin, begin + kPart);
        CH_RETURN_IF_ERROR(
            AllGather(comm, data + begin, data, kPart, kBool, stream, "parts"));
        CH_RETURN_IF_ERROR(RankContext::Current().Synchronize());
        for (int r = 0; r < kRanks; ++r) {
          CH_RETURN_IF_ERROR(
              Compare(data, BytesOf(r), r * kPart, (r + 1) * kPart));
        }
        return absl::OkStatus();
      });
}

TEST(LargeCountsTest, ASumOfMoreThanAnIntCounts) {
  OnTwoRanks(
      kBeyond * int64_t{sizeof(uint16_t)},
      [](Communicator& comm, Stream& stream, void* memory) -> absl::Status {
        auto* const data = static_cast<uint16_t*>(memory);
        Fill(data, NumbersOf(comm.rank()), 0, kBeyond);
        CH_RETURN_IF_ERROR(AllReduce(comm, data, kBeyond, DType::kUInt16,
                                     ReduceOp::kSum, stream, "sum"));
        CH_RETURN_IF_ERROR(RankContext::Current().Synchronize());
        const auto sums = Periods<uint16_t>(
            [](int64_t i) { return static_cast<uint16_t>(i / 4 * 2 + 1000); });
        return Compare(data, sums, 0, kBeyond);
      });
}

/// Each rank's part of the sum stays at its position.
TEST(LargeCountsTest, ASumThatIsScattered) {
  OnTwoRanks(
      kBeyond * int64_t{sizeof(uint16_t)},
      [](Communicator& comm, Stream& stream, void* memory) -> absl::Status {
        auto* const data = static_cast<uint16_t*>(memory);
        constexpr int64_t kPart = kBeyond / kRanks;
        Fill(data, NumbersOf(comm.rank()), 0, kBeyond);
        const int64_t begin = comm.rank() * kPart;
        CH_RETURN_IF_ERROR(ReduceScatter(comm, data, data + begin, kPart,
                                         DType::kUInt16, ReduceOp::kSum, stream,
                                         "scattered"));
        CH_RETURN_IF_ERROR(RankContext::Current().Synchronize());
        const auto sums = Periods<uint16_t>(
            [](int64_t i) { return static_cast<uint16_t>(i / 4 * 2 + 1000); });
        return Compare(data, sums, begin, begin + kPart);
      });
}

}  // namespace
}  // namespace crosshatch
