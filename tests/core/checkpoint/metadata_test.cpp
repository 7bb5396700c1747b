// label: unit
// What a safetensors file says besides its tensors, written and read back.
#include <gtest/gtest.h>

#include <trireme/checkpoint/safetensors.h>

#include "../data/files.h"

namespace trireme::tests {
namespace {

using Entries = std::map<std::string, std::string>;

TEST(Metadata, WrittenAndReadBack) {
  const Folder folder;
  const float values[] = {1, 2, 3};
  checkpoint::NamedTensor weight;
  weight.name = "weight";
  weight.type = "F32";
  weight.shape = {3};
  weight.data = values;
  weight.bytes = sizeof values;
  for (const Entries& entries : {Entries{}, Entries{{"producer", "trireme"}},
                                 Entries{{"schema", R"({"name": "Zürich \"x\"\n"})"}, {"model", "mlp:64"}}}) {
    checkpoint::write_safetensors(folder.path("m.safetensors"), {weight}, entries);
    EXPECT_EQ(checkpoint::read_metadata(folder.path("m.safetensors")), entries);
  }
}

TEST(Metadata, OtherFilesAreRefused) {
  const Folder folder;
  EXPECT_THROW(checkpoint::read_metadata(folder.path("none")), IoError);
  for (const std::string& bytes :
       {std::string(), std::string("abc"), std::string(8, '\xff'), std::string(16, 'x'),
        std::string("\3\0\0\0\0\0\0\0{x}", 11), std::string("\x17\0\0\0\0\0\0\0{\"__metadata__\":{\"a\":1}}", 32)})
    EXPECT_THROW(checkpoint::read_metadata(folder.write("bad", bytes)), Corruption) << bytes.size();
}

}  // namespace
}  // namespace trireme::tests
