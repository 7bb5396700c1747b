#include <algorithm>

#include <trireme/data/gather.h>

namespace trireme::data {

std::vector<int64_t> gather_counts(comm::shm::Communicator& group, const std::vector<int64_t>& mine, const char* name) {
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(group.size()));
  group.all_gather(mine.data(), all.data(), mine.size(), DType::i64, name);
  return all;
}

std::vector<std::string> gather_bytes(comm::shm::Communicator& group, const std::string& mine, const char* name) {
  const std::vector<int64_t> sizes = gather_counts(group, {static_cast<int64_t>(mine.size())}, name);
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::string padded = mine, together(longest * sizes.size(), '\0');
  padded.resize(longest);
  if (longest > 0) group.all_gather(padded.data(), together.data(), longest, DType::u8, name);
  std::vector<std::string> all;
  for (size_t r = 0; r < sizes.size(); r++) all.push_back(together.substr(r * longest, static_cast<size_t>(sizes[r])));
  return all;
}

}  // namespace trireme::data
