// label: unit
// The doctor's responder: it measures for who knows its secret, and strangers keep nobody waiting.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <tools/preflight.h>

#include <cmath>
#include <random>

#include <trireme/base/descriptor.h>

namespace trireme::tools {
namespace {

Descriptor connection_to(int port) {
  Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return client;
}

TEST(Responder, MeasuresForWhoKnowsTheSecret) {
  const Responder responder("127.0.0.1");
  for (int i = 0; i < 2; i++) {
    const MeasuredLink link = measure_link("127.0.0.1", responder.port(), responder.secret(), Seconds(0.05));
    EXPECT_EQ(link.fault, "");
    EXPECT_GT(link.bandwidth, 0);
    EXPECT_LT(std::abs(link.clock), 1);
  }
}

TEST(Responder, AnswersNobodyElse) {
  const Responder responder("127.0.0.1");
  std::string wrong = responder.secret();
  wrong.back() ^= 1;
  for (const std::string& shown : {wrong, std::string(responder.secret().size(), 'x')})
    EXPECT_NE(measure_link("127.0.0.1", responder.port(), shown, Seconds(0.05)).fault, "");
}

/// More than it has places for: silent ones, half a secret, noise. A measurement takes three seconds at most to fail.
TEST(Responder, StrangersKeepNobodyWaiting) {
  const Responder responder("127.0.0.1");
  std::mt19937 random(7);
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 100; i++) {
    strangers.push_back(connection_to(responder.port()));
    std::string said = i % 3 == 0 ? "" : responder.secret().substr(0, random() % responder.secret().size());
    if (i % 3 == 2)
      for (char& c : said) c = static_cast<char>(random());
    EXPECT_EQ(send(strangers.back().get(), said.data(), said.size(), MSG_NOSIGNAL), static_cast<ssize_t>(said.size()));
    if (i % 10 == 5)
      EXPECT_EQ(measure_link("127.0.0.1", responder.port(), responder.secret(), Seconds(0.02)).fault, "");
  }
  EXPECT_EQ(measure_link("127.0.0.1", responder.port(), responder.secret(), Seconds(0.02)).fault, "");
}

}  // namespace
}  // namespace trireme::tools
