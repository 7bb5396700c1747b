#pragma once
// Understands the bytes of a journal file (format.h), whatever they are.
#include <cstdint>
#include <string>
#include <string_view>

#include <trireme/cluster/journal/journal.h>

namespace trireme::cluster::journal {

struct Found {
  Contents contents;
  uint64_t next = 1;   // sequence number of the next record
  uint64_t end = 0;    // bytes that count
  std::string remark;  // about bytes behind them, which do not; "": there are none
};

/// A file that ends in the middle of a record, or in garbage, was being written to when its writer died: that record
/// was never answered for, and does not count. Damage before the last good record, or within what was durable from the
/// beginning, means that something is lost: throws Corruption, as for a file that is no journal, of another version, or
/// that its writer could not keep up to date.
Found read_journal(std::string_view bytes, const std::string& path);

}  // namespace trireme::cluster::journal
