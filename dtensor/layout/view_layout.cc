// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/view_layout.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"

namespace crosshatch {
namespace {

// Dims [in_begin, in_end) of the input and [out_begin, out_end) of the output
// that hold the same elements; no smaller ranges do.
struct DimGroup {
  int in_begin, in_end;
  int out_begin, out_end;
};

std::vector<DimGroup> GroupDims(ShapeView in, ShapeView out) {
  std::vector<DimGroup> groups;
  const int in_dims = static_cast<int>(in.size());
  const int out_dims = static_cast<int>(out.size());
  int i = 0;
  int o = 0;
  while (i < in_dims || o < out_dims) {
    DimGroup group = {i, i, o, o};
    int64_t in_numel = 1;
    int64_t out_numel = 1;
    if (i < in_dims) in_numel = in[i++];
    if (o < out_dims) out_numel = out[o++];
    while (in_numel != out_numel) {
      if (in_numel < out_numel && i < in_dims) {
        in_numel *= in[i++];
      } else if (o < out_dims) {
        out_numel *= out[o++];
      } else if (i < in_dims) {
        in_numel *= in[i++];
      } else {
        break;  // Only where there are no elements at all.
      }
    }
    group.in_end = i;
    group.out_end = o;
    groups.push_back(group);
  }
  return groups;
}

int64_t Product(ShapeView sizes, int begin, int end) {
  int64_t product = 1;
  for (int d = begin; d < end; ++d) product *= sizes[d];
  return product;
}

// The elements of a row-major tensor in a box: `first`, and strided loops from
// there. The number of loops is minimal, so that equal sets of elements are
// equal values.
struct Elements {
  struct Loop {
    int64_t stride;
    int64_t count;
    friend bool operator==(const Loop& a, const Loop& b) {
      return a.stride == b.stride && a.count == b.count;
    }
  };
  bool empty = false;
  int64_t first = 0;
  /// Innermost first.
  absl::InlinedVector<Loop, 4> loops;

  int64_t Count() const {
    int64_t count = empty ? 0 : 1;
    for (const Loop& loop : loops) count *= loop.count;
    return count;
  }

  friend bool operator==(const Elements& a, const Elements& b) {
    if (a.empty || b.empty) return a.empty == b.empty;
    return a.first == b.first && a.loops == b.loops;
  }
};

class ElementsOf {
 public:
  /// Adds a dim, innermost first.
  void Add(const Interval& part, int64_t size) {
    if (part.size() <= 0) elements_.empty = true;
    elements_.first += part.begin * stride_;
    auto& loops = elements_.loops;
    if (part.size() > 1) {
      if (!loops.empty() &&
          stride_ == loops.back().stride * loops.back().count) {
        loops.back().count *= part.size();
      } else {
        loops.push_back({stride_, part.size()});
      }
    }
    stride_ *= size;
  }
  const Elements& elements() const { return elements_; }

 private:
  Elements elements_;
  int64_t stride_ = 1;
};

std::vector<int64_t> DivisorsOf(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    divisors.push_back(d);
    if (d != n / d) divisors.push_back(n / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

class ViewSolver {
 public:
  ViewSolver(const Layout& layout, ShapeView in, ShapeView out)
      : mesh_(layout.mesh()),
        layout_(layout),
        in_(in),
        out_(out),
        has_elements_(NumElements(in) != 0),
        dims_(out.size()) {}

  std::optional<Layout> Solve() {
    for (const DimGroup& group : GroupDims(in_, out_)) {
      if (!CarryOne(group) && !CarryAny(group)) return std::nullopt;
    }
    return Layout(mesh_, std::move(dims_), layout_.partials());
  }

 private:
  // The usual case: the split of a group's one split input dim becomes that of
  // the output dim that starts at the same element.
  bool CarryOne(const DimGroup& group) {
    int split = -1;
    for (int d = group.in_begin; d < group.in_end; ++d) {
      if (!layout_.is_sharded(d)) continue;
      if (split >= 0) return false;
      split = d;
    }
    if (split < 0) return true;
    if (Product(in_, group.in_begin, split) != 1 && has_elements_) {
      return false;
    }
    // In elements of the group.
    const int64_t in_inner = Product(in_, split + 1, group.in_end);
    const DimSharding& sharding = layout_.sharding(split);
    for (int d = group.out_begin; d < group.out_end; ++d) {
      const int64_t out_inner = Product(out_, d + 1, group.out_end);
      if (Product(out_, group.out_begin, d) != 1) break;
      DimSharding candidate = sharding;
      for (int64_t unit :
           {CeilDiv(sharding.unit * in_inner, std::max<int64_t>(out_inner, 1)),
            int64_t{1}}) {
        // An axis with cuts splits single elements.
        const bool is_cut = !sharding.cuts.empty() && sharding.fine_axes == 0;
        candidate.unit = is_cut ? 1 : std::max<int64_t>(unit, 1);
        for (size_t i = 0; i < candidate.cuts.size(); ++i) {
          candidate.cuts[i] =
              sharding.cuts[i] * in_inner / std::max<int64_t>(out_inner, 1);
        }
        if (candidate.unit == 1) candidate.fine_axes = 0;
        if (SameElements(split, in_inner, d, out_inner, candidate)) {
          dims_[d] = candidate;
          return true;
        }
      }
    }
    return false;
  }

  // Returns whether every rank's part of the input is its part of the output.
  bool SameElements(int in_dim, int64_t in_inner, int out_dim,
                    int64_t out_inner, const DimSharding& candidate) const {
    const Layout split(mesh_, {candidate});
    for (int i = 0; i < mesh_.size(); ++i) {
      const MeshCoordinate at = mesh_.CoordinateAt(i);
      const Interval in = layout_.DimInterval(in_dim, in_[in_dim], at);
      const Interval out = split.DimInterval(0, out_[out_dim], at);
      if (in.size() * in_inner != out.size() * out_inner) return false;
      if (in.size() != 0 && in.begin * in_inner != out.begin * out_inner) {
        return false;
      }
    }
    return true;
  }

  // The other cases, such as the inner dim of pairs whose outer dim is split
  // into single rows: tries all splits of the group's output dims by the axes
  // that split its input dims.
  bool CarryAny(const DimGroup& group) {
    // No rank has elements, whatever the output's layout.
    if (!has_elements_) return true;
    group_ = group;
    axes_.clear();
    for (int d = group.in_begin; d < group.in_end; ++d) {
      for (int axis : layout_.axes_of_dim(d)) {
        if (mesh_.size(axis) > 1) axes_.push_back(axis);
      }
    }
    wanted_.clear();
    for (int i = 0; i < mesh_.size(); ++i) {
      const MeshCoordinate at = mesh_.CoordinateAt(i);
      if (!OfOtherAxes(at)) continue;
      ElementsOf here;
      for (int d = group.in_end; d-- > group.in_begin;) {
        here.Add(layout_.DimInterval(d, in_[d], at), in_[d]);
      }
      wanted_.emplace_back(at, here.elements());
    }
    CollectUnits();
    for (int d = group.out_begin; d < group.out_end; ++d) dims_[d] = {};
    return Assign(0);
  }

  // Collects the possible units: divisors of the elements of the first rank
  // together with ranks that differ along axes that split single elements. Such
  // ranks together hold whole units.
  void CollectUnits() {
    units_.clear();
    for (unsigned fine = 0; fine < 1u << axes_.size(); ++fine) {
      int64_t count = 0;
      for (const auto& [at, elements] : wanted_) {
        bool together = true;
        for (size_t k = 0; k < axes_.size(); ++k) {
          together = together && ((fine >> k & 1) != 0 || at[axes_[k]] == 0);
        }
        if (together) count += elements.Count();
      }
      const std::vector<int64_t> divisors = DivisorsOf(count);
      units_.insert(units_.end(), divisors.begin(), divisors.end());
    }
    std::sort(units_.begin(), units_.end());
    units_.erase(std::unique(units_.begin(), units_.end()), units_.end());
  }

  // Returns whether `at` is the representative of ranks that differ along other
  // axes only.
  bool OfOtherAxes(const MeshCoordinate& at) const {
    for (int axis = 0; axis < mesh_.ndim(); ++axis) {
      const bool of_group =
          std::find(axes_.begin(), axes_.end(), axis) != axes_.end();
      if (!of_group && at[axis] != 0) return false;
    }
    return true;
  }

  // Tries every role for each axis from the `next`-th.
  bool Assign(size_t next) {
    if (next == axes_.size()) return ChooseUnits(group_.out_begin);
    for (int d = group_.out_begin; d < group_.out_end; ++d) {
      for (size_t place = 0; place <= dims_[d].axes.size(); ++place) {
        const auto before = dims_[d].axes;
        dims_[d].axes.insert(dims_[d].axes.begin() + place, axes_[next]);
        if (Assign(next + 1)) return true;
        dims_[d].axes = before;
      }
    }
    return false;
  }

  bool ChooseUnits(int dim) {
    if (dim == group_.out_end) return IsWanted();
    DimSharding& sharding = dims_[dim];
    if (sharding.axes.empty()) return ChooseUnits(dim + 1);
    for (int64_t unit : units_) {
      if (unit > out_[dim]) break;
      sharding.unit = unit;
      const int most_fine =
          unit == 1 ? 0 : static_cast<int>(sharding.axes.size()) - 1;
      for (int fine = 0; fine <= most_fine; ++fine) {
        sharding.fine_axes = fine;
        if (ChooseUnits(dim + 1)) return true;
      }
    }
    sharding.unit = 1;
    sharding.fine_axes = 0;
    return false;
  }

  bool IsWanted() const {
    std::vector<DimSharding> dims(dims_.begin() + group_.out_begin,
                                  dims_.begin() + group_.out_end);
    const int ndim = static_cast<int>(dims.size());
    const Layout split(mesh_, std::move(dims));
    for (const auto& [at, elements] : wanted_) {
      ElementsOf here;
      for (int d = ndim; d-- > 0;) {
        const int64_t size = out_[group_.out_begin + d];
        here.Add(split.DimInterval(d, size, at), size);
      }
      if (!(here.elements() == elements)) return false;
    }
    return true;
  }

  const MeshLayout& mesh_;
  const Layout& layout_;
  const ShapeView in_;
  const ShapeView out_;
  const bool has_elements_;
  std::vector<DimSharding> dims_;

  // The group that CarryAny works on.
  DimGroup group_ = {};
  absl::InlinedVector<int, 4> axes_;
  std::vector<int64_t> units_;
  std::vector<std::pair<MeshCoordinate, Elements>> wanted_;
};

}  // namespace

std::optional<Layout> ViewLayout(const Layout& layout, ShapeView in,
                                 ShapeView out) {
  CH_CHECK_EQ(NumElements(in), NumElements(out))
      << "a view of " << ToString(in) << " as " << ToString(out);
  return ViewSolver(layout, in, out).Solve();
}

}  // namespace crosshatch
