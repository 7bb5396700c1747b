#pragma once
// What a desk must know to take a job over from one that died, as entries of a journal (docs/journal-format.md), and
// back. Pure functions.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <trireme/cluster/coordination/crews.h>
#include <trireme/cluster/coordination/job.h>
#include <trireme/cluster/coordination/membership.h>
#include <trireme/cluster/journal/journal.h>

namespace trireme::cluster {

/// What a job is. A journal of another one is refused.
struct DeskFacts {
  std::string job;
  std::string token;  // its fingerprint
  int ranks = 1, servers = 0;
  bool elastic = false;
};

/// What is not about one member.
struct DeskBooks {
  uint64_t next_id = 1, past_epochs = 0;
  int next_number = 0, target = 1;
  bool over = false;
  CrewBook book;  // but for `since`
  std::string crew_reason;
  CrewChange latest, interrupting;  // the last, and the last that followed a loss
};

struct DeskImage {
  DeskFacts facts;
  bool concluded = false;  // the coordinator has come to its own end: who comes next begins anew
  DeskBooks books;
  std::vector<Attendee> attendees;  // by id; nobody has been heard of
  std::vector<Failure> failures;
  std::map<std::string, std::string> values;
};

/// Nothing when the journal is empty. Throws Corruption when its entries are not a desk's.
std::optional<DeskImage> image_of(const journal::Journal& journal);

/// What a journal may know of a secret.
std::string fingerprint(const std::string& secret);

/// Why a desk for `now` cannot go on from the journal's, or "".
std::string facts_refusal(const DeskFacts& journalled, const DeskFacts& now, const std::string& journal);

/// Says what has changed since it was asked last. One thread at a time.
class ImageChanges {
 public:
  /// But for values, which change by name.
  journal::Changes since(const DeskFacts& facts, const DeskBooks& books, const std::vector<Attendee>& attendees,
                         const std::vector<Failure>& failures);
  static std::string key_of_value(const std::string& key);
  static journal::Change conclusion();

 private:
  journal::Contents written_;
};

}  // namespace trireme::cluster
