#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <array>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/base/sha256.h>
#include <trireme/base/tls_faults.h>
#include <trireme/cluster/coordination/tls.h>

namespace trireme::cluster {
namespace {

constexpr const char* kFiles[] = {"ca.pem", "ca.key", "node.pem", "node.key"};

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Buffer = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Context = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, Freed<SSL_free>>;

std::string openssl_text() {
  const unsigned long error = ERR_peek_last_error();
  const char* text = ERR_reason_error_string(error);
  ERR_clear_error();
  return text == nullptr ? "unknown error" : text;
}

void require(bool done, const char* what) {
  if (!done) fail<IoError>("cannot make certificates: {}: {}", what, openssl_text());
}

void add_extension(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  require(extension && X509_add_ext(certificate, extension.get(), -1) == 1, value);
}

/// Ten minutes of grace before now: hosts' clocks differ.
void set_validity(X509* certificate, int days) {
  constexpr long kDay = 24 * 3600;
  const long begin = days >= 0 ? -600 : (2L * days - 1) * kDay, end = days * kDay;
  require(X509_gmtime_adj(X509_getm_notBefore(certificate), begin) != nullptr &&
              X509_gmtime_adj(X509_getm_notAfter(certificate), end) != nullptr,
          "validity");
}

Certificate certificate_for(EVP_PKEY* key, const std::string& name, int days) {
  Certificate certificate(X509_new());
  require(certificate && X509_set_version(certificate.get(), 2) == 1, "X509_new");
  std::array<unsigned char, 16> serial{};
  require(RAND_bytes(serial.data(), serial.size()) == 1, "RAND_bytes");
  serial[0] &= 0x7f;
  const std::unique_ptr<BIGNUM, Freed<BN_free>> number(BN_bin2bn(serial.data(), serial.size(), nullptr));
  require(number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate.get())) != nullptr,
          "serial number");
  set_validity(certificate.get(), days);
  require(X509_set_pubkey(certificate.get(), key) == 1, "public key");
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  require(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(name.c_str()),
                                     -1, -1, 0) == 1,
          "name");
  return certificate;
}

void sign(X509* certificate, X509* issuer, EVP_PKEY* key) {
  require(X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1 &&
              X509_sign(certificate, key, EVP_sha256()) > 0,
          "signature");
}

Certificate make_authority(EVP_PKEY* key, int days) {
  // Its own name per folder, so that "another authority" and "a broken signature" can be told apart.
  Certificate certificate = certificate_for(key, "trireme authority " + make_token().substr(0, 8), days);
  add_extension(certificate.get(), certificate.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(certificate.get(), certificate.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(certificate.get(), certificate.get(), NID_subject_key_identifier, "hash");
  sign(certificate.get(), certificate.get(), key);
  return certificate;
}

Certificate make_node(EVP_PKEY* key, X509* authority, EVP_PKEY* authority_key, const std::string& name, int days) {
  Certificate certificate = certificate_for(key, name, days);
  add_extension(certificate.get(), authority, NID_basic_constraints, "critical,CA:FALSE");
  add_extension(certificate.get(), authority, NID_key_usage, "critical,digitalSignature");
  add_extension(certificate.get(), authority, NID_ext_key_usage, "serverAuth,clientAuth");
  add_extension(certificate.get(), authority, NID_subject_alt_name, ("DNS:" + name).c_str());
  sign(certificate.get(), authority, authority_key);
  return certificate;
}

std::string content_of(BIO* buffer) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(buffer, &data);
  return {data, static_cast<size_t>(size)};
}

std::string pem_of(X509* certificate) {
  const Buffer buffer(BIO_new(BIO_s_mem()));
  require(PEM_write_bio_X509(buffer.get(), certificate) == 1, "PEM");
  return content_of(buffer.get());
}

std::string pem_of(EVP_PKEY* key) {
  const Buffer buffer(BIO_new(BIO_s_mem()));
  require(PEM_write_bio_PKCS8PrivateKey(buffer.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1, "PEM");
  return content_of(buffer.get());
}

void write_file(const std::filesystem::path& path, const std::string& content, mode_t mode) {
  std::filesystem::remove(path);  // an old file's mode would stay
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file || write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size()))
    fail<IoError>("cannot write {}: {}", path.string(), errno_text());
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  if (!file)
    fail<IoError>("cannot read {}: {}. `trireme tls init DIR` makes such a folder; copy it to every host of the job",
                  path.string(), errno_text());
  return content.str();
}

Buffer memory(const std::string& text) { return Buffer(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

Certificate parse_certificate(const std::string& pem, const std::string& path) {
  Certificate certificate(PEM_read_bio_X509(memory(pem).get(), nullptr, nullptr, nullptr));
  if (!certificate)
    fail<InvalidArgument>("{} is not a certificate ({}): make the folder anew with `trireme tls init --force`", path,
                          openssl_text());
  return certificate;
}

Key parse_key(const std::string& pem, const std::string& path) {
  Key key(PEM_read_bio_PrivateKey(memory(pem).get(), nullptr, nullptr, nullptr));
  if (!key)
    fail<InvalidArgument>("{} is not a private key ({}): make the folder anew with `trireme tls init --force`", path,
                          openssl_text());
  return key;
}

std::string date(const ASN1_TIME* time) {
  std::tm parts{};
  ASN1_TIME_to_tm(time, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min);
}

void check_validity(const X509* certificate, const std::string& path) {
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0)
    fail<InvalidArgument>(
        "the certificate {} is not valid before {}: this host's clock is wrong, or the one where it was made", path,
        date(X509_get0_notBefore(certificate)));
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0)
    fail<InvalidArgument>(
        "the certificate {} has expired on {}: make new ones with `trireme tls init --force` and copy them to all "
        "hosts",
        path, date(X509_get0_notAfter(certificate)));
}

// ---- a handshake by hand: gRPC says that one failed, not why ----

/// OpenSSL writes without MSG_NOSIGNAL: while this lives, a closed connection is an error and not a signal.
class BrokenPipesHeld {
 public:
  BrokenPipesHeld() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~BrokenPipesHeld() {
    const timespec now{};
    if (sigismember(&before_, SIGPIPE) == 0) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BrokenPipesHeld(const BrokenPipesHeld&) = delete;
  BrokenPipesHeld& operator=(const BrokenPipesHeld&) = delete;

 private:
  sigset_t pipe_{}, before_{};
};

void limit_waits(int socket, const Deadline& deadline) {
  const double left = std::max(0.01, deadline.left().count());
  const timeval limit{static_cast<time_t>(left),
                      static_cast<suseconds_t>((left - static_cast<double>(static_cast<time_t>(left))) * 1e6)};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

Connection connection_over(SSL_CTX* context, int socket) {
  constexpr unsigned char kProtocol[] = {2, 'h', '2'};
  Connection connection(SSL_new(context));
  if (!connection || SSL_set_fd(connection.get(), socket) != 1) fail<IoError>("cannot speak TLS: {}", openssl_text());
  SSL_set_alpn_protos(connection.get(), kProtocol, sizeof kProtocol);
  SSL_set_tlsext_host_name(connection.get(), kCertificateName);
  SSL_set1_host(connection.get(), kCertificateName);
  return connection;
}

}  // namespace

void make_certificates(const std::string& folder, const TlsOptions& options) {
  if (options.days == 0 || options.days > 36'500)
    fail<InvalidArgument>("certificates can be valid for 1 to 36500 days, not {}", options.days);
  const std::filesystem::path path(folder);
  for (const char* name : kFiles)
    if (!options.force && std::filesystem::exists(path / name))
      fail<InvalidArgument>("{} exists: hosts that have a copy of it would be shut out. --force replaces it",
                            (path / name).string());
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail<IoError>("cannot make the folder {}: {}", folder, error.message());

  const bool own = options.authority.empty();
  const std::string pem = (std::filesystem::path(options.authority) / "ca.pem").string(),
                    key = (std::filesystem::path(options.authority) / "ca.key").string();
  const Key authority_key = own ? Key(EVP_EC_gen("P-256")) : parse_key(read_file(key), key);
  const Key node_key(EVP_EC_gen("P-256"));
  require(authority_key && node_key, "EC P-256");
  const Certificate authority =
      own ? make_authority(authority_key.get(), options.days) : parse_certificate(read_file(pem), pem);
  const Certificate node = make_node(node_key.get(), authority.get(), authority_key.get(),
                                     options.name.empty() ? kCertificateName : options.name, options.days);
  write_file(path / "ca.key", pem_of(authority_key.get()), 0600);
  write_file(path / "ca.pem", pem_of(authority.get()), 0644);
  write_file(path / "node.key", pem_of(node_key.get()), 0600);
  write_file(path / "node.pem", pem_of(node.get()), 0644);
}

Certificates load_certificates(const std::string& folder, const std::string& host) try {
  const std::filesystem::path path(folder);
  const std::string names[] = {(path / "ca.pem").string(), (path / "node.pem").string(), (path / "node.key").string()};
  Certificates result{read_file(names[0]), read_file(names[1]), read_file(names[2])};
  const Certificate authority = parse_certificate(result.authority, names[0]),
                    node = parse_certificate(result.certificate, names[1]);
  const Key key = parse_key(result.key, names[2]);
  check_validity(authority.get(), names[0]);
  check_validity(node.get(), names[1]);
  if (X509_check_private_key(node.get(), key.get()) != 1) {
    ERR_clear_error();
    fail<InvalidArgument>("{} is not the key of {}: they come from two folders. {}", names[2], names[1], kSameFolder);
  }
  const Key authority_key(X509_get_pubkey(authority.get()));
  if (X509_verify(node.get(), authority_key.get()) != 1) {
    ERR_clear_error();
    fail<InvalidArgument>("{} was not made by {}: they come from two folders. {}", names[1], names[0], kSameFolder);
  }
  return result;
} catch (const InvalidArgument& error) {
  if (host.empty()) throw;
  fail<InvalidArgument>("host {}: {}", host, error.what());
} catch (const IoError& error) {
  if (host.empty()) throw;
  fail<IoError>("host {}: {}", host, error.what());
}

std::string handshake_fault(int socket, const Certificates& own, const Deadline& deadline) {
  const BrokenPipesHeld held;
  ERR_clear_error();
  const Context context(SSL_CTX_new(TLS_client_method()));
  const Certificate authority = parse_certificate(own.authority, "ca.pem"),
                    node = parse_certificate(own.certificate, "node.pem");
  const Key key = parse_key(own.key, "node.key");
  X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), authority.get());
  SSL_CTX_use_certificate(context.get(), node.get());
  SSL_CTX_use_PrivateKey(context.get(), key.get());
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  limit_waits(socket, deadline);
  const Connection connection = connection_over(context.get(), socket);
  const bool connected = SSL_connect(connection.get()) == 1;
  if (const long result = SSL_get_verify_result(connection.get()); result != X509_V_OK) {
    ERR_clear_error();
    return certificate_fault(result);
  }
  // In TLS 1.3 the server judges our certificate after our side is done: its verdict comes with the first read. One
  // that is content sends its HTTP/2 settings.
  char byte = 0;
  if (connected && SSL_read(connection.get(), &byte, 1) == 1) return "";
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  if (std::string text = alert_fault(error); !text.empty()) return text;
  if (deadline.passed()) return "";
  return connected ? fmt::format(
                         "closes the connection when it sees our certificate: it is foreign there, or has expired. {}",
                         kSameFolder)
                   : "";
}

bool speaks_tls(int socket, const Deadline& deadline) {
  const BrokenPipesHeld held;
  ERR_clear_error();
  const Context context(SSL_CTX_new(TLS_client_method()));
  limit_waits(socket, deadline);
  const Connection connection = connection_over(context.get(), socket);
  const bool connected = SSL_connect(connection.get()) == 1;
  const bool certificate_seen = SSL_get0_peer_certificate(connection.get()) != nullptr;
  ERR_clear_error();
  return connected || certificate_seen;
}

bool same_secret(const std::string& given, const std::string& wanted) {
  // Digests have one length, so that not even the secret's length can be measured.
  const auto digest = [](const std::string& text) {
    Sha256 hash;
    hash.add(text.data(), text.size());
    return hash.finish();
  };
  const std::string mine = digest(wanted), theirs = digest(given);
  return CRYPTO_memcmp(mine.data(), theirs.data(), mine.size()) == 0;
}

std::string make_token() {
  std::array<unsigned char, 16> bytes{};
  require(RAND_bytes(bytes.data(), bytes.size()) == 1, "RAND_bytes");
  std::string text;
  for (unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace trireme::cluster
