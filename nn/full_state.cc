// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/full_state.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/byte_hash.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/all_ranks.h"
#include "crosshatch/dtensor/cross_mesh.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/element_hash.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

constexpr int kFirst = 0;

/// Appends a field to a message to the other ranks.
void Put(absl::string_view field, std::string& blob) {
  absl::StrAppend(&blob, field.size(), ":", field);
}
void Put(int64_t number, std::string& blob) { Put(absl::StrCat(number), blob); }

/// Reads the fields of a message in order.
class Fields {
 public:
  explicit Fields(absl::string_view blob) : left_(blob) {}
  bool empty() const { return left_.empty(); }
  absl::string_view Text() {
    const size_t colon = left_.find(':');
    size_t size = 0;
    CH_CHECK(absl::SimpleAtoi(left_.substr(0, colon), &size));
    const absl::string_view field = left_.substr(colon + 1, size);
    left_.remove_prefix(colon + 1 + size);
    return field;
  }
  int64_t Number() {
    int64_t number = 0;
    CH_CHECK(absl::SimpleAtoi(Text(), &number));
    return number;
  }

 private:
  absl::string_view left_;
};

/// Returns the first error of any rank on all ranks.
absl::Status AgreeOn(Communicator& comm, const absl::Status& own,
                     const std::string& label) {
  std::string blob;
  Put(static_cast<int>(own.code()), blob);
  Put(absl::string_view(own.message().data(), own.message().size()), blob);
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      comm.Exchange(blob, label));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Fields said(all[rank]);
    const auto code = static_cast<absl::StatusCode>(said.Number());
    if (code == absl::StatusCode::kOk) continue;
    const std::string message(said.Text());
    return absl::Status(code,
                        static_cast<int>(rank) == comm.rank()
                            ? message
                            : absl::StrCat("on rank ", rank, ": ", message));
  }
  return absl::OkStatus();
}

uint64_t HashOf(const std::string& text) {
  return HashBytes(text.size(), text.data(), static_cast<int64_t>(text.size()));
}

/// A local part of which other ranks may hold replicas.
struct HeldCopy {
  Box box;
  std::string hash;
};

/// Returns nothing if there is no replica to compare: for other kinds of
/// tensors, for Partial ones, for tensors that differ between ranks, and for
/// empty local parts.
std::optional<HeldCopy> CopyOf(const Tensor& tensor, int world_size) {
  HeldCopy copy = {WholeBox(tensor.sizes()), ""};
  if (tensor.is_distributed()) {
    const DeviceMesh& mesh = MeshOf(tensor);
    const Layout& layout = LayoutOf(tensor);
    const bool has_copies = mesh.size() < world_size || HasReplicas(layout);
    if (!has_copies || !mesh.coordinate().has_value() || layout.is_partial()) {
      return std::nullopt;
    }
    copy.box = LocalBoxOf(tensor);
  }
  if (copy.box.empty()) return std::nullopt;
  copy.hash = HashOfElements(LocalTensor(tensor));
  if (copy.hash.empty()) return std::nullopt;  // A dry run.
  return copy;
}

void Put(const HeldCopy& copy, std::string& blob) {
  Put(copy.box.ndim(), blob);
  for (int64_t offset : copy.box.offsets) Put(offset, blob);
  for (int64_t size : copy.box.sizes) Put(size, blob);
  Put(copy.hash, blob);
}

HeldCopy TakeCopy(Fields& said) {
  HeldCopy copy;
  const auto ndim = static_cast<size_t>(said.Number());
  copy.box.offsets.resize(ndim);
  copy.box.sizes.resize(ndim);
  for (int64_t& offset : copy.box.offsets) offset = said.Number();
  for (int64_t& size : copy.box.sizes) size = said.Number();
  copy.hash = std::string(said.Text());
  return copy;
}

/// Returns whether the two cannot be parts of one tensor, and sets `why` to the
/// difference.
bool Contradict(const HeldCopy& a, const HeldCopy& b, std::string& why) {
  if (a.box == b.box) {
    why = " holds other values than";
    return a.hash != b.hash;
  }
  why = absl::StrCat(" is cut otherwise than ", ToString(b.box));
  return a.box.ndim() != b.box.ndim() || !Intersect(a.box, b.box).empty();
}

/// Returns an error with the first name that only one of two ranks has. The
/// lists are in order and differ.
absl::Status NameThatDiffers(const std::string& what, int first_rank,
                             const std::string& first, int other_rank,
                             const std::string& other) {
  std::set<std::string> of_first;
  std::set<std::string> of_other;
  for (Fields said(first); !said.empty();) {
    of_first.insert(std::string(said.Text()));
  }
  for (Fields said(other); !said.empty();) {
    of_other.insert(std::string(said.Text()));
  }
  std::vector<std::string> alone;
  absl::c_set_symmetric_difference(of_first, of_other,
                                   std::back_inserter(alone));
  CH_CHECK(!alone.empty());
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": ranks ", first_rank, " and ", other_rank,
      " have entries of different names: \"", alone[0], "\" is on rank ",
      of_first.count(alone[0]) > 0 ? first_rank : other_rank, " alone"));
}

int FirstRankOf(const World& world) { return world.AllRanks()[kFirst]; }

bool IsOn(const DeviceMesh& mesh, int rank) {
  const auto ranks = mesh.layout().ranks();
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

Tensor OnFirstRank(const Tensor& tensor, const DeviceMesh& first) {
  const bool is_first = first.coordinate().has_value();
  if (!tensor.is_distributed()) return is_first ? tensor : Tensor();
  const DeviceMesh& mesh = MeshOf(tensor);
  // If several slices hold the tensor, the slice of the first rank sends it.
  if (!IsOn(mesh, first.layout().ranks()[0])) return Tensor();
  const CrossMeshTensor moved = RedistributeAcross(
      CrossMeshTensor(tensor),
      {.from_mesh = mesh,
       .from = LayoutOf(tensor),
       .to_mesh = first,
       .to = Layout::Replicated(first.layout(), tensor.ndim()),
       .sizes = tensor.sizes(),
       .dtype = tensor.dtype()});
  return moved.present() ? LocalTensor(moved.tensor()) : Tensor();
}

/// Appends the kind of an entry and its value, or its dtype and sizes. A
/// floating-point number is sent as its bits.
void Describe(const StateValue& value, std::string& blob) {
  Put(static_cast<int64_t>(value.index()), blob);
  if (const auto* tensor = std::get_if<Tensor>(&value)) {
    Put(static_cast<int64_t>(tensor->dtype()), blob);
    Put(tensor->ndim(), blob);
    for (const int64_t size : tensor->sizes()) Put(size, blob);
  } else if (const auto* number = std::get_if<double>(&value)) {
    Put(std::bit_cast<int64_t>(*number), blob);
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    Put(*text, blob);
  } else {
    Put(std::get<int64_t>(value), blob);
  }
}

StateValue TakeValue(const std::string& name, Fields& said) {
  switch (said.Number()) {
    case 0: {
      const auto dtype = static_cast<DType>(said.Number());
      Shape sizes(static_cast<size_t>(said.Number()));
      for (int64_t& size : sizes) size = said.Number();
      return Deferred(sizes, dtype,
                      absl::StrCat("\"", name, "\" of rank 0's state"));
    }
    case 1:
      return said.Number();
    case 2:
      return std::bit_cast<double>(said.Number());
    default:
      return std::string(said.Text());
  }
}

/// Returns rank 0's state. On other ranks its tensors have no memory.
absl::StatusOr<StateDict> FromFirst(Communicator& comm,
                                    const StateDict& saved) {
  std::string own;
  if (comm.rank() == kFirst) {
    for (const auto& [name, value] : saved.entries()) {
      Put(name, own);
      Describe(value, own);
    }
  }
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      comm.Exchange(own, "full state: entries"));
  if (comm.rank() == kFirst) return saved;
  StateDict state;
  for (Fields said(all[kFirst]); !said.empty();) {
    const std::string name(said.Text());
    CH_RETURN_IF_ERROR(state.Add(name, TakeValue(name, said)));
  }
  return state;
}

/// Returns text such as "f32[3, 2]" with the global shape.
std::string Shaped(const Tensor& tensor) {
  return absl::StrCat(Name(tensor.dtype()), ToString(tensor.sizes()));
}

absl::Status CheckFits(const World& world, const std::string& name,
                       const Tensor& to, const Tensor& from,
                       const RestoreFullOptions& options) {
  const auto refused = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is ", Shaped(to), ", and ", Shaped(from),
                     " was saved for it: ", why));
  };
  if (from.is_distributed()) return refused("whole tensors are expected");
  if (from.sizes() != to.sizes()) return refused("the sizes differ");
  if (from.dtype() != to.dtype() && !options.convert_dtypes) {
    return refused("the dtypes differ (RestoreFullOptions::convert_dtypes)");
  }
  if (options.from == StateHolder::kFirstRank && to.is_distributed() &&
      !IsOn(MeshOf(to), FirstRankOf(world))) {
    return refused(absl::StrCat("rank ", FirstRankOf(world),
                                ", which has it, is not on the mesh"));
  }
  return absl::OkStatus();
}

/// Copies the values of `from` into `to`, which has the same shape.
absl::Status Fill(World& world, Communicator& comm, const Tensor& to,
                  const Tensor& from, const RestoreFullOptions& options) {
  Tensor part = from;
  if (to.is_distributed()) {
    const DeviceMesh& mesh = MeshOf(to);
    part =
        options.from == StateHolder::kFirstRank
            ? DistributeTensorFrom(FirstRankOf(world), from, mesh, LayoutOf(to))
            : DistributeTensor(from, mesh, LayoutOf(to));
  } else if (options.from == StateHolder::kFirstRank) {
    part = world.rank() == kFirst ? Contiguous(from)
                                  : Empty(from.sizes(), from.dtype());
    CH_RETURN_IF_ERROR(
        Broadcast(comm, part.raw_data(), part.numel(), part.dtype(), kFirst,
                  world.context().current_stream(), "full state"));
  }
  CopyInPlace(WritableLocalTensor(to, "RestoreFullState"),
              ToDType(LocalTensor(part), to.dtype()));
  return absl::OkStatus();
}

/// Replaces the values in `state` that are no tensors by those of `saved`, and
/// compares the tensors.
absl::Status TakeValues(const World& world, const StateDict& saved,
                        const RestoreFullOptions& options, StateDict& state) {
  for (const auto& [name, value] : state.entries()) {
    StateValue& to = *state.Find(name);
    const StateValue& from = *saved.Find(name);
    if (to.index() != from.index()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", name, "\" was kept as another kind of value than it is"));
    }
    if (const auto* tensor = std::get_if<Tensor>(&to)) {
      CH_RETURN_IF_ERROR(
          CheckFits(world, name, *tensor, std::get<Tensor>(from), options));
    } else {
      to = from;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCopies(Communicator& comm, const std::string& what,
                         const StateDict& state) {
  if (comm.size() == 1) return absl::OkStatus();
  std::string names;
  std::string copies;
  for (const auto& [name, value] : state.entries()) {
    Put(name, names);
    const auto* tensor = std::get_if<Tensor>(&value);
    if (tensor == nullptr) continue;
    const std::optional<HeldCopy> copy = CopyOf(*tensor, comm.size());
    if (!copy.has_value()) continue;
    Put(name, copies);
    Put(*copy, copies);
  }
  std::string own;
  Put(absl::StrCat(absl::Hex(HashOf(names))), own);
  own += copies;
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      comm.Exchange(own, absl::StrCat(what, ": copies")));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (Fields(all[rank]).Text() == Fields(all[0]).Text()) continue;
    // All ranks know of the difference, so all of them enter the exchange.
    CH_ASSIGN_OR_RETURN(const std::vector<std::string> lists,
                        comm.Exchange(names, absl::StrCat(what, ": names")));
    return NameThatDiffers(what, comm.world_ranks()[0], lists[0],
                           comm.world_ranks()[rank], lists[rank]);
  }
  // For each name, the boxes that ranks hold, each with the first rank that
  // holds it.
  std::map<std::string, std::vector<std::pair<size_t, HeldCopy>>> seen;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Fields said(all[rank]);
    said.Text();
    while (!said.empty()) {
      const std::string name(said.Text());
      const HeldCopy own_copy = TakeCopy(said);
      bool is_new = true;
      for (const auto& [first, held] : seen[name]) {
        is_new = is_new && held.box != own_copy.box;
        std::string why;
        if (!Contradict(own_copy, held, why)) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            what, ": \"", name, "\" ", ToString(own_copy.box), " on rank ",
            comm.world_ranks()[rank], why, " on rank ",
            comm.world_ranks()[first],
            ", and one of them would be lost: give state that differs between "
            "ranks different names, or make it shards on a mesh of all ranks"));
      }
      if (is_new) seen[name].emplace_back(rank, own_copy);
    }
  }
  return absl::OkStatus();
}

absl::Status VisitFullState(World& world, const StateDict& state,
                            StateHolder holder, StateVisitor visit) {
  RankContext& context = world.context();
  CH_RETURN_IF_ERROR(context.status());
  CH_ASSIGN_OR_RETURN(const auto comm, AllRanks(world));
  CH_RETURN_IF_ERROR(CheckCopies(*comm, "the full state", state));
  CH_ASSIGN_OR_RETURN(
      const DeviceMesh first,
      InitDeviceMesh(world, {{"first", 1}}, {FirstRankOf(world)}));
  const bool holds =
      holder == StateHolder::kEveryRank || world.rank() == kFirst;
  const NoGrad no_grad;
  absl::Status status;
  for (const auto& [name, value] : state.entries()) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (tensor == nullptr) {
      if (holds && status.ok()) status = visit(name, value);
      continue;
    }
    Tensor whole = holder == StateHolder::kEveryRank
                       ? FullTensor(*tensor)
                       : OnFirstRank(*tensor, first);
    CH_RETURN_IF_ERROR(context.status());
    if (!holds || !status.ok()) continue;
    // A tensor that was whole on this rank is still the model's: give the
    // visitor a copy.
    if (whole.storage() == LocalTensor(*tensor).storage()) whole = Clone(whole);
    status = visit(name, whole);
  }
  return AgreeOn(*comm, status, "full state: end");
}

absl::Status RestoreFullState(World& world, Stateful& target,
                              const StateDict& saved,
                              const RestoreFullOptions& options) {
  RankContext& context = world.context();
  CH_RETURN_IF_ERROR(context.status());
  CH_ASSIGN_OR_RETURN(const auto comm, AllRanks(world));
  StateDict source;
  if (options.from == StateHolder::kFirstRank) {
    CH_ASSIGN_OR_RETURN(source, FromFirst(*comm, saved));
  } else {
    source = saved;
  }
  absl::StatusOr<StateDict> state = target.StateToFill(NamesOf(source));
  absl::Status status = state.status();
  if (status.ok()) status = TakeValues(world, source, options, *state);
  CH_RETURN_IF_ERROR(AgreeOn(*comm, status, "full state: begin"));
  const NoGrad no_grad;
  for (const auto& [name, value] : state->entries()) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (tensor == nullptr) continue;
    CH_RETURN_IF_ERROR(Fill(world, *comm, *tensor,
                            std::get<Tensor>(*source.Find(name)), options));
    CH_RETURN_IF_ERROR(context.status());
  }
  return AgreeOn(*comm, target.Restore(*state), "full state: end");
}

}  // namespace crosshatch::nn
