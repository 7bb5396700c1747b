// label: unit
// Certificates in a folder: made, loaded, refused.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <trireme/base/error.h>
#include <trireme/cluster/coordination/tls.h>

namespace trireme::cluster::tests {
namespace {

class TlsFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "trireme-tls-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string folder(const std::string& name) const { return (root_ / name).string(); }

  std::filesystem::path root_;
};

template <class E, class F>
std::string message_of(const F& run) {
  try {
    run();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(TlsFolder, KeysArePrivateAndTheRestLoads) {
  make_certificates(folder("new/deep"));
  for (const char* key : {"ca.key", "node.key"}) {
    struct stat info {};
    ASSERT_EQ(stat((folder("new/deep/") + key).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << key;
  }
  const Certificates certificates = load_certificates(folder("new/deep"));
  EXPECT_TRUE(has(certificates.authority, "BEGIN CERTIFICATE") && has(certificates.certificate, "BEGIN CERTIFICATE") &&
              has(certificates.key, "PRIVATE KEY"));
}

TEST_F(TlsFolder, ExistingFilesAreReplacedOnlyByForce) {
  make_certificates(folder("a"));
  const std::string before = load_certificates(folder("a")).certificate;
  EXPECT_TRUE(has(message_of<InvalidArgument>([&] { make_certificates(folder("a")); }), "--force"));
  EXPECT_EQ(load_certificates(folder("a")).certificate, before);
  make_certificates(folder("a"), {.force = true});
  EXPECT_NE(load_certificates(folder("a")).certificate, before);
}

TEST_F(TlsFolder, ExpiredSaysSinceWhen) {
  make_certificates(folder("old"), {.days = -2});
  const std::string text = message_of<InvalidArgument>([&] { load_certificates(folder("old")); });
  EXPECT_TRUE(has(text, "has expired on 20") && has(text, "UTC") && has(text, "tls init --force")) << text;
}

TEST_F(TlsFolder, TheHostIsNamed) {
  make_certificates(folder("old"), {.days = -2});
  EXPECT_TRUE(message_of<InvalidArgument>([&] {
                load_certificates(folder("old"), "oak");
              }).starts_with("host oak: the certificate "));
  EXPECT_TRUE(
      message_of<IoError>([&] { load_certificates(folder("none"), "oak"); }).starts_with("host oak: cannot read "));
}

TEST_F(TlsFolder, AMissingFileIsNamed) {
  make_certificates(folder("a"));
  std::filesystem::remove(folder("a/node.key"));
  EXPECT_TRUE(has(message_of<IoError>([&] { load_certificates(folder("a")); }), "node.key"));
  EXPECT_TRUE(has(message_of<IoError>([&] { load_certificates(folder("none")); }), "tls init"));
}

TEST_F(TlsFolder, MixedFoldersAreNoticed) {
  make_certificates(folder("a"));
  make_certificates(folder("b"));
  const auto copy = [&](const char* name) {
    std::filesystem::copy_file(folder("b/") + name, folder("a/") + name,
                               std::filesystem::copy_options::overwrite_existing);
  };
  copy("node.key");
  EXPECT_TRUE(has(message_of<InvalidArgument>([&] { load_certificates(folder("a")); }), "is not the key of"));
  copy("node.pem");
  EXPECT_TRUE(has(message_of<InvalidArgument>([&] { load_certificates(folder("a")); }), "was not made by"));
}

TEST_F(TlsFolder, AnythingElseIsNoCertificate) {
  make_certificates(folder("a"));
  std::ofstream(folder("a/node.pem")) << "hello";
  EXPECT_TRUE(has(message_of<InvalidArgument>([&] { load_certificates(folder("a")); }), "is not a certificate"));
}

TEST(Token, IsLongAndNew) {
  EXPECT_EQ(make_token().size(), 32u);
  EXPECT_NE(make_token(), make_token());
}

}  // namespace
}  // namespace trireme::cluster::tests
