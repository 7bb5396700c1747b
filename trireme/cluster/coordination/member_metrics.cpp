#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

#include <trireme/cluster/coordination/member_metrics.h>
#include <trireme/space/layout.h>

namespace trireme::cluster {

std::string job_id(const std::string& meeting) { return fmt::format("{:016x}", space::hash_text(meeting)); }

std::string short_name(const Member& member) {
  if (member.kind == Member::agent) return "launcher";
  return fmt::format("{} {}", member.kind == Member::server ? "server" : "rank", member.rank);
}

std::string line_of(const MemberMetrics& of) {
  nlohmann::ordered_json line = {
      {"job", of.job},          {"member", short_name(of.member)},
      {"host", of.member.host}, {"process", of.member.pid},
      {"age_seconds", of.age},  {"metrics", nlohmann::ordered_json::parse(of.snapshot.json())}};
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string MetricsNews::next(Clock::time_point now, bool last) {
  if (!look_ || (!last && !told_.empty() && now - at_ < kPause)) return "";
  std::string news = look_().encode(kMostBytes);
  if (news == told_) return "";
  at_ = now;
  return told_ = std::move(news);
}

}  // namespace trireme::cluster
