#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <trireme/base/tls_faults.h>

namespace trireme {
std::string certificate_fault(long result) {
  switch (result) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "has a certificate that has expired: make new ones with `trireme tls init --force` and copy them to all "
             "hosts";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "has a certificate that is not yet valid: compare the clocks of the hosts";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return fmt::format("has a foreign certificate: another authority made it than ours. {}", kSameFolder);
    case X509_V_ERR_HOSTNAME_MISMATCH:
      return fmt::format("has {}", certificate_name_fault());
    default:
      return fmt::format("has a certificate that does not hold: {}. {}", X509_verify_cert_error_string(result),
                         kSameFolder);
  }
}

std::string certificate_name_fault() {
  return fmt::format("a certificate for another name than '{}'. {}", kCertificateName, kSameFolder);
}

std::string alert_fault(unsigned long error) {
  switch (ERR_GET_REASON(error)) {
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return fmt::format("finds our certificate foreign: another authority made it than its own. {}", kSameFolder);
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "says that our certificate has expired: make new ones with `trireme tls init --force`, or compare the "
             "clocks of the hosts";
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
      return "does not speak TLS: start it with certificates (--tls or TRIREME_TLS), or leave them out here";
    default:
      return "";
  }
}

}  // namespace trireme
