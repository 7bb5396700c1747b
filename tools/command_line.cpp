// What the programs of this folder do with argv. Nothing else reads it.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <filesystem>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/base/segment.h>
#include <trireme/cluster/agreement.h>
#include <trireme/cluster/launching/last_words.h>
#include <trireme/cluster/launching/launcher.h>

#include "commands.h"
#include "recipe.h"

namespace trireme::tools {

void print_error(const std::string& text) {
  std::fputs(fmt::format("trireme: {}\n", text).c_str(), stderr);  // fmt::print throws when the terminal is gone
}

std::string place_of(const std::string& flag, const Invocation& invocation) {
  const auto found = invocation.origins.find(flag);
  return found == invocation.origins.end() ? "" : found->second + ": ";
}

namespace {

std::string own_path() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) fail<IoError>("cannot find this program's path: {}", errno_text());
  return {path, static_cast<size_t>(length)};
}

/// What other programs call it.
constexpr std::pair<const char*, const char*> kSynonyms[] = {
    {"--learning-rate", "--lr"},  {"--batch-size", "--batch"}, {"--num-workers", "--workers"},
    {"--nproc", "--workers"},     {"--dataset", "--data"},     {"--nproc-per-node", "--workers"},
    {"--wd", "--weight-decay"},   {"--output", "--save"},      {"--steps", "--max-steps"},
    {"--num-epochs", "--epochs"}, {"--mode", "--sync"},        {"--random-seed", "--seed"},
};

/// " (did you mean '--lr'?)" for --learning-rate, --learning_rate, -lr and --rl; or "".
std::string flag_meant(const std::string& word, const std::vector<std::string>& known) {
  std::string name = "--" + word.substr(word.find_first_not_of('-'));
  std::replace(name.begin(), name.end(), '_', '-');
  const auto there = [&](const std::string& flag) {
    return std::find(known.begin(), known.end(), flag) != known.end();
  };
  if (there(name)) return fmt::format(" (did you mean '{}'?)", name);
  for (const auto& [theirs, ours] : kSynonyms)
    if (name == theirs && there(ours)) return fmt::format(" (did you mean '{}'?)", ours);
  return did_you_mean(name, known);
}

/// Not so a lone dash, and -0.5.
bool is_flag(const std::string& word) {
  const size_t name = word.find_first_not_of('-');
  return name != 0 && name != std::string::npos && std::string("0123456789.").find(word[name]) == std::string::npos;
}

/// "unknown flag --epoch (did you mean --epochs?)", with the chosen sub-command's flags or the sub-commands themselves
/// as candidates.
std::string explain_unknown(const CLI::App& app, const Invocation& invocation, const CLI::ParseError& error) {
  const CLI::App* command = &app;  // the innermost that was chosen, as export of `checkpoint export`
  std::vector<std::string> known;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    known.push_back(command->get_name());
  }
  for (const CLI::Option* option : command->get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  std::vector<std::string> short_names;
  for (const CLI::Option* option : command->get_options())
    for (const std::string& name : option->get_snames()) short_names.push_back("-" + name);
  for (const CLI::App* sub : command->get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(sub->get_name());
  for (const std::string& arg : invocation.args) {
    const std::string word = arg.substr(0, arg.find('='));
    const bool flag = is_flag(word);
    const bool stranger = std::find(known.begin(), known.end(), word) == known.end() &&
                          std::find(short_names.begin(), short_names.end(), word.substr(0, 2)) == short_names.end();
    if (stranger && (flag || command->get_require_subcommand_min() > 0))
      return fmt::format("{}unknown {} '{}'{}", place_of(word, invocation), flag ? "flag" : "command", word,
                         flag ? flag_meant(word, known) : did_you_mean(word, known));
  }
  return error.what();
}

/// "--lr must be a number, not 'abc'" for CLI11's "Could not convert: --lr = abc".
std::string explain_conversion(const std::string& text) {
  constexpr std::string_view kBegin = "Could not convert: ", kBetween = " = ";
  const size_t between = text.find(kBetween);
  if (!text.starts_with(kBegin) || between == std::string::npos) return text;
  const std::string flag = text.substr(kBegin.size(), between - kBegin.size()),
                    value = text.substr(between + kBetween.size());
  return fmt::format("{}: '{}' is not a number{}", flag, value,
                     value.find(',') == std::string::npos ? "" : "; decimals have a point");
}

/// CLI11's messages about a value begin with the flag: "--epochs: must be …".
std::string explain_value(const Invocation& invocation, const CLI::ParseError& error) {
  const std::string text = explain_conversion(error.what());
  return place_of(text.substr(0, text.find(':')), invocation) + text;
}

/// What stands after "--" of `launch` and `chaos` belongs to another program: CLI11 never sees it.
Invocation invocation_of(Expanded line) {
  const std::string program = own_path();
  Invocation invocation{program,
                        (std::filesystem::path(program).parent_path() / "trireme-worker").string(),
                        std::move(line.args),
                        {},
                        std::move(line.origins)};
  const auto dashes = std::find(invocation.args.begin(), invocation.args.end(), "--");
  const bool takes_rest = !invocation.args.empty() && (invocation.args[0] == "launch" || invocation.args[0] == "chaos");
  if (!takes_rest || dashes == invocation.args.end()) return invocation;
  invocation.rest.assign(dashes + 1, invocation.args.end());
  invocation.args.erase(dashes, invocation.args.end());
  return invocation;
}

int run(int argc, char** argv, const std::map<std::string, AddCommand>& add) {
  CLI::App app{
      "Data-parallel training for C++ programs and from the command line, on libtorch.\n"
      "Start with:  trireme train lenet --data fashion-mnist --workers 2\n",
      "trireme"};
  app.require_subcommand(1);
  app.set_version_flag("--version", TRIREME_VERSION);
  app.failure_message(CLI::FailureMessage::help);
  const Invocation invocation = invocation_of(expand_recipe({argv + 1, argv + argc}));
  std::map<std::string, Run> commands;
  for (const auto& [name, command] : add) commands[name] = command(app, invocation);
  std::vector<std::string> reversed(invocation.args.rbegin(), invocation.args.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::Success& asked_for_help) {
    return app.exit(asked_for_help);
  } catch (const CLI::ExtrasError& error) {
    fail<InvalidArgument>("{}. `trireme {}--help` lists what there is", explain_unknown(app, invocation, error),
                          app.get_subcommands().empty() ? "" : app.get_subcommands().front()->get_name() + " ");
  } catch (const CLI::RequiredError& error) {
    if (!app.get_subcommands().empty())
      fail<InvalidArgument>("{}. See `trireme {} --help`", explain_unknown(app, invocation, error),
                            app.get_subcommands().front()->get_name());
    if (invocation.args.empty()) return fmt::print("{}", app.help()), 2;
    fail<InvalidArgument>("{}. `trireme --help` lists what there is", explain_unknown(app, invocation, error));
  } catch (const CLI::ParseError& error) {
    fail<InvalidArgument>("{}", explain_value(invocation, error));
  }
  return commands.at(app.get_subcommands().front()->get_name())();
}

}  // namespace

int run_command(int argc, char** argv, const std::map<std::string, AddCommand>& commands) {
  try {
    return run(argc, argv, commands);
  } catch (const InvalidArgument& error) {
    print_error(error.what());
    return 2;
  } catch (const Dismissed&) {
    return 0;  // a worker that is not needed any more
  } catch (const PeerLost& error) {
    print_error(error.what());
    return cluster::kPeerLostExit;
  } catch (const StateLost& error) {
    print_error(error.what());
    return cluster::kStateLostExit;
  } catch (const cluster::CannotJoin& error) {
    print_error(error.what());
    return cluster::kCannotJoinExit;
  } catch (const std::bad_alloc&) {
    print_error(addresses_left() ? "there are not enough addresses: 'ulimit -v' is set, raise it"
                                 : "there is not enough memory");
    return 1;
  } catch (const std::exception& error) {
    print_error(cluster::without_stack(error.what()));
    return 1;
  }
}

}  // namespace trireme::tools
