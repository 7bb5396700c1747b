#include <fcntl.h>
#include <nlohmann/json.hpp>

#include <trireme/base/error.h>
#include <trireme/checkpoint/notice.h>

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

json json_of_written(const Notice::Written& file) {
  json parts = json::array();
  for (const FileRange& part : file.parts) parts.push_back({part.begin, part.end});
  return {{"name", file.name}, {"bytes", file.bytes}, {"parts", parts}};
}

Notice::Written written_of(const json& text) {
  Notice::Written file{text.at("name"), text.at("bytes"), {}};
  for (const json& part : text.at("parts")) file.parts.push_back({part.at(0), part.at(1)});
  return file;
}

}  // namespace

std::string Notice::name(const Attempt& attempt, int rank) {
  return fmt::format("{}{}-{:05}.json", kNoticePrefix, attempt.id, rank);
}

void Notice::write(Files& files, const Attempt& attempt) const {
  json text{{"attempt", attempt.id}, {"rank", rank}, {"error", error}, {"scalars", scalars}, {"files", json::array()}};
  for (const Written& file : this->files) text["files"].push_back(json_of_written(file));
  const std::string path = attempt.path + "/" + name(attempt, rank), temporary = path + ".tmp",
                    bytes = text.dump(-1, ' ', false, json::error_handler_t::replace);
  File(files, temporary, O_WRONLY | O_CREAT | O_TRUNC).write_at(0, std::as_bytes(std::span(bytes)));
  if (files.rename(temporary, path) < 0) fail<IoError>("cannot rename to {}: {}", path, errno_text());
}

Notice Notice::read(Files& files, const Attempt& attempt, int rank) {
  const std::string path = attempt.path + "/" + name(attempt, rank);
  const std::string bytes = read_text(files, path, kMostManifestBytes);
  try {
    const json text = json::parse(bytes);
    if (text.at("attempt") != attempt.id || text.at("rank") != rank) fail<Corruption>("{} is somebody else's", path);
    Notice notice{rank, text.at("error"), {}, text.at("scalars")};
    for (const json& file : text.at("files")) notice.files.push_back(written_of(file));
    return notice;
  } catch (const json::exception& error) {
    fail<Corruption>("{} is no notice of a writer: {}", path, error.what());
  }
}

}  // namespace trireme::checkpoint
