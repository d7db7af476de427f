#include "services/trainer/closure_story.h"

#include "tests/support/catch.h"

namespace muster::trainer {
namespace {

TEST_CASE("news of a closure name the task that it came from", "[trainer][unit]") {
  ClosureStory story;

  story.OnReturned("worker:12", ClosureId(1), Unavailable("no room"));
  // A name of no task is told as it is.
  story.OnReturned("worker:x", ClosureId(2), Unavailable("no room"));

  const std::vector<v1::ClosureNews> news = story.TakeNews();
  REQUIRE(news.size() == 2);
  CHECK(news[0].returned().task().type() == "worker");
  CHECK(news[0].returned().task().index() == 12);
  CHECK(news[1].returned().task().type() == "worker:x");
}

}  // namespace
}  // namespace muster::trainer
