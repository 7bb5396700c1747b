// The part of the contract about what is started and waited for later, uneven blocks, and messages that cross.
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>

#include "contract.h"

namespace trireme::tests {
namespace {

using comm::Started;

/// Which ranks bring memory that the engine knows best.
enum class Kind { own, foreign, mixed };
constexpr Kind kKinds[] = {Kind::own, Kind::foreign, Kind::mixed};

/// Memory for one case: each rank's is its own kind. Taken from the engine once, because that completes what was
/// started.
class Places {
 public:
  using Allocate = std::function<std::byte*(Communicator&, size_t)>;
  /// Collective. `room`: bytes, the same on all ranks.
  Places(Communicator& group, Kind kind, const Allocate& allocate, size_t room) : left_(room) {
    std::byte* const known = allocate(group, room);
    if (kind == Kind::own || (kind == Kind::mixed && group.rank() % 2 == 1)) {
      next_ = known;
    } else {
      foreign_.resize(room);
      next_ = foreign_.data();
    }
  }

  std::byte* take(size_t bytes) {
    const size_t lines = bytes / 64 * 64 + 64;
    if (lines > left_) throw std::logic_error("the test has asked for too little memory");
    left_ -= lines;
    return std::exchange(next_, next_ + lines);
  }
  std::byte* take(const Bytes& content) {
    std::byte* const place = take(content.size());
    copy(place, content);
    return place;
  }

 private:
  size_t left_;
  std::byte* next_ = nullptr;
  Bytes foreign_;
};

size_t sum(const std::vector<size_t>& counts, size_t until) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<ptrdiff_t>(until), size_t{0});
}

/// Lists of counts for a number of ranks: with zeros, one that has all, nobody with anything, more than a stage.
std::vector<std::vector<size_t>> lists_of(size_t ranks) {
  std::vector<std::vector<size_t>> lists(5, std::vector<size_t>(ranks));
  for (size_t r = 0; r < ranks; r++) {
    lists[0][r] = r % 2 == 0 ? 0 : 3 * r + 1;
    lists[1][r] = r + 1 == ranks ? 70001 : 0;
    lists[3][r] = 1000 * r + 17;
    lists[4][r] = r == 0 ? 40000 : 12345 + r;
  }
  return lists;
}

/// A collective on its way, with what it must give.
struct Going {
  Started work;
  std::byte* place;
  DType type;
  Bytes wanted;
};

class Everything {
 public:
  Everything(Communicator& group, Places& places) : group_(group), places_(places) {}

  void start_one_of_each(size_t count, DType type) {
    const size_t n = static_cast<size_t>(group_.size()), me = static_cast<size_t>(group_.rank());
    const auto mine = [&](size_t i) { return value(group_.rank(), i); };
    const auto total = [&](size_t i) { return reduced(Op::sum, group_.size(), i); };
    std::byte* place = places_.take(encode(type, count, mine));
    going_.push_back(
        {group_.start_allreduce(place, count, type, Op::sum, "sum"), place, type, encode(type, count, total)});

    std::vector<size_t> counts(n, count);
    counts[n - 1] = count / 3;
    const size_t all = sum(counts, n), before = sum(counts, me);
    std::byte* input = places_.take(encode(type, all, mine));
    place = places_.take(counts[me] * size_of(type));
    going_.push_back({group_.start_reduce_scatter(input, place, counts, type, Op::max, "blocks"), place, type,
                      encode(type, counts[me], [&](size_t i) { return reduced(Op::max, group_.size(), before + i); })});

    input = places_.take(encode(type, counts[me], mine));
    place = places_.take(all * size_of(type));
    Bytes wanted;
    for (size_t r = 0; r < n; r++) {
      const Bytes theirs = encode(type, counts[r], [&](size_t i) { return value(static_cast<int>(r), i); });
      wanted.insert(wanted.end(), theirs.begin(), theirs.end());
    }
    going_.push_back({group_.start_all_gather(input, place, counts, type, "pieces"), place, type, wanted});

    const int root = static_cast<int>(count % n);
    place = places_.take(encode(type, count, mine));
    going_.push_back({group_.start_broadcast(place, count, type, root, "word"), place, type,
                      encode(type, count, [&](size_t i) { return value(root, i); })});

    going_.push_back({group_.start_barrier("gate"), place, type, {}});

    input = places_.take(encode(type, count * n, mine));
    place = places_.take(count * n * size_of(type));
    wanted = encode(type, count * n, [&](size_t i) {
      return value(static_cast<int>(i / std::max<size_t>(count, 1)), me * count + i % std::max<size_t>(count, 1));
    });
    going_.push_back({group_.start_all_to_all(input, place, count, count, type, "letters"), place, type, wanted});
  }

  std::vector<Going>& all() { return going_; }
  void check() const {
    for (size_t k = 0; k < going_.size(); k++)
      EXPECT_TRUE(same(going_[k].type, going_[k].place, going_[k].wanted)) << "work " << k << " on " << group_.rank();
  }

 private:
  Communicator& group_;
  Places& places_;
  std::vector<Going> going_;
};

}  // namespace

void bring_started_tests() {}

// ---- started collectives ----

TEST_P(Contract, EveryStartedCollectiveCompletes) {
  const Places::Allocate from_engine = [](Communicator& group, size_t bytes) { return allocate(group, bytes); };
  for (const Kind kind : kKinds)
    for (const int way : {0, 1, 2})  // wait in order, wait backwards, only test
      run([&](Communicator& group) {
        Places places(group, kind, from_engine, (8 + 4 * static_cast<size_t>(group.size())) * 50000 * 8);
        Everything started(group, places);
        for (const size_t count : {size_t{1000}, size_t{0}, size_t{40001}})
          started.start_one_of_each(count, count == 1000 ? DType::f32 : DType::i64);
        auto& all = started.all();
        for (size_t k = 0; k < all.size(); k++) {
          comm::Work& work = *all[way == 1 ? all.size() - 1 - k : k].work;
          while (way == 2 && !work.test()) std::this_thread::yield();
          if (way != 2) work.wait();
        }
        for (auto& one : all) EXPECT_TRUE(one.work->test());
        started.check();
      });
}

TEST_P(Contract, TheLaterOfTwoMayBeWaitedForFirst) {
  run([&](Communicator& group) {
    Bytes a = encode(DType::f32, 50000, [&](size_t i) { return value(group.rank(), i); });
    Bytes b = a;
    const Started first = group.start_allreduce(a.data(), 50000, DType::f32, Op::sum, "first");
    const Started second = group.start_broadcast(b.data(), 50000, DType::f32, 0, "second");
    second->wait();
    first->wait();
    EXPECT_TRUE(first->test());
    EXPECT_TRUE(same(DType::f32, a.data(),
                     encode(DType::f32, 50000, [&](size_t i) { return reduced(Op::sum, group.size(), i); })));
    EXPECT_TRUE(same(DType::f32, b.data(), encode(DType::f32, 50000, [&](size_t i) { return value(0, i); })));
  });
}

TEST_P(Contract, HundredsOfPrivateOnesMayBeStartedBeforeTheFirstWait) {
  run([&](Communicator& group) {
    constexpr size_t kWorks = 200, kCount = 3000;
    std::vector<std::vector<int32_t>> data(kWorks, std::vector<int32_t>(kCount, group.rank() + 1));
    std::vector<Started> works;
    for (size_t k = 0; k < kWorks; k++)
      works.push_back(k % 3 == 0 ? group.start_broadcast(data[k].data(), kCount, DType::i32, 0, "one of many")
                                 : group.start_allreduce(data[k].data(), kCount, DType::i32, Op::sum, "one of many"));
    for (const auto& work : works) work->wait();
    const int n = group.size();
    for (size_t k = 0; k < kWorks; k++)
      ASSERT_EQ(data[k], std::vector<int32_t>(kCount, k % 3 == 0 ? 1 : n * (n + 1) / 2)) << k;
  });
}

TEST_P(Contract, WhoWaitsAtOnceMeetsWhoWaitsLater) {
  run([&](Communicator& group) {
    for (int round = 0; round < 20; round++) {
      std::vector<double> data(5000, group.rank() + round);
      if (group.rank() % 2 == round % 2)
        group.allreduce(data.data(), data.size(), DType::f64, Op::max, "x");
      else
        group.start_allreduce(data.data(), data.size(), DType::f64, Op::max, "x")->wait();
      ASSERT_EQ(data, std::vector<double>(5000, group.size() - 1 + round));
    }
  });
}

TEST_P(Contract, StartedAllreducesOfEveryKindOfMemory) {
  const Places::Allocate from_engine = [](Communicator& group, size_t bytes) { return allocate(group, bytes); };
  for (const Kind kind : kKinds)
    run([&](Communicator& group) {
      for (const DType type : kTypes) {
        Places places(group, kind, from_engine, 500000 * 8);
        std::vector<Going> going;
        for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, kLarge[0], size_t{3}, kLarge[1]})
          for (const Op op : {Op::sum, Op::mean}) {
            std::byte* const place = places.take(encode(type, count, [&](size_t i) { return value(group.rank(), i); }));
            going.push_back({group.start_allreduce(place, count, type, op, "gradient"), place, type,
                             encode(type, count, [&](size_t i) { return reduced(op, group.size(), i); })});
          }
        for (auto& one : going) one.work->wait();
        for (auto& one : going) EXPECT_TRUE(same(type, one.place, one.wanted)) << "rank " << group.rank();
      }
    });
}

// ---- uneven blocks ----

TEST_P(Contract, ReduceScatterOfUnevenBlocks) {
  const Places::Allocate from_engine = [](Communicator& group, size_t bytes) { return allocate(group, bytes); };
  for (const Kind kind : kKinds)
    run([&](Communicator& group) {
      const size_t n = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
      for (const auto& counts : lists_of(n))
        for (const DType type : {DType::f32, DType::f16}) {
          const Op op = type == DType::f32 ? Op::mean : Op::sum;
          Places places(group, kind, from_engine, 400000 * 4);
          const size_t before = sum(counts, me);
          std::byte* const input =
              places.take(encode(type, sum(counts, n), [&](size_t i) { return value(group.rank(), i); }));
          std::byte* const output = places.take(counts[me] * size_of(type));
          group.reduce_scatter(input, output, counts, type, op, "blocks");
          EXPECT_TRUE(same(type, output,
                           encode(type, counts[me], [&](size_t i) { return reduced(op, group.size(), before + i); })));
        }
    });
}

TEST_P(Contract, AllGatherOfUnevenBlocks) {
  const Places::Allocate from_engine = [](Communicator& group, size_t bytes) { return allocate(group, bytes); };
  for (const Kind kind : kKinds)
    run([&](Communicator& group) {
      const size_t n = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
      for (const auto& counts : lists_of(n)) {
        Places places(group, kind, from_engine, 400000 * 4);
        std::byte* const input =
            places.take(encode(DType::i32, counts[me], [&](size_t i) { return value(group.rank(), i); }));
        std::byte* const output = places.take(sum(counts, n) * 4);
        group.all_gather(input, output, counts, DType::i32, "pieces");
        for (size_t r = 0; r < n; r++)
          EXPECT_TRUE(same(DType::i32, output + sum(counts, r) * 4,
                           encode(DType::i32, counts[r], [&](size_t i) { return value(static_cast<int>(r), i); })))
              << "block " << r;
      }
    });
}

TEST_P(Contract, AllToAllOfUnevenBlocks) {
  const Places::Allocate from_engine = [](Communicator& group, size_t bytes) { return allocate(group, bytes); };
  const auto between = [](size_t from, size_t to) { return (from + 2 * to) % 3 == 0 ? 0 : 9000 * from + 30 * to + 1; };
  for (const Kind kind : kKinds)
    run([&](Communicator& group) {
      const size_t n = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
      Places places(group, kind, from_engine, n * n * 2 * 9100 * 8 + 1000);
      std::vector<size_t> sends, receives;
      for (size_t r = 0; r < n; r++) {
        sends.push_back(between(me, r));
        receives.push_back(between(r, me));
      }
      std::byte* const input =
          places.take(encode(DType::f64, sum(sends, n), [&](size_t i) { return value(group.rank(), i); }));
      std::byte* const output = places.take(sum(receives, n) * 8);
      group.all_to_all(input, output, sends, receives, DType::f64, "letters");
      for (size_t from = 0; from < n; from++) {
        size_t before = 0;
        for (size_t r = 0; r < me; r++) before += between(from, r);
        EXPECT_TRUE(same(
            DType::f64, output + sum(receives, from) * 8,
            encode(DType::f64, receives[from], [&](size_t i) { return value(static_cast<int>(from), before + i); })))
            << "from " << from;
      }
    });
}

TEST_P(Contract, ListsOfEqualCountsAreEven) {
  run([&](Communicator& group) {
    const std::vector<size_t> counts(static_cast<size_t>(group.size()), 10);
    std::vector<int64_t> input(10, group.rank()), output(10 * counts.size());
    if (group.rank() % 2 == 0)
      group.all_gather(input.data(), output.data(), counts, DType::i64, "pieces");
    else
      group.all_gather(input.data(), output.data(), 10, DType::i64, "pieces");
    EXPECT_EQ(output.back(), group.size() - 1);
  });
}

TEST_P(Contract, BlocksMayBeWhereTheyBelong) {
  const Places::Allocate from_engine = [](Communicator& group, size_t bytes) { return allocate(group, bytes); };
  for (const Kind kind : kKinds)
    for (const size_t count : {size_t{10}, size_t{50000}, size_t{300000}})
      run([&](Communicator& group) {
        const size_t n = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
        Places places(group, kind, from_engine, n * count * 4 + 64);
        std::byte* const all =
            places.take(encode(DType::f32, n * count, [&](size_t i) { return value(group.rank(), i); }));
        std::byte* const mine = all + me * count * 4;
        group.reduce_scatter(all, mine, count, DType::f32, Op::sum, "sums");
        group.all_gather(mine, all, count, DType::f32, "sums");
        EXPECT_TRUE(same(DType::f32, all,
                         encode(DType::f32, n * count, [&](size_t i) { return reduced(Op::sum, group.size(), i); })));
      });
}

// ---- messages ----

TEST_P(Contract, SendsMayCross) {
  if (ranks() == 1) GTEST_SKIP() << "nobody to send to";
  run([&](Communicator& group) {
    const int n = group.size();
    for (const size_t bytes : {size_t{0}, size_t{100}, size_t{100000}, size_t{3000000}}) {
      const auto letter = [&](int from, int to) { return Bytes(bytes, static_cast<std::byte>(10 * from + to)); };
      for (int step = 1; step < n; step++) {  // everybody sends to everybody before anybody receives
        const int to = (group.rank() + step) % n;
        group.send(letter(group.rank(), to).data(), bytes, DType::u8, to, "crossing");
      }
      for (int step = 1; step < n; step++) {
        const int from = (group.rank() + step) % n;
        Bytes got(bytes);
        group.receive(got.data(), bytes, DType::u8, from, "crossing");
        EXPECT_EQ(got, letter(from, group.rank()));
      }
    }
  });
}

TEST_P(Contract, ManySmallMessagesMayCross) {
  if (ranks() == 1) GTEST_SKIP() << "nobody to send to";
  run([&](Communicator& group) {
    const int n = group.size(), to = (group.rank() + 1) % n, from = (group.rank() + n - 1) % n;
    for (int64_t i = 0; i < 300; i++) group.send(&i, 1, DType::i64, to, "count");
    for (int64_t i = 0; i < 300; i++) {
      int64_t got = -1;
      group.receive(&got, 1, DType::i64, from, "count");
      ASSERT_EQ(got, i);
    }
  });
}

TEST_P(Contract, StartedMessagesCompleteInAnyOrder) {
  if (ranks() == 1) GTEST_SKIP() << "nobody to send to";
  const auto bytes = [](int k) { return k % 2 == 0 ? 700000 + static_cast<size_t>(k) : static_cast<size_t>(10 * k); };
  constexpr int kLetters = 4;
  for (const bool receive_first : {false, true})
    run([&](Communicator& group) {
      const int n = group.size(), to = (group.rank() + 1) % n, from = (group.rank() + n - 1) % n;
      std::vector<Bytes> sent, got;
      std::vector<Started> sends, receives;
      for (int k = 0; k < kLetters; k++) {
        sent.emplace_back(bytes(k), static_cast<std::byte>(group.rank() * 10 + k));
        got.emplace_back(bytes(k));
      }
      const auto start_sends = [&] {
        for (size_t k = 0; k < kLetters; k++)
          sends.push_back(group.start_send(sent[k].data(), sent[k].size(), DType::u8, to, fmt::format("{}", k)));
      };
      if (!receive_first) start_sends();
      for (size_t k = 0; k < kLetters; k++)
        receives.push_back(group.start_receive(got[k].data(), got[k].size(), DType::u8, from, fmt::format("{}", k)));
      if (receive_first) start_sends();
      for (size_t k = kLetters; k-- > 0;) (group.rank() % 2 == 0 ? sends : receives)[k]->wait();
      for (size_t k = kLetters; k-- > 0;)
        while (!(group.rank() % 2 == 0 ? receives : sends)[k]->test()) std::this_thread::yield();
      for (int k = 0; k < kLetters; k++)
        EXPECT_EQ(got[static_cast<size_t>(k)], Bytes(bytes(k), static_cast<std::byte>(from * 10 + k)));
    });
}

// A rank that waits in a collective takes in what others send to it before they come.
TEST_P(Contract, MessagesPassWhileCollectivesWait) {
  if (ranks() == 1) GTEST_SKIP() << "nobody to send to";
  run([&](Communicator& group) {
    constexpr size_t kBytes = 2000000;
    const int last = group.size() - 1;
    Bytes letter(kBytes, std::byte{7}), got(kBytes);
    float x = 1, y = 1;
    Started receiving, reducing;
    if (group.rank() == last) {
      receiving = group.start_receive(got.data(), kBytes, DType::u8, 0, "letter");
      reducing = group.start_allreduce(&x, 1, DType::f32, Op::sum, "x");
    } else {
      if (group.rank() == 0) group.send(letter.data(), kBytes, DType::u8, last, "letter");
      reducing = group.start_allreduce(&x, 1, DType::f32, Op::sum, "x");
    }
    reducing->wait();
    if (group.rank() == 0) group.send(letter.data(), kBytes, DType::u8, last, "unexpected");
    group.allreduce(&y, 1, DType::f32, Op::sum, "y");
    EXPECT_EQ(x, static_cast<float>(group.size()));
    EXPECT_EQ(y, static_cast<float>(group.size()));
    if (group.rank() != last) return;
    receiving->wait();
    EXPECT_EQ(got, letter);
    got.assign(kBytes, std::byte{0});
    group.receive(got.data(), kBytes, DType::u8, 0, "unexpected");
    EXPECT_EQ(got, letter);
  });
}

TEST_P(Contract, WhatWasStartedMovesOnInOtherWaits) {
  if (ranks() == 1) GTEST_SKIP() << "nobody to wait for";
  const Places::Allocate from_engine = [](Communicator& group, size_t bytes) { return allocate(group, bytes); };
  for (const Kind kind : kKinds)
    run([&](Communicator& group) {
      constexpr size_t kCount = 200000;
      Places places(group, kind, from_engine, kCount * 8);
      std::byte* const data = places.take(encode(DType::f32, kCount, [&](size_t i) { return value(group.rank(), i); }));
      const Started sum = group.start_allreduce(data, kCount, DType::f32, Op::sum, "sum");
      int32_t word = 5;
      if (group.rank() == 0) group.receive(&word, 1, DType::i32, group.size() - 1, "it is complete");
      sum->wait();
      if (group.rank() == group.size() - 1) group.send(&word, 1, DType::i32, 0, "it is complete");
      EXPECT_TRUE(same(DType::f32, data,
                       encode(DType::f32, kCount, [&](size_t i) { return reduced(Op::sum, group.size(), i); })));
    });
}

}  // namespace trireme::tests
