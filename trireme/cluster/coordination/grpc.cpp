#include "grpc.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <algorithm>
#include <csignal>
#include <string_view>

#include <trireme/base/tls_faults.h>
#include <trireme/cluster/coordination/coordinator.h>

namespace trireme::cluster {
namespace {

/// gRPC has verified who made the client's certificate, but not for whom: an authority may have made others too.
class OurCertificates final : public grpc::AuthMetadataProcessor {
 public:
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& /*metadata*/, grpc::AuthContext* context, OutputMetadata* /*consumed*/,
                       OutputMetadata* /*answer*/) override {
    const auto names = context->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME);
    const bool ours = std::any_of(names.begin(), names.end(), [](const grpc::string_ref& name) {
      return std::string_view(name.data(), name.size()) == kCertificateName;
    });
    if (ours) return grpc::Status::OK;
    return {grpc::StatusCode::UNAUTHENTICATED, "refuses " + certificate_name_fault()};
  }
};

}  // namespace

void prepare_grpc() {
  gpr_set_log_function([](gpr_log_func_args*) {});  // the library never prints; errors arrive as statuses
}

struct SignalsBlocked::Before {
  sigset_t signals;
};

SignalsBlocked::SignalsBlocked() : before_(std::make_unique<Before>()) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before_->signals);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_->signals, nullptr); }

std::string token_of(const grpc::ServerContextBase& context) {
  const auto entry = context.client_metadata().find(kTokenKey);
  return entry == context.client_metadata().end() ? "" : std::string(entry->second.data(), entry->second.size());
}

std::string address_of(const std::string& peer) {
  const size_t begin = peer.find(':'), end = peer.rfind(':');
  if (begin == std::string::npos || end <= begin) return "";
  std::string address = peer.substr(begin + 1, end - begin - 1);
  for (const char* bracket : {"%5B", "%5D", "[", "]"})
    if (const size_t place = address.find(bracket); place != std::string::npos)
      address.erase(place, std::string_view(bracket).size());
  constexpr std::string_view kMapped = "::ffff:";  // how a socket for both families shows IPv4
  return address.starts_with(kMapped) ? address.substr(kMapped.size()) : address;
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(const std::string& folder) {
  if (folder.empty()) return grpc::InsecureServerCredentials();
  const Certificates certificates = load_certificates(folder, own_host_name());
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = certificates.authority;
  options.pem_key_cert_pairs.push_back({certificates.key, certificates.certificate});
  auto credentials = grpc::SslServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<OurCertificates>());
  return credentials;
}

std::shared_ptr<grpc::Channel> channel_to(const std::string& target, const std::optional<Certificates>& certificates,
                                          grpc::ChannelArguments arguments) {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  if (!certificates) return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  arguments.SetSslTargetNameOverride(kCertificateName);
  return grpc::CreateCustomChannel(
      target, grpc::SslCredentials({certificates->authority, certificates->key, certificates->certificate}), arguments);
}

}  // namespace trireme::cluster
