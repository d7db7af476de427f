// Where the YAML documents of a text begin: a file of ours is one, and what stood behind it would
// be passed over.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

namespace muster::config {

// YAML::LoadAll() would go round for ever, with a document more each time, at a token that begins
// none (a comma in front).
class DocumentStarts final : public YAML::EventHandler {
 public:
  // Throws YAML::Exception.
  explicit DocumentStarts(std::string_view text) {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    while (parser.HandleNextDocument(*this)) {
    }
  }
  const std::vector<YAML::Mark>& marks() const { return marks_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (!marks_.empty() && marks_.back().pos == mark.pos) {
      throw YAML::ParserException(mark, "nothing can begin with this character");
    }
    marks_.push_back(mark);
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  std::vector<YAML::Mark> marks_;
};

}  // namespace muster::config
