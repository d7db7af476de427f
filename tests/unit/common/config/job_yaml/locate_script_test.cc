#include "common/config/job_yaml/job_yaml.h"
#include "tests/support/catch.h"
#include "tests/unit/common/config/job_yaml/good_job.h"

namespace muster::config {
namespace {

using testing::GoodJobBut;
using testing::kGoodJob;

std::string Located(const std::string& text, const std::string& message) {
  return LocateScript(ParseJobYaml(text, "job.yaml"), message);
}

TEST_CASE("a line within forward is a line of the file", "[config][unit]") {
  CHECK(Located(kGoodJob, "forward, line 2, column 12: no") == "job.yaml:8:16: forward: no");
  CHECK(Located(kGoodJob, "step 1: forward, in helper, line 1: no\nexcerpt") ==
        "job.yaml:7:5: step 1: forward, in helper: no\nexcerpt");
  CHECK(Located(kGoodJob, "forward, line 2, column 1: a\nforward, line 1, column 1: b") ==
        "job.yaml:8:5: forward: a\njob.yaml:7:5: forward: b");
}

TEST_CASE("comments, empty lines and other indentation do not move it", "[config][unit]") {
  const std::string text = GoodJobBut("  forward: |\n    def forward(self, image):\n",
                                      "  forward: |2  # the model\n\n\n    # first\n\n"
                                      "    def forward(self, image):\n");
  CHECK(ParseJobYaml(text, "job.yaml").problems.empty());
  // "|2": two more than `forward`, so the text begins with two empty lines.
  CHECK(Located(text, "forward, line 6, column 12: no") == "job.yaml:12:16: forward: no");
}

TEST_CASE("a source in a quoted string is located as a whole", "[config][unit]") {
  const std::string text = GoodJobBut(
      "  forward: |\n    def forward(self, image):\n"
      "        return torch.addmm(self.b, image, self.w)\n",
      "  forward: \"def forward(self, image):\\n  return image @ self.w + self.b\"\n");
  CHECK(Located(text, "forward, line 2, column 10: no") ==
        "job.yaml:6:12: forward, line 2, column 10: no");
}

TEST_CASE("the loss function has its own place", "[config][unit]") {
  const std::string text =
      GoodJobBut("loss: {kind: softmax_cross_entropy, label: label}",
                 "loss:\n  function: |\n    def loss(output, label):\n      return outputt.mean()");
  CHECK(Located(text, "loss function, line 2, column 14: no") ==
        "job.yaml:17:18: loss function: no");
}

TEST_CASE("what speaks of no script of the file stays as it is", "[config][unit]") {
  for (const char* text :
       {"worker:0 on host: /data/x is not there", "forward, code/net.py, line 3, column 5: no",
        "forward: the source defines no function called forward",
        "forward, line 99, column 1: x"}) {
    const std::string located = Located(kGoodJob, text);
    CHECK((located == text || located == "job.yaml:6:12: " + std::string(text)));
  }
}

}  // namespace
}  // namespace muster::config
