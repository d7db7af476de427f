#include "cli/printable.h"

#include "muster/v1/jobs.pb.h"
#include "tests/support/catch.h"

namespace muster::cli {
namespace {

TEST_CASE("what could move a cursor or turn a text around is spelled out", "[cli][unit]") {
  CHECK(Printable("step 12: loss 0.5\tgood\nnext") == "step 12: loss 0.5\tgood\nnext");
  CHECK(Printable("größe 模型 \U0001F600") == "größe 模型 \U0001F600");
  CHECK(Printable("\033[2J\rgone\x7f") == "\\x1b[2J\\x0dgone\\x7f");
  CHECK(Printable("a\u202Eb\u2066c\u200Fd") == "a\\u202eb\\u2066c\\u200fd");
  CHECK(Printable("csi \u009B1m") == "csi \\u009b1m");
  CHECK(Printable("raw \x9b and \xff") == "raw \\x9b and \\xff");
  CHECK(Printable(std::string_view("nul\0", 4)) == "nul\\x00");
}

TEST_CASE("every text of a message is spelled out, its numbers and maps stay", "[cli][unit]") {
  v1::Job job;
  job.set_name("a\033b");
  job.set_version(7);
  v1::Event& event = *job.add_events();
  event.set_message("c\rd");
  event.add_log_lines("e\u202Ef");
  (*event.mutable_fields())["how"] = "g\033h";

  MakePrintable(job);

  CHECK(job.name() == "a\\x1bb");
  CHECK(job.version() == 7);
  CHECK(job.events(0).message() == "c\\x0dd");
  CHECK(job.events(0).log_lines(0) == "e\\u202ef");
  CHECK(job.events(0).fields().at("how") == "g\\x1bh");
}

}  // namespace
}  // namespace muster::cli
