#include "common/cluster/worker_book.h"

#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "common/base/number_in.h"
#include "common/base/whole_file.h"

namespace muster::cluster {
namespace {

std::optional<int> Number(std::string_view text) {
  const auto number = NumberIn<int>(text);
  return number.value_or(-1) < 0 ? std::nullopt : number;
}

}  // namespace

std::string ToText(const WorkerBook& book) {
  std::string text = fmt::format("job {}\nleast {}\nmost {}\nplaces {}\n", book.job, book.least,
                                 book.most, book.places);
  for (const auto& [place, address] : book.addresses) {
    text += fmt::format("worker {} {}\n", place, address);
  }
  if (book.ended) text += "ended 1\n";
  return text;
}

Result<WorkerBook> ParseWorkerBook(std::string_view text) {
  WorkerBook book;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key, value, address, rest;
    words >> key >> value;
    const std::optional<int> number = Number(value);
    bool sound = true;
    if (key == "job") {
      book.job = value;
    } else if (key == "worker") {
      words >> address;
      sound = number.has_value() && !address.empty();
      if (sound) book.addresses[*number] = address;
    } else if (key == "ended") {
      sound = number == 1;
      book.ended = sound;
    } else {
      int* const field = key == "least"    ? &book.least
                         : key == "most"   ? &book.most
                         : key == "places" ? &book.places
                                           : nullptr;
      sound = field != nullptr && number.has_value() && *number > 0;
      if (sound) *field = *number;
    }
    if (!sound || (words >> rest)) {
      return InvalidArgument("\"{}\" is no line of a file of workers", line);
    }
  }
  if (book.job.empty() || book.least > book.most || book.most > book.places) {
    return InvalidArgument(
        "a file of workers needs a job, and least ({}) <= most ({}) <= places ({})", book.least,
        book.most, book.places);
  }
  if (!book.addresses.empty() && book.addresses.rbegin()->first >= book.places) {
    return InvalidArgument("worker {} of a file of workers with {} places",
                           book.addresses.rbegin()->first, book.places);
  }
  return book;
}

Result<WorkerBook> ReadWorkerBook(const std::string& path) {
  const Result<std::string> text = ReadWholeFile(path);
  if (!text.ok()) return Annotate(text.status(), "the workers of this job");
  Result<WorkerBook> book = ParseWorkerBook(*text);
  if (!book.ok()) return Annotate(book.status(), path);
  return book;
}

}  // namespace muster::cluster
