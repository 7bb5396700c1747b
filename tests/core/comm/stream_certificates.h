#pragma once
// Certificates for a test, in a folder that goes with it.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <trireme/cluster/coordination/tls.h>
#include <trireme/comm/network/engine.h>

namespace trireme::tests {

class CertificateFolder {
 public:
  explicit CertificateFolder(const cluster::TlsOptions& options = {}) {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-certificates-XXXXXX").string();
    path_ = mkdtemp(name.data());
    cluster::make_certificates((path_ / "tls").string(), options);
  }
  ~CertificateFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return (path_ / "tls").string(); }
  CertificateFolder(const CertificateFolder&) = delete;
  CertificateFolder& operator=(const CertificateFolder&) = delete;

  /// As they are: also those that have expired.
  comm::network::Secrets secrets() const {
    return {.job = "a job",
            .token = "a token of the job",
            .authority = content("ca.pem"),
            .certificate = content("node.pem"),
            .key = content("node.key")};
  }

 private:
  std::string content(const char* file) const {
    std::ifstream stream(path_ / "tls" / file);
    std::stringstream text;
    text << stream.rdbuf();
    return text.str();
  }
  std::filesystem::path path_;
};

}  // namespace trireme::tests
