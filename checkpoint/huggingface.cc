// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/huggingface.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/described_state.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/checkpoint/weight_files.h"
#include "crosshatch/checkpoint/weight_names.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::checkpoint {
namespace {

/// Returns whether both have the same values, in any dtypes.
absl::StatusOr<bool> SameValues(const StoredTensor& a, const StoredTensor& b) {
  const Shape& sizes = a.info().sizes;
  if (b.info().sizes != sizes || !CanConvert(a.info().dtype, kFloat64) ||
      !CanConvert(b.info().dtype, kFloat64)) {
    return false;
  }
  if (NumElements(sizes) == 0) return true;
  Box row = WholeBox(sizes);
  const int64_t rows = sizes.empty() ? 1 : sizes[0];
  if (!sizes.empty()) row.sizes[0] = 1;
  std::vector<double> of_a(static_cast<size_t>(row.numel()));
  std::vector<double> of_b(of_a.size());
  for (int64_t i = 0; i < rows; ++i) {
    if (!sizes.empty()) row.offsets[0] = i;
    CH_RETURN_IF_ERROR(
        a.file->Read(a.index, row, kFloat64, of_a.data()).status());
    CH_RETURN_IF_ERROR(
        b.file->Read(b.index, row, kFloat64, of_b.data()).status());
    if (std::memcmp(of_a.data(), of_b.data(), of_a.size() * sizeof(double))) {
      return false;
    }
  }
  return true;
}

/// Checks that the tensor `copy` in files equals `original`. Some programs
/// write a tied model's head in addition, which is redundant if it is a copy.
absl::Status CheckCopy(const StoredTensors& stored, const std::string& copy,
                       const std::string& original, const std::string& dir) {
  const auto a = stored.find(copy);
  const auto b = stored.find(original);
  if (b == stored.end()) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(const bool is_copy, SameValues(a->second, b->second));
  if (is_copy) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(dir, " contains a ", copy, " that differs from ", original,
                   ", but the model ties them (tie_word_embeddings)"));
}

/// Checks that files have no tensors without a parameter other than allowed
/// ones.
absl::Status CheckExtra(const StoredTensors& stored,
                        const std::set<std::string>& used,
                        const WeightNames& names, const std::string& dir) {
  std::vector<std::string> extra;
  for (const auto& [name, tensor] : stored) {
    if (used.count(name) != 0) continue;
    const auto copy = absl::c_find_if(
        names.copies,
        [&name = name](const auto& c) { return c.first == name; });
    if (copy != names.copies.end()) {
      CH_RETURN_IF_ERROR(CheckCopy(stored, name, copy->second, dir));
      continue;
    }
    const bool is_ignored =
        absl::c_any_of(names.ignored, [&name = name](const std::string& p) {
          return MatchesStars(p, name, nullptr);
        });
    if (!is_ignored) extra.push_back(name);
  }
  if (extra.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      dir,
      " contains tensors that the model does not have: ", ListNames(extra)));
}

struct StoredPart {
  StoredTensor source;
  Box box;  ///< In the tensor of the parameters, which is the stored one ...
  bool transposed = false;  ///< ... or its transpose.

  absl::Status Read(DType dtype, void* to) const {
    if (!transposed) {
      return source.file->Read(source.index, box, dtype, to).status();
    }
    Box stored = box;
    std::reverse(stored.offsets.begin(), stored.offsets.end());
    std::reverse(stored.sizes.begin(), stored.sizes.end());
    const auto size = static_cast<size_t>(SizeOf(dtype));
    const auto rows = static_cast<size_t>(box.sizes[0]);
    const auto cols = static_cast<size_t>(box.sizes[1]);
    std::vector<std::byte> columns(rows * cols * size);
    CH_RETURN_IF_ERROR(
        source.file->Read(source.index, stored, dtype, columns.data())
            .status());
    auto* const out = static_cast<std::byte*>(to);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < cols; ++c) {
        std::memcpy(out + (r * cols + c) * size,
                    columns.data() + (c * rows + r) * size, size);
      }
    }
    return absl::OkStatus();
  }
};

/// Returns whether no number has all bits of `exponent` set, as infinities and
/// NaNs do.
template <typename Bits>
bool AllFinite(const void* data, int64_t count, Bits exponent) {
  const auto* const bytes = static_cast<const std::byte*>(data);
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * static_cast<int64_t>(sizeof(Bits)),
                sizeof(Bits));
    finite = finite && (bits & exponent) != exponent;
  }
  return finite;
}

bool AllFinite(const void* data, DType dtype, int64_t count) {
  switch (dtype) {
    case kFloat32:
      return AllFinite<uint32_t>(data, count, 0x7F800000);
    case kFloat64:
      return AllFinite<uint64_t>(data, count, 0x7FF0000000000000);
    case kBFloat16:
      return AllFinite<uint16_t>(data, count, 0x7F80);
    case kFloat16:
      return AllFinite<uint16_t>(data, count, 0x7C00);
    default:
      return true;
  }
}

/// This rank's part of a parameter, and its source.
struct Slice {
  StoredPart from;
  Tensor local;
  const nn::Parameter* parameter;
  /// True for buffers, e.g. a mask.
  bool may_be_infinite = false;

  absl::Status Read(void* to) const {
    CH_RETURN_IF_ERROR(from.Read(local.dtype(), to));
    if (may_be_infinite || AllFinite(to, local.dtype(), local.numel())) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(
        from.source.file->path(), ": tensor \"", from.source.info().name,
        "\" contains values that are not finite as ", Name(local.dtype())));
  }
};

absl::Status AddSlices(const MergedTensor& tensor, const StoredTensor& stored,
                       std::vector<Slice>& slices) {
  const TensorInfo& info = stored.info();
  const DType dtype = tensor.parts[0].parameter->data().dtype();
  const auto refuse = [&](const char* what, const std::string& has,
                          const std::string& wants) {
    return absl::InvalidArgumentError(
        absl::StrCat(stored.file->path(), ": tensor \"", tensor.name, "\" has ",
                     what, " ", has, ", and the model's is ", wants));
  };
  if (info.sizes != tensor.StoredSizes()) {
    return refuse("shape", ToString(info.sizes),
                  ToString(tensor.StoredSizes()));
  }
  if (!CanConvert(info.dtype, dtype)) {
    return refuse("dtype", SafetensorsName(info.dtype), Name(dtype));
  }
  int64_t row = 0;
  for (const nn::NamedParameter& named : tensor.parts) {
    const Tensor& data = named.parameter->data();
    const int64_t first = row;
    if (data.ndim() > 0) row += data.size(0);
    Box box = WholeBox(data.sizes());
    if (data.is_distributed()) {
      CH_CHECK(!LayoutOf(data).is_partial())
          << named.name << " is a pending sum: " << data.Describe();
      if (!MeshOf(data).coordinate().has_value()) continue;
      box = LocalBoxOf(data);
    }
    if (data.ndim() > 0) box.offsets[0] += first;
    slices.push_back({{stored, std::move(box), tensor.transposed},
                      WritableLocalTensor(data, "a load of weights"),
                      named.parameter});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Slice>> PlanSlices(
    absl::Span<const nn::NamedParameter> parameters, const std::string& dir,
    const WeightNames& names) {
  CH_ASSIGN_OR_RETURN(const std::vector<MergedTensor> tensors,
                      MergeByName(parameters, names));
  CH_ASSIGN_OR_RETURN(const StoredTensors stored, OpenWeights(dir));
  std::vector<Slice> slices;
  std::vector<std::string> missing;
  std::set<std::string> used;
  for (const MergedTensor& tensor : tensors) {
    const auto found = stored.find(tensor.name);
    if (found == stored.end()) {
      missing.push_back(tensor.name);
      continue;
    }
    used.insert(tensor.name);
    CH_RETURN_IF_ERROR(AddSlices(tensor, found->second, slices));
  }
  if (!missing.empty()) {
    return absl::NotFoundError(absl::StrCat(
        dir, " does not contain weights of the model: ", ListNames(missing)));
  }
  CH_RETURN_IF_ERROR(CheckExtra(stored, used, names, dir));
  return slices;
}

}  // namespace

absl::Status LoadHuggingFace(nn::Llama& model, const std::string& dir) {
  return LoadWeights(model, dir, LlamaNames(model.config().family));
}

absl::Status LoadWeights(nn::Module& model, const std::string& dir,
                         const WeightNames& names) {
  CH_RETURN_IF_ERROR(nn::CheckWritable(model, "LoadWeights"));
  const std::vector<nn::NamedParameter> all = nn::NamedState(model);
  CH_ASSIGN_OR_RETURN(std::vector<Slice> slices, PlanSlices(all, dir, names));
  std::vector<nn::Parameter*> leased;
  for (const nn::NamedParameter& named : all) leased.push_back(named.parameter);
  nn::LeaseParameters(leased);
  // Files do not have these.
  std::vector<nn::Parameter*> transient;
  for (const nn::NamedBuffer& named : model.NamedBuffers()) {
    if (!named.buffer->persistent()) transient.push_back(named.buffer);
    for (Slice& slice : slices) {
      if (slice.parameter == named.buffer) slice.may_be_infinite = true;
    }
  }
  CH_RETURN_IF_ERROR(nn::Materialize(transient, {}));
  RankContext& context = RankContext::Current();
  for (const Slice& slice : slices) {
    CH_CHECK(slice.local.is_contiguous()) << slice.local.Describe();
    // Also if this rank's shard is empty, because all ranks count the write.
    BeginWrite("a load of weights", slice.local);
    if (slice.from.box.empty()) continue;
    // The task keeps the file open.
    WriteFromHost(slice.local, [slice, &context](void* to) {
      const absl::Status read = slice.Read(to);
      if (!read.ok()) context.Poison(read);
    });
  }
  return context.Synchronize();
}

absl::Status CheckSaveDirectory(const std::string& dir,
                                const SaveOptions& options) {
  return CheckMayWrite(dir, options.overwrite, *options.file_system);
}

absl::Status SaveHuggingFace(World& world, nn::Llama& model,
                             const std::string& dir,
                             const SaveOptions& options) {
  // All parameters have one dtype (Module::set_dtype), so uses the first's.
  const DType dtype =
      options.dtype.value_or(model.Parameters().front()->data().dtype());
  return SaveWeights(world, model, dir, LlamaNames(model.config().family),
                     FormatConfig(model.config(), dtype), options);
}

}  // namespace crosshatch::checkpoint
