#pragma once
// What a job knows, shown and taken back piece by piece.
//
// State is named flat vectors ("parameters", "optimizer/momentum", …), scalars ("step") and rows of sparse tables.
// Whoever has some of it shows it to a Visitor; what somebody kept is a Source, from which it is restored. Nobody here
// knows files or machines: a checkpoint's writer is a visitor, its reader a source, and an Image (image.h) is both.
//
// Names are stable, since files have them. What one worker has and no other is called "worker/2/NAME". Ranges are in
// bytes: of the flat space for parameters and the optimizer's vectors, which are shown slot by slot, without the
// padding between slots; eight bytes a slot (i64) for "optimizer/steps".
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/space/layout.h>
#include <trireme/space/range.h>
#include <trireme/space/updater.h>
#include <trireme/state/owners.h>

namespace trireme::state {

inline const std::string kParameters = "parameters";
inline const std::string kSteps = "optimizer/steps";        // of each slot, where the optimizer counts them
inline const std::string kResidual = "optimizer/residual";  // of_worker(machine, …): what its codecs keep for later
inline const std::string kStep = "step";                    // a scalar: updates so far
/// What a vector or scalar of one worker's is called.
std::string of_worker(int worker, const std::string& name);

/// A row of a sparse table. The spans are somebody's memory.
struct Row {
  uint64_t key = 0;
  std::span<const float> values;  // width
  std::span<const float> state;   // 0, 1 or 2 times width
  uint32_t steps = 0;             // updates so far; adam and adamw alone count them
  uint32_t age = 0;               // ticks since its last use; counted with evict_after alone
};

struct Table {
  std::string name;
  size_t width = 0;
  std::string optimizer;  // its name
  bool operator==(const Table&) const = default;
};

/// What state is of: both sides of a restore must have the same.
struct About {
  std::string layout;         // space::Layout::describe()
  std::string optimizer;      // its name; "": the user keeps one of their own
  std::vector<Table> tables;  // in their order
  int workers = 0;            // that have state of their own; 0: nobody has, and any number may go on with it
  bool operator==(const About&) const = default;
};

/// Sees state as it is: spans are valid during the call.
class Visitor {
 public:
  virtual ~Visitor() = default;
  /// Comes first.
  virtual void about(const About& about) = 0;
  virtual void part(const std::string& vector, space::Range range, std::span<const std::byte> bytes) = 0;
  virtual void scalar(const std::string& name, int64_t value) = 0;
  virtual void row(const std::string& table, const Row& row) = 0;
};

/// State that was kept.
class Source {
 public:
  virtual ~Source() = default;
  virtual const About& about() const = 0;
  /// Which ranges of which vectors are here, as those of owner 0.
  virtual const OwnerMap& contents() const = 0;
  virtual std::optional<int64_t> scalar(const std::string& name) const = 0;
  /// False: nothing is here that somebody above the exchange has added (Extras::parts); what they have stays.
  virtual bool has_extras() const { return true; }
  /// A range that is all in contents().
  virtual void read(const std::string& vector, space::Range range, std::span<std::byte> into) = 0;
  virtual void rows(const std::string& table, const std::function<void(const Row&)>& take) = 0;
};

/// A part of a vector as it lies in its owner's memory.
struct Part {
  std::string vector;
  space::Range range{};
  std::span<std::byte> bytes{};
};

/// What somebody above an exchange adds to its state: every rank has all of it.
struct Extras {
  std::vector<Part> parts;
  std::vector<std::pair<std::string, int64_t*>> scalars;
};

/// The parts of a range that lie in slots [first, last): padding belongs to nobody.
std::vector<space::Range> slot_parts(const space::Layout& layout, size_t first, size_t last, space::Range range);
/// Those of these slots that have a part in `range`: their steps are counted by who owns it.
std::vector<size_t> slots_of(const space::Layout& layout, size_t first, size_t last, space::Range range);
/// Of a layout's description, one for each slot.
std::vector<std::string> lines_of(const std::string& text);

/// Where a slot's steps are in kSteps.
inline space::Range steps_range(size_t slot) { return {slot * sizeof(int64_t), (slot + 1) * sizeof(int64_t)}; }
/// Of one owner: what it holds when it updates `range` of slots [first, last). `name` makes a vector's full name.
void add_updated(OwnerMap& map, int owner, const space::Layout& layout, size_t first, size_t last, space::Range range,
                 space::Optimizer optimizer, const std::function<std::string(const std::string&)>& name);

/// What a restore needs, and who asks.
struct Wanted {
  std::string who;  // "rank 1"
  About about;
  OwnerMap parts;
  int owner = 0;  // whose of them
  std::vector<std::string> scalars;
};

/// Throws InvalidArgument that names both sides where `source` is of another model or optimizer, or lacks something.
void check(const Source& source, const Wanted& wanted);

}  // namespace trireme::state
