// label: unit
// Messages that nobody has sent: cut, damaged, made up. A decoder adds what they say, or throws Corruption and has
// changed nothing; in no case does it touch other memory.
#include <gtest/gtest.h>

#include <trireme/base/error.h>

#include "gradients.h"

namespace trireme::compress::tests {
namespace {

constexpr int kMessages = 100'000;  // of all codecs together
constexpr size_t kGuard = 64;
constexpr float kUntouched = 0.25f;

/// One that was sent, with some of it replaced.
Bytes hostile(const Bytes& sent, std::mt19937_64& random) {
  Bytes message = sent;
  const auto number = [&](size_t below) { return static_cast<size_t>(random() % below); };
  switch (number(6)) {
    case 0:  // cut, or too long
      message.resize(number(2 * message.size() + 2));
      break;
    case 1:  // noise behind a true header
      for (size_t i = Codec::kHeader; i < message.size(); i++) message[i] = static_cast<std::byte>(random());
      break;
    case 2:  // noise
      for (std::byte& byte : message) byte = static_cast<std::byte>(random());
      break;
    case 3:  // a bit
      message[number(message.size())] ^= static_cast<std::byte>(1u << number(8));
      break;
    case 4: {  // an extreme number somewhere
      constexpr uint32_t kNumbers[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0x7f800000, 0xff800000, 0x7fc00000};
      const uint32_t value = kNumbers[number(std::size(kNumbers))];
      if (message.size() >= Codec::kHeader + 4)
        std::memcpy(message.data() + number((message.size() - 4) / 4 + 1) * 4, &value, 4);
      break;
    }
    default: {  // two parts change places
      const size_t length = number(message.size() / 2 + 1), a = number(message.size() - length + 1),
                   b = number(message.size() - length + 1);
      for (size_t i = 0; i < length; i++) std::swap(message[a + i], message[b + i]);
    }
  }
  return message;
}

TEST(Decoders, TakeNoHarmFromHostileMessages) {
  std::mt19937_64 random(20);
  int refused = 0, taken = 0;
  for (int i = 0; i < kMessages; i++) {
    const std::string& name = kCodecs[static_cast<size_t>(i) % kCodecs.size()];
    const size_t count = kSizes[random() % (std::size(kSizes) - 2)];
    const auto codec = codec_of(name);
    const Strip strip = strip_of(count, random());
    const Bytes message = hostile(encoded(*codec, strip, gradient_of(count, 1)), random);
    Values into(count + 2 * kGuard, kUntouched);
    try {
      codec->add(strip, message, into.data() + kGuard);
      taken++;
    } catch (const Corruption& error) {
      refused++;
      ASSERT_GT(std::string(error.what()).size(), 20u);
      for (const float value : into) ASSERT_EQ(value, kUntouched) << name << ": " << error.what();
    }
    for (size_t k = 0; k < kGuard; k++)
      ASSERT_TRUE(into[k] == kUntouched && into[into.size() - 1 - k] == kUntouched) << name;
  }
  EXPECT_GT(refused, kMessages / 4);
  EXPECT_GT(taken, kMessages / 10);
}

TEST(Decoders, NameWhatIsWrong) {
  const Strip strip = strip_of(1000);
  const Values values = gradient_of(1000, 1);
  const auto error_of = [&](const std::string& name, size_t at, uint32_t value) -> std::string {
    const auto codec = codec_of(name);
    Bytes message = encoded(*codec, strip, values);
    std::memcpy(message.data() + at, &value, sizeof value);
    try {
      decoded(*codec, strip, message);
      return "";
    } catch (const Corruption& error) {
      return error.what();
    }
  };
  EXPECT_NE(error_of("topk:0.01", 8, 1000).find("index 0 of 10"), std::string::npos);
  EXPECT_NE(error_of("topk:0.01", 12, 0).find("indices rise"), std::string::npos);
  EXPECT_NE(error_of("topk:0.01", 8 + 40, 0x7fc00000).find("NaN"), std::string::npos);
  EXPECT_NE(error_of("int8", 8, 0xbf800000).find("scale of block 0"), std::string::npos);
  EXPECT_NE(error_of("sign", 8, 0x7f800000).find("scale of block 0"), std::string::npos);
  EXPECT_NE(error_of("sketch:0.3", 16, 0x7fc00000).find("NaN"), std::string::npos);
  EXPECT_NE(error_of("fp16", 4, 999).find("999 elements"), std::string::npos);
  EXPECT_NE(error_of("fp16", 0, 0x00010002).find("codec 2"), std::string::npos);
  const auto codec = codec_of("fp16");
  EXPECT_THROW(decoded(*codec, strip, Bytes(17)), Corruption);
}

}  // namespace
}  // namespace trireme::compress::tests
