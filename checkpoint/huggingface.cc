// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/huggingface.h"

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/file_system.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/checkpoint/hf_weights.h"
#include "crosshatch/checkpoint/list_names.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/on_ranks.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/materialize.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::checkpoint {
namespace {

std::string StoredName(const std::string& parameter_name) {
  return absl::StartsWith(parameter_name, "lm_head.")
             ? parameter_name
             : absl::StrCat("model.", parameter_name);
}

/// What old versions of transformers stored though it follows from the config.
bool IsRedundant(const std::string& name) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq");
}

constexpr char kHead[] = "lm_head.weight";
constexpr char kEmbedding[] = "model.embed_tokens.weight";

/// Whether both hold the same values, whatever their dtypes.
bool SameValues(const StoredTensor& a, const StoredTensor& b) {
  const Shape& sizes = a.info().sizes;
  if (b.info().sizes != sizes || !CanConvert(a.info().dtype, kFloat64) ||
      !CanConvert(b.info().dtype, kFloat64)) {
    return false;
  }
  Box row = WholeBox(sizes);
  row.sizes[0] = 1;
  std::vector<double> of_a(static_cast<size_t>(row.numel()));
  std::vector<double> of_b(of_a.size());
  for (row.offsets[0] = 0; row.offsets[0] < sizes[0]; ++row.offsets[0]) {
    a.file->Read(a.index, row, kFloat64, of_a.data());
    b.file->Read(b.index, row, kFloat64, of_b.data());
    if (std::memcmp(of_a.data(), of_b.data(), of_a.size() * sizeof(double))) {
      return false;
    }
  }
  return true;
}

/// Some programs write the head of a tied model as well. That is no loss where
/// it is what the model has for a head.
absl::Status CheckTiedHead(const StoredTensors& stored,
                           const std::string& dir) {
  const auto head = stored.find(kHead);
  const auto embedding = stored.find(kEmbedding);
  if (head == stored.end() || embedding == stored.end() ||
      SameValues(head->second, embedding->second)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      dir, " holds a ", kHead, " that differs from ", kEmbedding,
      ", but config.json says that they are tied (tie_word_embeddings)"));
}

/// This rank's part of a parameter, and where it comes from.
struct Slice {
  StoredTensor source;
  Box box;
  Tensor local;
};

/// The slices of all parameters, or the first thing that does not fit.
absl::StatusOr<std::vector<Slice>> PlanSlices(
    absl::Span<const nn::NamedParameter> parameters, const std::string& dir) {
  CH_ASSIGN_OR_RETURN(const StoredTensors stored, OpenWeights(dir));
  std::vector<Slice> slices;
  std::vector<std::string> missing;
  std::set<std::string> used;
  for (const nn::NamedParameter& named : parameters) {
    const std::string name = StoredName(named.name);
    const auto found = stored.find(name);
    if (found == stored.end()) {
      missing.push_back(name);
      continue;
    }
    used.insert(name);
    const TensorInfo& info = found->second.info();
    const Tensor& data = named.parameter->data();
    if (info.sizes != data.sizes()) {
      return absl::InvalidArgumentError(
          absl::StrCat(found->second.file->path(), ": tensor \"", name,
                       "\" has shape ", ToString(info.sizes),
                       ", and the model's is ", ToString(data.sizes())));
    }
    if (!CanConvert(info.dtype, data.dtype())) {
      return absl::InvalidArgumentError(
          absl::StrCat(found->second.file->path(), ": tensor \"", name,
                       "\" has dtype ", SafetensorsName(info.dtype),
                       ", and the model's is ", Name(data.dtype())));
    }
    Box box = WholeBox(data.sizes());
    if (data.is_distributed()) {
      const Layout& layout = LayoutOf(data);
      const DeviceMesh mesh = MeshOf(data);
      CH_CHECK(!layout.is_partial())
          << named.name << " holds partial sums: " << data.Describe();
      if (!mesh.coordinate().has_value()) continue;
      box = layout.LocalBox(data.sizes(), *mesh.coordinate());
    }
    slices.push_back({found->second, std::move(box),
                      WritableLocalTensor(data, "a load of weights")});
  }
  if (!missing.empty()) {
    return absl::NotFoundError(
        absl::StrCat(dir, " lacks weights of the model: ", ListNames(missing)));
  }
  if (used.insert(kHead).second) {
    CH_RETURN_IF_ERROR(CheckTiedHead(stored, dir));
  }
  std::vector<std::string> extra;
  for (const auto& [name, tensor] : stored) {
    if (used.count(name) == 0 && !IsRedundant(name)) extra.push_back(name);
  }
  if (!extra.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        dir, " holds tensors that the model lacks: ", ListNames(extra)));
  }
  return slices;
}

/// What rank 0 writes. Unless it was finished, it vanishes with this: the file
/// before the directory that it is in.
struct Output {
  std::unique_ptr<NewDirectory> directory;
  std::unique_ptr<SafetensorsWriter> weights;

  Output() = default;
  ~Output() { Reset(); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void Reset() {
    weights.reset();
    directory.reset();
  }
};

absl::Status Open(absl::Span<const nn::NamedParameter> parameters,
                  const nn::LlamaConfig& config, const std::string& dir,
                  const SaveOptions& options, Output& output) {
  FileSystem& files = *options.file_system;
  absl::StatusOr<std::unique_ptr<NewDirectory>> directory =
      NewDirectory::Create(dir, options.overwrite, files);
  if (!directory.ok() && options.beside_if_refused) {
    auto beside = NewDirectory::CreateBeside(dir, directory.status(), files);
    if (beside.ok()) directory = *std::move(beside);
  }
  CH_RETURN_IF_ERROR(directory.status());
  output.directory = *std::move(directory);
  // The small file comes first: a full disk is found before the weights are
  // complete.
  CH_ASSIGN_OR_RETURN(
      const std::unique_ptr<AtomicFile> file,
      AtomicFile::Create(output.directory->Add("config.json"), files));
  const std::string text = FormatConfig(config);
  CH_RETURN_IF_ERROR(
      file->Append(text.data(), static_cast<int64_t>(text.size())));
  CH_RETURN_IF_ERROR(file->Commit());
  std::vector<TensorInfo> tensors;
  for (const nn::NamedParameter& named : parameters) {
    const Tensor& data = named.parameter->data();
    tensors.push_back({StoredName(named.name), data.dtype(), data.sizes()});
  }
  // transformers asks for the format.
  CH_ASSIGN_OR_RETURN(
      output.weights,
      SafetensorsWriter::Create(output.directory->Add("model.safetensors"),
                                std::move(tensors), {{"format", "pt"}}, files));
  return absl::OkStatus();
}

absl::Status Finish(Output& output) {
  // All weights are written: whatever comes now, they stay.
  output.directory->Keep();
  const absl::Status status = output.weights->Finish();
  if (!status.ok()) return output.directory->Explain(status);
  return output.directory->Commit();
}

}  // namespace

absl::Status LoadHuggingFace(nn::Llama& model, const std::string& dir) {
  CH_ASSIGN_OR_RETURN(std::vector<Slice> slices,
                      PlanSlices(model.NamedParameters(), dir));
  nn::LeaseParameters(model.Parameters());
  for (const Slice& slice : slices) {
    CH_CHECK(slice.local.is_contiguous()) << slice.local.Describe();
    // Also where this rank holds none of it: all ranks count a write.
    slice.local.storage()->BumpVersion();
    if (slice.box.empty()) continue;
    // The task keeps the file mapped until it has run.
    WriteFromHost(slice.local,
                  [file = slice.source.file, index = slice.source.index,
                   box = slice.box, dtype = slice.local.dtype()](void* to) {
                    file->Read(index, box, dtype, to);
                  });
  }
  return RankContext::Current().status();
}

absl::Status CheckSaveDirectory(const std::string& dir,
                                const SaveOptions& options) {
  return CheckMayWrite(dir, options.overwrite, *options.file_system);
}

absl::StatusOr<std::vector<std::string>> UnfinishedSaves(
    const std::string& dir) {
  return FindUnfinishedSaves(dir);
}

absl::Status SaveHuggingFace(World& world, nn::Llama& model,
                             const std::string& dir,
                             const SaveOptions& options) {
  RankContext& context = world.context();
  if (context.device().is_meta()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a dry run has no weights to save to ", dir));
  }
  const std::vector<nn::NamedParameter> parameters = model.NamedParameters();
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world));

  // What was given up is removed before the ranks learn of it: a program may
  // save again at once.
  Output output;
  CH_RETURN_IF_ERROR(OnFirstRank(*comm, "save: open", [&] {
    const absl::Status status =
        Open(parameters, model.config(), dir, options, output);
    if (!status.ok()) output.Reset();
    return status;
  }));
  const NoGrad no_grad;
  for (const nn::NamedParameter& named : parameters) {
    const Tensor whole = FullTensor(named.parameter->data());
    CH_RETURN_IF_ERROR(context.Synchronize());
    CH_CHECK(whole.is_contiguous()) << whole.Describe();
    const HostView view(whole);
    CH_RETURN_IF_ERROR(OnFirstRank(*comm, "save: write", [&] {
      const absl::Status status =
          output.weights->Write(StoredName(named.name), view.data());
      if (!status.ok()) output.Reset();
      return status;
    }));
  }
  return OnFirstRank(*comm, "save: finish", [&] {
    const absl::Status status = Finish(output);
    output.Reset();
    return status;
  });
}

}  // namespace crosshatch::checkpoint
