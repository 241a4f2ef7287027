// SPDX-License-Identifier: Apache-2.0
#ifndef CONSUMER_FILES_FILE_PLANE_H_
#define CONSUMER_FILES_FILE_PLANE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/comm/data_plane.h"

namespace consumer {

/// Moves the data of one group through files in a shared directory. Each member
/// writes what it sends to one file and reads those of the others.
class FilePlane final : public crosshatch::DataPlane {
 public:
  /// \param prefix of the paths of the group's files
  FilePlane(std::string prefix, int member, int size,
            const crosshatch::RankContext& context);

  absl::Status Issue(const crosshatch::Collective& collective, int64_t sequence,
                     const crosshatch::Payloads& payloads,
                     crosshatch::Stream& queue) override;
  void Abort() override { is_aborted_ = true; }

 private:
  /// The elements of a member's lists, concatenated.
  struct Sent {
    std::vector<int64_t> counts;
    std::vector<char> data;
  };

  std::string PathOf(int member, int64_t number) const;
  absl::Status Write(const crosshatch::Collective& collective);
  /// Waits for the file of `member`.
  absl::StatusOr<Sent> Read(int member, int64_t elem_bytes) const;
  /// Returns the list `index` of `sent`, which must outlive it.
  static crosshatch::Segment PackedList(const Sent& sent, int index,
                                        int64_t elem_bytes);

  const std::string prefix_;
  const int member_;
  const int size_;
  const crosshatch::RankContext& context_;
  int64_t number_ = 0;
  std::atomic<bool> is_aborted_ = false;
};

class FilePlanes final : public crosshatch::DataPlanes {
 public:
  explicit FilePlanes(std::string directory)
      : directory_(std::move(directory)) {}

  const std::string& name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<crosshatch::DataPlane>> Connect(
      const crosshatch::GroupKey& key, int member,
      crosshatch::RankContext& context, absl::Duration timeout,
      Exchange exchange) override;

 private:
  const std::string name_ = "files";
  const std::string directory_;
};

}  // namespace consumer

#endif  // CONSUMER_FILES_FILE_PLANE_H_
