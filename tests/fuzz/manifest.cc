// MANIFEST.json of a checkpoint. Its hash keeps nearly all inputs out, so the text is tried again
// with its own hash made right.
#include "common/storage/manifest.h"

#include <google/protobuf/util/json_util.h>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  const std::string text(fuzz::Text(data, size));
  const auto as_it_is = storage::DecodeManifest(text);
  if (as_it_is.ok()) (void)storage::CheckSlices(*as_it_is);

  v1::CheckpointManifest manifest;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(text, &manifest, options).ok()) return 0;
  const auto encoded = storage::EncodeManifest(manifest);
  if (!encoded.ok()) return 0;
  const auto decoded = storage::DecodeManifest(*encoded);
  if (decoded.ok()) (void)storage::CheckSlices(*decoded);
  return 0;
}
