#include "worker/engine/script_error.h"

#include "tests/support/catch.h"

namespace muster::engine {
namespace {

TEST_CASE("a compiler's error keeps its suggestions and points at the place", "[engine][unit]") {
  const ScriptError error = ParseScriptError(
      "\nUnknown builtin op: aten::rellu.\nHere are some suggestions: \n\taten::relu\n\n"
      "The original call is:\n  File \"<string>\", line 2\ndef forward(self, x):\n"
      "    return torch.rellu(x)\n           ~~~~~~~~~~~ <--- HERE\n",
      "");

  CHECK(error.message ==
        "Unknown builtin op: aten::rellu.\nHere are some suggestions: \n\taten::relu");
  CHECK(error.line == 2);
  CHECK(error.column == 12);
  CHECK(error.excerpt == "    return torch.rellu(x)\n           ~~~~~~~~~~~");
}

TEST_CASE("an interpreter's error is placed in the innermost call", "[engine][unit]") {
  const ScriptError error = ParseScriptError(
      "The following operation failed in the TorchScript interpreter.\n"
      "Traceback of TorchScript (most recent call last):\n"
      "  File \"<string>\", line 6, in forward\ndef forward(self, x):\n"
      "    return self.helper(y)\n           ~~~~~~~~~~~ <--- HERE\n"
      "  File \"<string>\", line 2, in helper\ndef helper(self, y):\n"
      "    return torch.matmul(y, y)\n           ~~~~~~~~~~~~ <--- HERE\n\ndef forward(self, x):\n"
      "RuntimeError: shapes cannot be multiplied\n",
      "");

  CHECK(Describe(error, "forward") ==
        "forward, in helper, line 2, column 12: shapes cannot be multiplied\n"
        "    return torch.matmul(y, y)\n           ~~~~~~~~~~~~");
}

TEST_CASE("a line that ends too early is the one pointed at", "[engine][unit]") {
  const ScriptError error = ParseScriptError(
      "expected ident but found 'newline' here:\n  File \"<string>\", line 3\n"
      "def forward(self, x):\n    y = x +\n    return y\n",
      "def forward(self, x):\n    y = x +\n    return y\n");

  CHECK(Describe(error, "forward") ==
        "forward, line 2, column 12: expected ident but found 'newline'\n    y = x +\n"
        "           ~");
}

TEST_CASE("an assertion of the parser is placed where the statement should have ended",
          "[engine][unit]") {
  const std::string source = "def forward(self, x):\n    y = x\n\n    retrn y + x\n    return y\n";
  // As the parser does: nothing before the end of "retrn y" disturbs it.
  const auto refusal = [](const std::string& text) -> std::string {
    return text.find("retrn y") != std::string::npos ? "x INTERNAL ASSERT FAILED at y" : "";
  };
  const Status asserted =
      InvalidArgument("forward: type.present() INTERNAL ASSERT FAILED at p.cpp");

  CHECK(Message(PlacedSyntaxError(asserted, "forward", source, refusal)) ==
        "forward, line 4, column 11: invalid syntax: expected an operator, '=' or the end of the "
        "line; did you mean \"return\"?\n    retrn y + x\n          ~");
  CHECK(PlacedSyntaxError(asserted, "forward", "def f(x):\n    return x\n", refusal) == asserted);
  CHECK(PlacedSyntaxError(InvalidArgument("odd"), "forward", source, refusal) ==
        InvalidArgument("odd"));
}

TEST_CASE("text of any other kind is passed on as it is", "[engine][unit]") {
  CHECK(Describe(ParseScriptError("odd", ""), "forward") == "forward: odd");
}

}  // namespace
}  // namespace muster::engine
