#pragma once
// What is wrong when two sides of a TLS connection do not go together, as the rest of a sentence that begins with the
// other side's name.
#include <string>

namespace trireme {

/// What all certificates of `trireme tls init` are issued to. One for somebody else is refused, whoever made it.
constexpr const char* kCertificateName = "trireme";

/// What to do about most of them.
constexpr const char* kSameFolder = "Copy one folder of `trireme tls init` to all hosts";

/// Of the other side's certificate; `result` is OpenSSL's verification result, not X509_V_OK.
std::string certificate_fault(long result);

/// "a certificate for another name than ...".
std::string certificate_name_fault();

/// What the other side said, or did not say, to ours; "" when `error`, an error code of OpenSSL's, is about something
/// else.
std::string alert_fault(unsigned long error);

}  // namespace trireme
