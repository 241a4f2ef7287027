// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/safetensors.h"

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/checkpoint/file_system_testutil.h"
#include "crosshatch/checkpoint/weights_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string TempPath(const std::string& name) {
  return ::testing::TempDir() + name;
}

/// Returns a file with the given header and data bytes 0, 1, 2, ...
std::string FileBytes(const std::string& header, int data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += header;
  for (int i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
  return bytes;
}

absl::Status OpenError(const std::string& bytes) {
  const std::string path = TempPath("bad.safetensors");
  WriteBytes(path, bytes);
  return SafetensorsFile::Open(path).status();
}

/// Writes f32 [3, 4] 0..11, i64 [2], an empty bf16 [0, 5] and a bool scalar.
std::string WriteSample(const std::string& path) {
  const int64_t i[] = {-1, int64_t{1} << 60};
  float w[12];
  for (int k = 0; k < 12; ++k) w[k] = static_cast<float>(k);
  const bool b = true;
  WriteSafetensors(path, {{{"i", DType::kInt64, {2}}, i},
                          {{"w", DType::kFloat32, {3, 4}}, w},
                          {{"e", DType::kBFloat16, {0, 5}}, nullptr},
                          {{"b", DType::kBool, {}}, &b}});
  return ReadBytes(path);
}

TEST(SafetensorsTest, ReadsItsOwnFiles) {
  const std::string path = TempPath("sample.safetensors");
  WriteSample(path);
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 4u);
  EXPECT_THAT((*file)->metadata(), ElementsAre(std::pair("format", "pt")));
  EXPECT_EQ((*file)->Find("nothing"), -1);

  const int w = (*file)->Find("w");
  EXPECT_EQ((*file)->tensors()[w].dtype, DType::kFloat32);
  EXPECT_EQ((*file)->tensors()[w].sizes, (Shape{3, 4}));
  std::vector<float> all(12);
  EXPECT_TRUE((*file)->Read(w, WholeBox({3, 4}), kFloat32, all.data()).ok());
  for (int k = 0; k < 12; ++k) EXPECT_EQ(all[k], k);

  const int i = (*file)->Find("i");
  int64_t second = 0;
  EXPECT_TRUE((*file)->Read(i, {{1}, {1}}, kInt64, &second).ok());
  EXPECT_EQ(second, int64_t{1} << 60);

  EXPECT_TRUE(
      (*file)
          ->Read((*file)->Find("e"), WholeBox({0, 5}), kFloat32, nullptr)
          .ok());
  bool b = false;
  EXPECT_TRUE((*file)->Read((*file)->Find("b"), WholeBox({}), kBool, &b).ok());
  EXPECT_TRUE(b);
}

TEST(SafetensorsTest, DataStartsAligned) {
  for (int extra = 0; extra < 9; ++extra) {
    const std::string path = TempPath("aligned.safetensors");
    const float value = 1;
    WriteSafetensors(path,
                     {{{std::string(1 + extra, 'n'), kFloat32, {1}}, &value}});
    EXPECT_EQ((ReadBytes(path).size() - 4) % 8, 0u);
  }
}

// Compares every box of a [3, 2, 4] tensor with plain indexing.
TEST(SafetensorsTest, ReadsAnyBox) {
  const std::string path = TempPath("box.safetensors");
  std::vector<float> values(24);
  for (int k = 0; k < 24; ++k) values[k] = static_cast<float>(k);
  WriteSafetensors(path, {{{"t", kFloat32, {3, 2, 4}}, values.data()}});
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());

  const auto intervals = [](int64_t n) {
    std::vector<std::pair<int64_t, int64_t>> all;
    for (int64_t b = 0; b <= n; ++b) {
      for (int64_t e = b; e <= n; ++e) all.push_back({b, e - b});
    }
    return all;
  };
  for (const auto& [o0, s0] : intervals(3)) {
    for (const auto& [o1, s1] : intervals(2)) {
      for (const auto& [o2, s2] : intervals(4)) {
        std::vector<double> expected;
        for (int64_t a = o0; a < o0 + s0; ++a) {
          for (int64_t b = o1; b < o1 + s1; ++b) {
            for (int64_t c = o2; c < o2 + s2; ++c) {
              expected.push_back(static_cast<double>((a * 2 + b) * 4 + c));
            }
          }
        }
        std::vector<double> got(expected.size(), -1);
        EXPECT_TRUE(
            (*file)
                ->Read(0, {{o0, o1, o2}, {s0, s1, s2}}, kFloat64, got.data())
                .ok());
        ASSERT_EQ(got, expected);
      }
    }
  }
}

TEST(SafetensorsTest, ConvertsBetweenFloats) {
  EXPECT_TRUE(CanConvert(kBFloat16, kFloat32));
  EXPECT_FALSE(CanConvert(kInt32, kFloat32));
  EXPECT_FALSE(CanConvert(kFloat32, kInt64));
  const std::string path = TempPath("convert.safetensors");
  const double d = 1.0 + 0x1p-40;
  const Float16 h(0.333f);
  const BFloat16 b(0.333f);
  WriteSafetensors(path, {{{"d", kFloat64, {1}}, &d},
                          {{"h", kFloat16, {1}}, &h},
                          {{"b", kBFloat16, {1}}, &b}});
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  const Box one = {{0}, {1}};
  double wide;
  EXPECT_TRUE((*file)->Read(0, one, kFloat64, &wide).ok());
  EXPECT_EQ(wide, d);
  float single;
  EXPECT_TRUE((*file)->Read(0, one, kFloat32, &single).ok());
  EXPECT_EQ(single, 1.0f);
  EXPECT_TRUE((*file)->Read(1, one, kFloat32, &single).ok());
  EXPECT_EQ(single, static_cast<float>(h));
  EXPECT_TRUE((*file)->Read(2, one, kFloat64, &wide).ok());
  EXPECT_EQ(wide, static_cast<float>(b));
  Float16 half;
  EXPECT_TRUE((*file)->Read(2, one, kFloat16, &half).ok());
  EXPECT_EQ(half, Float16(static_cast<float>(b)));
}

TEST(SafetensorsTest, RefusesWithOneClearSentence) {
  const auto header = [](const std::string& entry) {
    return FileBytes("{\"t\":" + entry + "}", 8);
  };
  const struct {
    std::string bytes;
    std::string message;
  } cases[] = {
      {"", "ends after 0 bytes"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff"), "declares"},
      {FileBytes("{}", 0).substr(0, 9), "truncated"},
      {FileBytes("{", 0), "not JSON"},
      {FileBytes("[]", 0), "not a JSON object"},
      {FileBytes("{\"__metadata__\":{\"a\":1}}", 0), "\"a\" is not a string"},
      {FileBytes(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                 R"("t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                 8),
       "names \"t\" twice"},
      {header("3"), "tensor \"t\": its entry is not an object"},
      {header(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":0})"),
       "unknown field \"x\""},
      {header(R"({"shape":[2],"data_offsets":[0,8]})"), "no dtype"},
      {header(R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]})"),
       "\"F8_E4M3\" is not one of"},
      {header(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
       "not a list of sizes"},
      {header(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
       "not a list of sizes"},
      {header(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
       "not a range"},
      {header(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
       "hold 8 bytes, which is not the size of F32[3]"},
      {header(R"({"dtype":"F32","shape":[4294967296,4294967296],)"
              R"("data_offsets":[0,0]})"),
       "not the size"},
      {header(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})"),
       "truncated: tensor \"t\" ends at byte 16 of the data, which has 8"},
      {header(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
       "leaving a gap"},
      {header(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
       "tensors end at byte 4"},
      {FileBytes(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                 R"("u":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                 8),
       "inside the tensor before it"},
  };
  for (const auto& c : cases) {
    const absl::Status status = OpenError(c.bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(status.message()), HasSubstr("bad.safetensors"));
  }
}

TEST(SafetensorsTest, NamesAMissingFile) {
  const absl::Status status =
      SafetensorsFile::Open(TempPath("missing")).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("missing"));
  EXPECT_TRUE(absl::IsInvalidArgument(
      SafetensorsFile::Open(::testing::TempDir()).status()));
}

/// Opens a file and reads all of it if Open accepts it.
void OpenAndRead(const std::string& bytes) {
  const std::string path = TempPath("fuzz.safetensors");
  WriteBytes(path, bytes);
  const auto file = SafetensorsFile::Open(path);
  if (!file.ok()) {
    EXPECT_TRUE(absl::IsDataLoss(file.status())) << file.status();
    return;
  }
  for (size_t i = 0; i < (*file)->tensors().size(); ++i) {
    const TensorInfo& info = (*file)->tensors()[i];
    std::vector<std::byte> out(static_cast<size_t>(info.bytes()));
    EXPECT_TRUE((*file)
                    ->Read(static_cast<int>(i), WholeBox(info.sizes),
                           info.dtype, out.data())
                    .ok());
  }
}

TEST(SafetensorsTest, EveryPrefixIsRefused) {
  const std::string bytes = WriteSample(TempPath("prefix.safetensors"));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(OpenError(bytes.substr(0, length)).ok()) << length;
  }
  EXPECT_TRUE(OpenError(bytes).ok());
  EXPECT_FALSE(OpenError(bytes + "x").ok());
}

TEST(SafetensorsTest, AnyDamageIsAnErrorOrAValidFile) {
  const std::string bytes = WriteSample(TempPath("damage.safetensors"));
  std::mt19937 random(20240229);
  for (int round = 0; round < 1000; ++round) {
    std::string damaged = bytes;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int c = 0; c < changes; ++c) {
      const size_t at = random() % damaged.size();
      switch (random() % 4) {
        case 0:  // One bit.
          damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
          break;
        case 1:  // A byte with a meaning in JSON.
          damaged[at] = "{}[]\",:-0e9"[random() % 11];
          break;
        case 2:
          damaged.erase(at, 1 + random() % 4);
          break;
        default:
          damaged.insert(at, 1, static_cast<char>(random()));
          break;
      }
    }
    OpenAndRead(damaged);
  }
}

TEST(SafetensorsStartTest, RejectsReservedNames) {
  EXPECT_TRUE(absl::IsInvalidArgument(
      SafetensorsStart("f", {{"t", kFloat32, {1}}, {"t", kFloat32, {1}}})
          .status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      SafetensorsStart("f", {{"__metadata__", kFloat32, {1}}}).status()));
}

TEST(SafetensorsTest, ReadsHuggingFacesFiles) {
  const auto file =
      SafetensorsFile::Open("tests/conformance/llama/gqa/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const int norm = (*file)->Find("model.norm.weight");
  ASSERT_GE(norm, 0);
  EXPECT_EQ((*file)->tensors()[norm].sizes, (Shape{64}));
}

TEST(SafetensorsTest, ReportsAFileTruncatedWhileRead) {
  const std::string path = TempPath("shrinks.safetensors");
  // More than one read, so that the first piece still exists.
  const std::vector<float> values(1 << 18, 2.0f);
  WriteSafetensors(path, {{{"w", kFloat32, {512, 512}}, values.data()}});
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::resize_file(path, 1 << 19);
  std::vector<float> read(values.size());
  const absl::Status whole =
      (*file)->Read(0, WholeBox({512, 512}), kFloat32, read.data()).status();
  EXPECT_TRUE(absl::IsDataLoss(whole)) << whole;
  EXPECT_THAT(std::string(whole.message()),
              HasSubstr(path + " was truncated while it was read: it had "));
  EXPECT_EQ(read[0], 2.0f);
  // The remaining data can be read.
  const absl::StatusOr<int64_t> begin =
      (*file)->Read(0, {{0, 0}, {16, 512}}, kFloat32, read.data());
  ASSERT_TRUE(begin.ok()) << begin.status();
  EXPECT_EQ(*begin, 16 * 512 * 4);
}

TEST(SafetensorsTest, RunsFarApartAndCloseTogetherAreReadWhole) {
  const std::string path = TempPath("runs.safetensors");
  constexpr int64_t kRows = 40;
  // A row is 5 pages; all are more than a window.
  constexpr int64_t kCols = 5003;
  std::vector<int32_t> values(kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i);
  WriteSafetensors(path, {{{"w", kInt32, {kRows, kCols}}, values.data()}});
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const int64_t cols : {int64_t{1}, int64_t{1500}, int64_t{4900}, kCols}) {
    const Box box = {{1, kCols - cols}, {kRows - 1, cols}};
    std::vector<int32_t> read(static_cast<size_t>(box.numel()));
    const absl::StatusOr<int64_t> bytes =
        (*file)->Read(0, box, kInt32, read.data());
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, box.numel() * 4);
    int64_t wrong = 0;
    for (int64_t i = 0; i < box.numel(); ++i) {
      const int64_t at = (1 + i / cols) * kCols + kCols - cols + i % cols;
      if (read[static_cast<size_t>(i)] != at) ++wrong;
    }
    EXPECT_EQ(wrong, 0) << cols;
  }
}

/// Returns the thread's CPU time in seconds to write and read a file of `count`
/// tensors without elements.
double SecondsOfManyTensors(int count) {
  const std::string path = ::testing::TempDir() + "many.safetensors";
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back({absl::StrCat("layers.", i, ".weight"), kFloat32, {0}});
  }
  timespec begin;
  timespec end;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  const auto start = SafetensorsStart(path, tensors);
  EXPECT_TRUE(start.ok()) << start.status();
  WriteBytes(path, *start);
  const auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), tensors.size());
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  return static_cast<double>(end.tv_sec - begin.tv_sec) +
         1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
}

// Allows four times the linear time; a quadratic part would take 16 times.
TEST(SafetensorsTest, ManyTensorsTakeTimeInProportion) {
  EXPECT_LT(SecondsOfManyTensors(32'000), 4 * 16 * SecondsOfManyTensors(2'000));
}

}  // namespace
}  // namespace crosshatch::checkpoint
