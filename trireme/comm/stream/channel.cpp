#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/base/sha256.h>
#include <trireme/base/tls_faults.h>
#include <trireme/comm/stream/channel.h>

namespace trireme::comm::stream {
namespace {

constexpr const char* kIdentity = "trireme stream";  // of the pre-shared key
constexpr unsigned kContextBytes = 7;                // of it: sessions are for this alone
constexpr size_t kReadAhead = 256 << 10;             // bytes of one read of the socket

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Buffer = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

std::string reason_text() {
  const unsigned long error = ERR_peek_last_error();
  const char* const text = ERR_reason_error_string(error);
  return text == nullptr ? "unknown error" : text;
}

void need(bool done, const char* what) {
  if (done) return;
  const std::string text = reason_text();
  ERR_clear_error();
  fail<InvalidArgument>("the engine 'stream' cannot use {}: {}", what, text);
}

Proof hmac(const std::string& key, std::string_view text) {
  Proof result{};
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), reinterpret_cast<unsigned char*>(result.data()), &size);
  return result;
}

std::string chars_of(const Proof& proof) { return {reinterpret_cast<const char*>(proof.data()), proof.size()}; }

Buffer memory(const std::string& text) { return Buffer(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

Certificate parse_certificate(const std::string& pem, const char* what) {
  Certificate certificate(PEM_read_bio_X509(memory(pem).get(), nullptr, nullptr, nullptr));
  need(certificate != nullptr, what);
  return certificate;
}

void use_certificates(SSL_CTX* context, const network::Secrets& secrets) {
  const Certificate authority = parse_certificate(secrets.authority, "the authority's certificate"),
                    own = parse_certificate(secrets.certificate, "this host's certificate");
  const PrivateKey key(PEM_read_bio_PrivateKey(memory(secrets.key).get(), nullptr, nullptr, nullptr));
  need(key != nullptr && SSL_CTX_use_certificate(context, own.get()) == 1 &&
           SSL_CTX_use_PrivateKey(context, key.get()) == 1,
       "the key of this host's certificate");
  need(X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) == 1, "the authority's certificate");
}

// ---- the token as a key ----

SSL_SESSION* session_of(SSL* ssl) {
  constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
  const auto& key = static_cast<const Credentials*>(SSL_get_app_data(ssl))->key();
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  if (SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()), key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kAes128GcmSha256)) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      SSL_SESSION_set1_id_context(session, reinterpret_cast<const unsigned char*>(kIdentity), kContextBytes) == 1)
    return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int offer_token(SSL* ssl, const EVP_MD* hash, const unsigned char** identity, size_t* size, SSL_SESSION** session) {
  *identity = reinterpret_cast<const unsigned char*>(kIdentity);
  *size = std::strlen(kIdentity);
  *session = hash == nullptr || EVP_MD_get_type(hash) == NID_sha256 ? session_of(ssl) : nullptr;
  return 1;
}

int find_token(SSL* ssl, const unsigned char* identity, size_t size, SSL_SESSION** session) {
  const bool ours = size == std::strlen(kIdentity) && std::memcmp(identity, kIdentity, size) == 0;
  *session = ours ? session_of(ssl) : nullptr;
  return 1;
}

std::shared_ptr<SSL_CTX> make_context(const network::Secrets& secrets, bool by_certificate) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_method()), Freed<SSL_CTX_free>());
  need(context != nullptr && SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256") == 1,
       "TLS 1.3");
  SSL_CTX_set_num_tickets(context.get(), 0);  // nothing is resumed
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_session_id_context(context.get(), reinterpret_cast<const unsigned char*>(kIdentity), kContextBytes);
  // With the token alone too: a certificate instead of it is none of an authority that we know.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (by_certificate) {
    use_certificates(context.get(), secrets);
  } else {
    SSL_CTX_set_psk_use_session_callback(context.get(), offer_token);
    SSL_CTX_set_psk_find_session_callback(context.get(), find_token);
  }
  return context;
}

}  // namespace

Credentials::Credentials(const network::Secrets& secrets)
    : by_certificate_(!secrets.certificate.empty()), key_(chars_of(hmac(secrets.token, "trireme stream key"))) {
  if (secrets.token.empty()) fail<InvalidArgument>("the engine 'stream' needs the job's token: set TRIREME_TOKEN");
  context_ = make_context(secrets, by_certificate_);
  Sha256 digest;
  const std::string text = "trireme stream job " + secrets.job;
  digest.add(text.data(), text.size());
  job_ = digest.finish().substr(0, 32);
}

Proof Credentials::proof(const Proof& binding, const std::string& text) const {
  return hmac(key_, chars_of(binding) + text);
}

bool same(const Proof& left, const Proof& right) { return CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0; }

// ---- between OpenSSL and the socket ----

/// OpenSSL's own sockets would raise SIGPIPE, write each record of 16 KiB by itself, and read it with two calls; its
/// reading ahead moves all that it has read to the front for each record.
struct Channel::Pipe {
  Descriptor socket;
  std::vector<std::byte> leaving{};  // encrypted
  size_t left = 0;                   // of these, bytes that have gone
  std::unique_ptr<std::byte[]> arrived = std::make_unique_for_overwrite<std::byte[]>(kReadAhead);
  size_t begin = 0, end = 0;  // of what was read and not taken
  int error = 0;              // of the socket
  bool ended = false;         // the other side writes no more

  static Pipe& of(BIO* bio) { return *static_cast<Pipe*>(BIO_get_data(bio)); }

  static int write(BIO* bio, const char* data, int size) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(data);
    of(bio).leaving.insert(of(bio).leaving.end(), bytes, bytes + size);
    return size;
  }
  static int read(BIO* bio, char* data, int size) {
    Pipe& pipe = of(bio);
    BIO_clear_retry_flags(bio);
    if (pipe.begin == pipe.end) {
      const ssize_t n = recv(pipe.socket.get(), pipe.arrived.get(), kReadAhead, MSG_DONTWAIT);
      if (n <= 0) return pipe.no_bytes(bio, n);
      pipe.begin = 0;
      pipe.end = static_cast<size_t>(n);
    }
    const size_t taken = std::min(static_cast<size_t>(size), pipe.end - pipe.begin);
    std::memcpy(data, pipe.arrived.get() + pipe.begin, taken);
    pipe.begin += taken;
    return static_cast<int>(taken);
  }
  int no_bytes(BIO* bio, ssize_t result) {
    ended = result == 0;
    if (ended) return 0;
    if (errno == EAGAIN || errno == EINTR)
      BIO_set_retry_read(bio);
    else
      error = errno;
    return -1;
  }
  static long control(BIO* bio, int what, long, void*) {
    if (what == BIO_CTRL_EOF) return of(bio).ended ? 1 : 0;
    return what == BIO_CTRL_FLUSH ? 1 : 0;
  }
  static const BIO_METHOD* method() {
    static const std::unique_ptr<BIO_METHOD, Freed<BIO_meth_free>> made = [] {
      std::unique_ptr<BIO_METHOD, Freed<BIO_meth_free>> m(
          BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "trireme socket"));
      BIO_meth_set_write(m.get(), write);
      BIO_meth_set_read(m.get(), read);
      BIO_meth_set_ctrl(m.get(), control);
      return m;
    }();
    return made.get();
  }
};

Channel::Channel(const Credentials& credentials, Descriptor socket, Side side, uint64_t rekey)
    : credentials_(credentials),
      pipe_(new Pipe{.socket = std::move(socket)}),
      ssl_(SSL_new(credentials.context()), SSL_free),
      rekey_(rekey) {
  BIO* const bio = BIO_new(Pipe::method());
  if (ssl_ == nullptr || bio == nullptr) fail<IoError>("cannot speak TLS: {}", reason_text());
  BIO_set_data(bio, pipe_.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), const_cast<Credentials*>(&credentials_));
  if (credentials.by_certificate()) SSL_set1_host(ssl_.get(), kCertificateName);  // of either side
  side == Side::accepts ? SSL_set_accept_state(ssl_.get()) : SSL_set_connect_state(ssl_.get());
}

Channel::~Channel() { ERR_clear_error(); }

int Channel::socket() const { return pipe_->socket.get(); }

bool Channel::shake_hands() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) {
    if (!credentials_.by_certificate() && SSL_session_reused(ssl_.get()) != 1)
      fail<InvalidArgument>("did not use the job's token");
    flush();
    return true;
  }
  const int error = SSL_get_error(ssl_.get(), result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    flush();
    return false;
  }
  refused(error);
}

Proof Channel::binding() const {
  constexpr std::string_view kLabel = "EXPORTER-trireme-stream";
  Proof result{};
  if (SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(result.data()), result.size(),
                                 kLabel.data(), kLabel.size(), nullptr, 0, 0) != 1)
    fail<IoError>("cannot speak TLS: {}", reason_text());
  return result;
}

std::optional<size_t> Channel::read(std::span<std::byte> room) {
  size_t bytes = 0;
  ERR_clear_error();
  if (SSL_read_ex(ssl_.get(), room.data(), room.size(), &bytes) == 1) return bytes;
  const int error = SSL_get_error(ssl_.get(), 0);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return 0;
  if (error == SSL_ERROR_ZERO_RETURN) return std::nullopt;
  broken(error);
}

void Channel::write(std::span<const std::byte> data) {
  if (data.empty()) return;
  under_this_key_ += data.size();
  if (under_this_key_ > rekey_) {
    under_this_key_ = 0;
    SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  size_t bytes = 0;
  ERR_clear_error();
  if (SSL_write_ex(ssl_.get(), data.data(), data.size(), &bytes) != 1 || bytes != data.size())
    broken(SSL_get_error(ssl_.get(), 0));
}

bool Channel::flush() {
  Pipe& pipe = *pipe_;
  while (pipe.left < pipe.leaving.size()) {
    const ssize_t n = send(pipe.socket.get(), pipe.leaving.data() + pipe.left, pipe.leaving.size() - pipe.left,
                           MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    if (n < 0) fail<IoError>("its connection was closed ({})", errno_text());
    pipe.left += static_cast<size_t>(n);
  }
  pipe.leaving.clear();
  pipe.left = 0;
  return true;
}

void Channel::say_goodbye() {
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
}

void Channel::shut_down() { shutdown(pipe_->socket.get(), SHUT_WR); }

/// In the middle of everything. Also tells the other side what is wrong, if it can be told.
void Channel::broken(int result) {
  const unsigned long error = ERR_peek_last_error();
  const int reason = ERR_GET_REASON(error);
  const std::string text = reason_text();
  ERR_clear_error();
  if (pipe_->error != 0) fail<IoError>("its connection was closed ({})", errno_text(pipe_->error));
  if (pipe_->ended) fail<IoError>("its connection was closed");
  try {
    flush();
  } catch (const IoError&) {  // then it is not told
  }
  // In TLS 1.3 the other side's verdict on our certificate comes after our side is done.
  if (const std::string fault = alert_fault(error); reason > SSL_AD_REASON_OFFSET && !fault.empty())
    fail<InvalidArgument>("{}", fault);
  if (reason == SSL_R_SSLV3_ALERT_BAD_RECORD_MAC)
    fail<IoError>("it says that what we sent was changed on its way, or sent by somebody else");
  if (result == SSL_ERROR_SSL)
    fail<IoError>("what came from it was changed on its way, or sent by somebody else: {}", text);
  fail<IoError>("its connection broke: {}", text);
}

void Channel::refused(int result) {
  const unsigned long error = ERR_peek_last_error();
  const int reason = ERR_GET_REASON(error);
  const std::string text = reason_text();
  const bool told = reason > SSL_AD_REASON_OFFSET;  // by an alert
  ERR_clear_error();
  try {
    flush();
  } catch (const IoError&) {
  }
  if (pipe_->error != 0) fail<IoError>("closed the connection ({})", errno_text(pipe_->error));
  if (pipe_->ended) fail<IoError>("closed the connection before it had said who it is");
  if (credentials_.by_certificate()) {
    if (const long verified = SSL_get_verify_result(ssl_.get()); verified != X509_V_OK)
      fail<InvalidArgument>("{}", certificate_fault(verified));
    if (const std::string fault = alert_fault(error); !fault.empty()) fail<InvalidArgument>("{}", fault);
    if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
      fail<InvalidArgument>("has shown no certificate. {}", kSameFolder);
  } else if (told || reason == SSL_R_BINDER_DOES_NOT_VERIFY || SSL_get_verify_result(ssl_.get()) != X509_V_OK ||
             SSL_get0_peer_certificate(ssl_.get()) != nullptr) {
    fail<InvalidArgument>(
        "has another token than ours, or certificates where we have none: give all ranks of a job the same "
        "TRIREME_TOKEN and the same --tls");
  }
  if (result == SSL_ERROR_SSL && !told) fail<InvalidArgument>("does not speak as ranks do ({})", text);
  fail<InvalidArgument>("ends the handshake: {}", text);
}

}  // namespace trireme::comm::stream
