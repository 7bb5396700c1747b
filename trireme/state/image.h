#pragma once
// State in plain memory: what was visited, to be restored from or passed on.
#include <map>
#include <string>
#include <vector>

#include <trireme/state/visitor.h>

namespace trireme::state {

/// A visitor that copies, and a source of what it has copied. A value; not thread-safe.
class Image final : public Visitor, public Source {
 public:
  /// Each throws InvalidArgument that names both sides: for another model than before, bytes that are here already, a
  /// scalar with another value, a row that is here already.
  void about(const About& about) override;
  void part(const std::string& vector, space::Range range, std::span<const std::byte> bytes) override;
  void scalar(const std::string& name, int64_t value) override;
  void row(const std::string& table, const Row& row) override;

  /// Another owner's part of the same state. Bytes that both have are copies, and taken once.
  void add(const Image& other);

  const About& about() const override { return about_; }
  const OwnerMap& contents() const override { return contents_; }
  std::optional<int64_t> scalar(const std::string& name) const override;
  void read(const std::string& vector, space::Range range, std::span<std::byte> into) override;
  std::vector<std::byte> bytes_of(const std::string& vector, space::Range range) const;
  void rows(const std::string& table, const std::function<void(const Row&)>& take) override;

  const std::map<std::string, int64_t>& scalars() const { return scalars_; }
  /// The same state, however it is cut.
  bool operator==(const Image& other) const;

 private:
  struct Kept {
    std::vector<float> floats;  // values, then state
    size_t width = 0;
    uint32_t steps = 0, age = 0;
    bool operator==(const Kept&) const = default;
  };

  void copy(const std::string& vector, space::Range range, std::byte* into) const;

  bool known_ = false;
  About about_;
  OwnerMap contents_;
  std::map<std::string, std::map<size_t, std::vector<std::byte>>> vectors_;  // by name, and where a part begins
  std::map<std::string, int64_t> scalars_;
  std::map<std::string, std::map<uint64_t, Kept>> tables_;
};

}  // namespace trireme::state
