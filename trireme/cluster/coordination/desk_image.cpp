#include <fmt/format.h>

#include <string_view>

#include <trireme/base/error.h>
#include <trireme/base/sha256.h>
#include <trireme/cluster/coordination/desk_image.h>
#include <trireme/cluster/coordination/tls.h>
#include <trireme/cluster/journal/packing.h>

namespace trireme::cluster {
namespace {

using journal::Packer;
using journal::Unpacker;

constexpr std::string_view kFacts = "facts", kBooks = "books", kConcluded = "concluded";
constexpr std::string_view kMember = "member/", kFailure = "failure/", kValue = "value/";

void pack(Packer& to, const CrewChange& change) {
  to.u64(change.epoch).numbers(change.ranks).text(change.reason).flag(change.announced).numbers(change.machines);
  to.numbers(change.lost).flag(change.closing);
}

CrewChange take_change(Unpacker& from) {
  CrewChange change;
  change.epoch = from.u64();
  change.ranks = from.numbers();
  change.reason = from.text();
  change.announced = from.flag();
  change.machines = from.numbers();
  change.lost = from.numbers();
  change.closing = from.flag();
  return change;
}

std::string packed(const DeskFacts& facts) {
  Packer to;
  to.text(facts.job).text(facts.token);
  to.u32(static_cast<uint32_t>(facts.ranks)).u32(static_cast<uint32_t>(facts.servers)).flag(facts.elastic);
  return to.bytes;
}

DeskFacts facts_of(Unpacker from) {
  DeskFacts facts;
  facts.job = from.text();
  facts.token = from.text();
  facts.ranks = from.i32();
  facts.servers = from.i32();
  facts.elastic = from.flag();
  from.end();
  return facts;
}

std::string packed(const DeskBooks& books) {
  Packer to;
  to.u64(books.next_id).u64(books.past_epochs);
  to.u32(static_cast<uint32_t>(books.next_number)).u32(static_cast<uint32_t>(books.target)).flag(books.over);
  const CrewBook& crew = books.book;
  to.u64(crew.epoch).numbers(crew.ranks).numbers(crew.before).flag(crew.held).flag(crew.closing).text(crew.losses);
  to.text(books.crew_reason);
  pack(to, books.latest);
  pack(to, books.interrupting);
  return to.bytes;
}

DeskBooks books_of(Unpacker from) {
  DeskBooks books;
  books.next_id = from.u64();
  books.past_epochs = from.u64();
  books.next_number = from.i32();
  books.target = from.i32();
  books.over = from.flag();
  CrewBook& crew = books.book;
  crew.epoch = from.u64();
  crew.ranks = from.numbers();
  crew.before = from.numbers();
  crew.held = from.flag();
  crew.closing = from.flag();
  crew.losses = from.text();
  books.crew_reason = from.text();
  books.latest = take_change(from);
  books.interrupting = take_change(from);
  from.end();
  return books;
}

std::string packed(const Attendee& attendee) {
  const Member& member = attendee.member;
  Packer to;
  to.u64(attendee.id).u8(member.kind);
  for (int number : {member.rank, member.size, member.slots, member.pid, member.servers})
    to.u32(static_cast<uint32_t>(number));
  to.flag(member.newcomer).text(member.host).text(member.machine).text(attendee.address).text(attendee.secret);
  to.u8(static_cast<uint8_t>(attendee.standing)).flag(attendee.connected || attendee.away);
  to.flag(attendee.exit_code.has_value()).u32(static_cast<uint32_t>(attendee.exit_code.value_or(0)));
  to.text(attendee.report);
  to.u32(static_cast<uint32_t>(attendee.reported_rank)).u32(static_cast<uint32_t>(attendee.reported_server));
  to.flag(attendee.ready).flag(attendee.drained).flag(attendee.dismissed).i64(attendee.confirmed);
  to.text(attendee.loss).text(attendee.dismissal);
  return to.bytes;
}

Attendee attendee_of(Unpacker from) {
  Attendee attendee;
  Member& member = attendee.member;
  attendee.id = from.u64();
  const uint8_t kind = from.u8();
  if (kind > Member::server) fail<Corruption>("a member is of kind {}", kind);
  member.kind = static_cast<Member::Kind>(kind);
  for (int* number : {&member.rank, &member.size, &member.slots, &member.pid, &member.servers}) *number = from.i32();
  member.newcomer = from.flag();
  member.host = from.text();
  member.machine = from.text();
  attendee.address = from.text();
  attendee.secret = from.text();
  const uint8_t standing = from.u8();
  if (standing > static_cast<uint8_t>(Standing::lost)) fail<Corruption>("a member's standing is {}", standing);
  attendee.standing = static_cast<Standing>(standing);
  attendee.connected = from.flag();
  const bool said_goodbye = from.flag();
  const int exit_code = from.i32();
  if (said_goodbye) attendee.exit_code = exit_code;
  attendee.report = from.text();
  attendee.reported_rank = from.i32();
  attendee.reported_server = from.i32();
  attendee.ready = from.flag();
  attendee.drained = from.flag();
  attendee.dismissed = from.flag();
  attendee.confirmed = from.i64();
  attendee.loss = from.text();
  attendee.dismissal = from.text();
  from.end();
  return attendee;
}

std::string packed(const Failure& failure) {
  Packer to;
  to.u32(static_cast<uint32_t>(failure.rank)).text(failure.host).text(failure.reason);
  return to.bytes;
}

Failure failure_of(Unpacker from) {
  Failure failure;
  failure.rank = from.i32();
  failure.host = from.text();
  failure.reason = from.text();
  from.end();
  return failure;
}

void take_entry(std::string_view key, const std::string& value, DeskImage& image) {
  if (key == kFacts)
    image.facts = facts_of(Unpacker(value));
  else if (key == kBooks)
    image.books = books_of(Unpacker(value));
  else if (key == kConcluded)
    image.concluded = true;
  else if (key.starts_with(kMember))
    image.attendees.push_back(attendee_of(Unpacker(value)));
  else if (key.starts_with(kFailure))
    image.failures.push_back(failure_of(Unpacker(value)));
  else if (key.starts_with(kValue))
    image.values.emplace(key.substr(kValue.size()), value);
  else
    fail<Corruption>("this version knows no such entry");
}

}  // namespace

std::optional<DeskImage> image_of(const journal::Journal& journal) {
  const journal::Contents& contents = journal.contents();
  if (contents.empty()) return std::nullopt;
  DeskImage image;
  for (const auto& [key, value] : contents) {  // members and failures have keys in their order
    try {
      take_entry(key, value, image);
    } catch (const Corruption& error) {
      fail<Corruption>("the journal {} is no coordinator's of this version: its entry '{}': {}", journal.name(), key,
                       error.what());
    }
  }
  for (const std::string_view needed : {kFacts, kBooks})
    if (!contents.contains(std::string(needed)))
      fail<Corruption>("the journal {} is no coordinator's of this version: it has no entry '{}'", journal.name(),
                       needed);
  return image;
}

std::string fingerprint(const std::string& secret) {
  Sha256 hash;
  const std::string text = "trireme journal/" + secret;
  hash.add(text.data(), text.size());
  return hash.finish();
}

std::string facts_refusal(const DeskFacts& journalled, const DeskFacts& now, const std::string& journal) {
  const std::string is = fmt::format("the journal {} is of job '{}'", journal, journalled.job);
  const std::string advice = ". Start the coordinator as it was, or give --journal another file";
  if (journalled.job != now.job) return fmt::format("{}, not of '{}'{}", is, now.job, advice);
  if (!same_secret(journalled.token, now.token)) return fmt::format("{} with another token{}", is, advice);
  if (journalled.ranks != now.ranks)
    return fmt::format("{} with {} ranks, not {}{}", is, journalled.ranks, now.ranks, advice);
  if (journalled.servers != now.servers)
    return fmt::format("{} with {} servers, not {}{}", is, journalled.servers, now.servers, advice);
  if (journalled.elastic != now.elastic)
    return fmt::format("{}, whose crew {}{}", is, journalled.elastic ? "may change (--workers)" : "does not change",
                       advice);
  return "";
}

journal::Changes ImageChanges::since(const DeskFacts& facts, const DeskBooks& books,
                                     const std::vector<Attendee>& attendees, const std::vector<Failure>& failures) {
  journal::Contents now;
  now.emplace(kFacts, packed(facts));
  now.emplace(kBooks, packed(books));
  for (const Attendee& attendee : attendees)
    now.emplace(fmt::format("{}{:016x}", kMember, attendee.id), packed(attendee));
  for (size_t i = 0; i < failures.size(); i++) now.emplace(fmt::format("{}{:08x}", kFailure, i), packed(failures[i]));
  journal::Changes changes;
  for (const auto& [key, value] : now)
    if (const auto old = written_.find(key); old == written_.end() || old->second != value)
      changes.push_back({key, value});
  for (const auto& [key, value] : written_)
    if (!now.contains(key)) changes.push_back({key, std::nullopt});
  written_ = std::move(now);
  return changes;
}

std::string ImageChanges::key_of_value(const std::string& key) { return std::string(kValue) + key; }

journal::Change ImageChanges::conclusion() { return {std::string(kConcluded), ""}; }

}  // namespace trireme::cluster
