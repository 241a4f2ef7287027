// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/parse_mesh_axes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

std::string Text(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const MeshAxis& axis : axes) {
    absl::StrAppend(&text, text.empty() ? "" : ",", axis.name, ":", axis.size);
  }
  return text;
}

TEST(ParseMeshAxes, KeepsTheOrder) {
  for (const std::string text :
       {"tp:1", "fsdp:2,tp:3", "tp:7,fsdp:5,replicate:11", "a b:1"}) {
    const auto axes = ParseMeshAxes(text);
    ASSERT_TRUE(axes.ok()) << axes.status();
    EXPECT_EQ(Text(*axes), text);
  }
}

TEST(ParseMeshAxes, NamesTheTextAndTheWrongPart) {
  const std::string names[] = {"fsdp", "tp"};
  const struct {
    const char* text;
    const char* says;
  } cases[] = {
      {"", ": \"\" is not AXIS:SIZE"},
      {":2", "\":2\" is not AXIS:SIZE"},
      {"fsdp", "\"fsdp\" is not AXIS:SIZE"},
      {"fsdp:0", "\"fsdp:0\" is not AXIS:SIZE"},
      {"fsdp:2,tp:-1", "\"tp:-1\" is not AXIS:SIZE"},
      {"fsdp:2:2", "\"fsdp:2:2\" is not AXIS:SIZE"},
      {"fsdp:99999999999", "\"fsdp:99999999999\" is not AXIS:SIZE"},
      {"fsdp:2,", "\"\" is not AXIS:SIZE"},
      {"fsdp:2,pp:2", "unknown axis \"pp\"; there are fsdp, tp"},
      {"tp:2,tp:2", "the axis \"tp\" is given twice"},
      {"fsdp:2,tp:4", "more than 7 ranks"},
  };
  for (const auto& c : cases) {
    const absl::Status status = ParseMeshAxes(c.text, names, 7).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.text;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat(c.text, ": ")))
        << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace crosshatch
