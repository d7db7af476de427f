// TF_CONFIG, as a launcher wrote it.
#include "common/cluster/tf_config.h"

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  const std::string_view text = fuzz::Text(data, size);
  const auto parsed = cluster::ParseTfConfig(text);
  const auto task = cluster::FromTfConfig(text);
  fuzz::Require(parsed.ok() || !task.ok(), "a daemon accepts no more than the parser");
  return 0;
}
