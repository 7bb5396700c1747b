#pragma once
// What a coordinator must not forget: texts under keys, which outlive the process that wrote them. Where they are kept
// is the business of those who implement it (file.h).
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme::cluster::journal {

using Contents = std::map<std::string, std::string>;

struct Change {
  std::string key;
  std::optional<std::string> value;  // none: the key goes
};
/// They become durable together, or none of them.
using Changes = std::vector<Change>;

/// Brings contents up to date.
void apply_changes(const Changes& changes, Contents& contents);

/// One thread at a time.
class Journal {
 public:
  virtual ~Journal() = default;
  /// As messages name it.
  virtual const std::string& name() const = 0;
  /// With all that was written, durable or not.
  virtual const Contents& contents() const = 0;
  /// Blocks until the changes are durable; none at all are another try where there was trouble. What stands in the way
  /// is no exception: a coordinator that cannot write goes on. A remark says so, once, and another one when all is
  /// durable again.
  virtual void write(const Changes& changes) = 0;
  /// What happened since the last call, a sentence each.
  virtual std::vector<std::string> take_remarks() = 0;
};

}  // namespace trireme::cluster::journal
