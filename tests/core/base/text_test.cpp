// label: unit
#include <gtest/gtest.h>

#include <trireme/base/nearest.h>
#include <trireme/base/sha256.h>

namespace trireme::tests {
namespace {

const std::vector<std::string> kModels = {"lenet", "mlp", "resnet18", "vgg11"};

TEST(Nearest, FindsTypos) {
  EXPECT_EQ(nearest("lennet", kModels), "lenet");
  EXPECT_EQ(nearest("lnet", kModels), "lenet");
  EXPECT_EQ(nearest("mpl", kModels), "mlp");  // swapped neighbours are one mistake
  EXPECT_EQ(nearest("pml", {"mlp"}), "");     // two of three letters are no typo
  EXPECT_EQ(nearest("mlq", kModels), "mlp");
  EXPECT_EQ(nearest("resnet81", kModels), "resnet18");
}

TEST(Nearest, FindsWhatWasCutShort) { EXPECT_EQ(nearest("res", kModels), "resnet18"); }

TEST(Nearest, FindsNothingInStrangers) {
  EXPECT_EQ(nearest("transformer", kModels), "");
  EXPECT_EQ(nearest("resnet18", {"lenet", "mlp", "linear", "twoconv"}), "");  // they rhyme, and nothing more
  EXPECT_EQ(nearest("", kModels), "");
  EXPECT_EQ(nearest("lenet", {}), "");
}

TEST(DidYouMean, IsAQuestionOrNothing) {
  EXPECT_EQ(did_you_mean("lennet", kModels), " (did you mean 'lenet'?)");
  EXPECT_EQ(did_you_mean("transformer", kModels), "");
}

std::string sha256(const std::string& text) {
  Sha256 hash;
  hash.add(text.data(), text.size());
  return hash.finish();
}

TEST(Sha256, KnownVectors) {  // FIPS 180-2
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesGiveTheSameAsTheWhole) {
  Sha256 hash;
  for (char c : std::string("abc")) hash.add(&c, 1);
  hash.add(nullptr, 0);
  EXPECT_EQ(hash.finish(), sha256("abc"));
}

}  // namespace
}  // namespace trireme::tests
