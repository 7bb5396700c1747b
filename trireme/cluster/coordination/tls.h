#pragma once
// Certificates of a job's hosts: one authority and one certificate that all hosts share, in a folder. Mutual TLS: who
// has no certificate of the folder is not heard.
#include <string>

#include <trireme/base/clock.h>

namespace trireme::cluster {

/// The content of a folder, as PEM.
struct Certificates {
  std::string authority, certificate, key;
};

struct TlsOptions {
  int days = 365;      // validity, from now on. Below 0: makes certificates that expired that many days ago, for tests
  bool force = false;  // replaces files that are there
  std::string name{};  // for tests: to whom the certificate is issued, if not to kCertificateName
  std::string authority{};  // for tests: the folder whose authority makes it; default: one of its own
};

/// Writes ca.pem, ca.key, node.pem and node.key (EC P-256; keys with mode 0600). Makes the folder. Throws
/// InvalidArgument when one of the files exists, IoError.
void make_certificates(const std::string& folder, const TlsOptions& options = {});

/// Throws IoError when a file is missing or unreadable, InvalidArgument that says what is wrong: not yet valid, expired
/// since when, key of another certificate. The folder is on every host: `host`, if given, is the one that the message
/// names.
Certificates load_certificates(const std::string& folder, const std::string& host = "");

/// Why a TLS handshake over this connected socket fails, as the rest of a sentence that begins with the other side's
/// name, or "" when it does not. Blocks until the deadline.
std::string handshake_fault(int socket, const Certificates& own, const Deadline& deadline);

/// Does the other side speak TLS at all? Blocks until the deadline.
bool speaks_tls(int socket, const Deadline& deadline);

/// Compares secrets. Takes the same time whatever they are, of whatever length.
bool same_secret(const std::string& given, const std::string& wanted);

/// 32 hexadecimal digits from the system's source of randomness.
std::string make_token();

}  // namespace trireme::cluster
