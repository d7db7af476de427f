// muster-make-clicks: a click log to train on, with a known best score.
#include <cstdio>
#include <map>
#include <string>

#include "examples/make_clicks/click_data.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

int main(int argc, char** argv) {
  using muster::examples::ClickCompression;
  muster::examples::ClickOptions options;
  const std::map<std::string, ClickCompression> compressions = {{"zstd", ClickCompression::kZstd},
                                                                {"gzip", ClickCompression::kGzip},
                                                                {"none", ClickCompression::kNone}};

  CLI::App app(
      "Writes a generated click log in Criteo's format and prints what a perfect model would score "
      "on its held-out part, as JSON.");
  app.add_option("--out", options.folder, "Folder to write to")->required();
  app.add_option("--rows", options.rows, "Training rows")->capture_default_str();
  app.add_option("--eval-rows", options.eval_rows, "Held-out rows")->capture_default_str();
  app.add_option("--files", options.files, "Files of training rows")->capture_default_str();
  app.add_option("--seed", options.seed, "Same seed, same files")->capture_default_str();
  app.add_option("--compression", options.compression, "Of the files")
      ->transform(CLI::CheckedTransformer(compressions).description(""))
      ->type_name("zstd|gzip|none");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const auto report = muster::examples::MakeClicks(options);
  if (!report.ok()) {
    fmt::print(stderr, "muster-make-clicks: {}\n", muster::ToString(report.status()));
    return 1;
  }
  const nlohmann::ordered_json json = {{"train", report->train_files},
                                       {"eval", report->eval_file},
                                       {"rows", options.rows},
                                       {"eval_rows", options.eval_rows},
                                       {"categories", report->categories},
                                       {"eval_click_rate", report->eval_click_rate},
                                       {"optimum_auc", report->optimum_auc}};
  fmt::print("{}\n", json.dump(2));
  return 0;
}
