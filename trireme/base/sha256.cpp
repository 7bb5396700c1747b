#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include <trireme/base/error.h>
#include <trireme/base/sha256.h>

namespace trireme {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1)
    fail<Error>("SHA-256 is not available in this OpenSSL");
}

Sha256::~Sha256() = default;

void Sha256::add(const void* data, size_t bytes) { EVP_DigestUpdate(state_->context, data, bytes); }

std::string Sha256::finish() {
  std::array<unsigned char, 32> digest{};
  EVP_DigestFinal_ex(state_->context, digest.data(), nullptr);
  std::string text;
  for (unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace trireme
